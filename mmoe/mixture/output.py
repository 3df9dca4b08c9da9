"""`MixtureOutput`: what a mixture returns."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mmoe.mixture.pytrees import Tree
from mmoe.mixture.statistics import MixtureStatistics
from mmoe.ops import FLOAT_DTYPES, dense_combine


class Unmixed(NamedTuple):
    """What the gates' mixes are made of, for who can do with less than all mixes at once.

    Attributes:
        y: `y_BO` of each expert.
        weights_BGE: Of each gate.
    """

    y: list[Tensor]
    weights_BGE: Tensor

    @classmethod
    def of(cls, y: Sequence[Tree], weights_BGE: Tensor) -> "Unmixed | None":
        """Leaves the mixes unmade; None where experts return something else than rows.

        Args:
            y: Of each expert.
            weights_BGE: Of each gate.

        Example:
            >>> import torch
            >>> from mmoe.mixture.output import Unmixed
            >>> Unmixed.of([(torch.ones(3, 8), torch.ones(3))], torch.ones(3, 4, 1))
        """
        rows = [each for each in y if isinstance(each, Tensor) and each.dim() == 2]
        if len(rows) != len(y) or any(each.dtype not in FLOAT_DTYPES for each in rows):
            return None
        return cls(rows, weights_BGE)

    def mixes(self) -> Tensor:
        """Makes `out_BGO`.

        Example:
            >>> import torch
            >>> from mmoe.mixture.output import Unmixed
            >>> Unmixed([torch.ones(3, 8)] * 2, torch.ones(3, 4, 2)).mixes().shape
            torch.Size([3, 4, 8])
        """
        return dense_combine(self.y, self.weights_BGE)


class MixtureOutput(NamedTuple):
    """What a mixture returns: mixes, losses and, on request, gates and statistics.

    Attributes:
        out_BGO: One mix of expert outputs per gate; where experts return tuples or dicts, the same
            structure of `[B, G, …]`. Empty where `unmixed` is there.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        gate_weights_BGE: The weights the gates gave (before any drop), where they were asked for.
        dropped: Picks dropped by the capacity, one int64; None where nothing can be dropped.
        statistics: Where they were asked for.
        gates_wanted_BGE: What gates that decide together would have weighed alone, where the
            weights were asked for; None: each decided alone.
        unmixed: Where mixes were left to the caller, and there was nothing more to them.
    """

    out_BGO: Tensor
    auxiliary_losses: dict[str, Tensor]
    gate_weights_BGE: Tensor | None = None
    dropped: Tensor | None = None
    statistics: MixtureStatistics | None = None
    gates_wanted_BGE: Tensor | None = None
    unmixed: Unmixed | None = None

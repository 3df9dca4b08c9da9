"""`MoE`: the ordinary mixture-of-experts layer with one gate, in place of a feed-forward layer."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture.capacity import Capacity
from mmoe.mixture.checks import as_pool
from mmoe.mixture.execution import Execution
from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.gates import TopKGate
from mmoe.mixture.multi_gate import MultiGateMixture
from mmoe.mixture.pytrees import Tree, map_leaves
from mmoe.mixture.statistics import MixtureStatistics


class MoEOutput(NamedTuple):
    """Output of a `MoE` with losses and statistics, where a caller asks for them.

    Attributes:
        out: `[..., O]`; where experts return tuples or dicts, the same structure.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        dropped: Picks dropped by the capacity, one int64; None where nothing can be dropped.
        statistics: Where they were asked for.
    """

    out: Tree
    auxiliary_losses: dict[str, Tensor]
    dropped: Tensor | None
    statistics: MixtureStatistics | None


class MoE(nn.Module):
    """Mixture of experts with one gate, for `[..., D]`: `y = Σ_e w_e(x) · expert_e(x)`.

    A `MultiGateMixture` with one gate. Losses and statistics are returned, not kept in the module:
    a gate with losses (`balance_loss`, …) trains by them only if you call the layer with
    `return_auxiliary=True` and add them to your loss. Otherwise they are dropped.

    Args:
        input_dim: D; None: x may have any structure (tensors, tuples, dicts) of leaves `[rows, …]`,
            and the gate must be given.
        experts: A pool, or modules that map `[rows, D]` to `[rows, O]`, or to tuples and dicts of
            tensors with as many rows.
        k: Experts for each row, where no gate is given; default: 2 (1 of a single expert).
        gate: Any gate module of one gate; default: `TopKGate` with k picks, without losses.
        capacity: How many rows an expert may compute in a training step; default: any number.
        execution: `auto`, `dense`, `grouped` or `padded`, as in `MultiGateMixture`.

    Raises:
        ValueError: A setting that does not fit, with its name; both k and gate.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts, MoE
        >>> moe = MoE(16, MLPExperts(8, 16, [64, 16]), k=2)
        >>> tokens = torch.zeros(4, 10, 16)
        >>> moe(tokens).shape
        torch.Size([4, 10, 16])
        >>> out, losses, dropped, statistics = moe(tokens, return_auxiliary=True)
        >>> out.shape, losses
        (torch.Size([4, 10, 16]), {})

    Source: Shazeer et al., "Outrageously large neural networks" (ICLR 2017), equation 1.
    """

    def __init__(
        self,
        input_dim: int | None,
        experts: Pool | Iterable[nn.Module],
        *,
        k: int | None = None,
        gate: nn.Module | None = None,
        capacity: Capacity | None = None,
        execution: Execution = "auto",
    ) -> None:
        super().__init__()
        pool = as_pool(experts, input_dim)
        if k is not None and gate is not None:
            raise ValueError(f"k: expected None beside a gate, which picks itself, got {k}")
        if gate is None:
            if input_dim is None:
                raise ValueError("gate: expected one where input_dim is None, got None")
            gate = TopKGate(input_dim, 1, len(pool), k=min(2, len(pool)) if k is None else k)
        self.mixture = MultiGateMixture(
            input_dim, 1, pool, gate=gate, capacity=capacity, execution=execution
        )

    def forward(
        self, x: Tree, return_auxiliary: bool = False, return_statistics: bool = False
    ) -> Tree | MoEOutput:
        """Mixes the experts for every row.

        Args:
            x: `[..., D]`; where `input_dim` is None, a tensor `[rows, …]` or tuples and dicts of
                them.
            return_auxiliary: Return a `MoEOutput` with the gate's losses and the drops.
            return_statistics: Return a `MoEOutput` with the statistics as well.

        Returns:
            `[..., O]`, in the structure that the experts return, or a `MoEOutput`.

        Raises:
            ValueError: Another width than D, or what is no tensor.
        """
        rows, leading = self._rows(x)
        result = self.mixture(rows, return_statistics=return_statistics)
        out = map_leaves(lambda leaf: _without_gate(leaf, leading), result.out_BGO)
        if return_auxiliary or return_statistics:
            return MoEOutput(out, result.auxiliary_losses, result.dropped, result.statistics)
        return out

    def _rows(self, x: Tree) -> tuple[Tree, torch.Size | None]:
        """X as the mixture takes it, and the leading dimensions to give back; None: as they are."""
        width = self.mixture.input_dim
        if width is None:
            return x, None
        if not isinstance(x, Tensor):
            raise ValueError(f"x: expected a tensor [..., {width}], got a {type(x).__name__}")
        if not x.dim() or x.shape[-1] != width:
            raise ValueError(f"x: expected shape [..., {width}], got {list(x.shape)}")
        if x.dim() == 2:
            return x, None
        # -1: a program for any number of rows would keep the product of sizes as a constant
        return x.reshape(-1, width), x.shape[:-1]


def _without_gate(out_BGO: Tensor, leading: torch.Size | None) -> Tensor:
    out = out_BGO.squeeze(1)
    return out if leading is None else out.view(*leading, *out.shape[1:])

"""`MixtureOutput`: what a mixture returns."""

from typing import NamedTuple

from torch import Tensor

from mmoe.mixture.statistics import MixtureStatistics


class MixtureOutput(NamedTuple):
    """What a mixture returns: mixes, losses and, on request, gates and statistics.

    Attributes:
        out_BGO: One mix of expert outputs per gate; where experts return tuples or dicts, the same
            structure of `[B, G, …]`.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        gate_weights_BGE: The weights the gates gave (before any drop), where they were asked for.
        dropped: Picks dropped by the capacity, one int64; None where nothing can be dropped.
        statistics: Where they were asked for.
        gates_wanted_BGE: What gates that decide together would have weighed alone, where the
            weights were asked for; None: each decided alone.
    """

    out_BGO: Tensor
    auxiliary_losses: dict[str, Tensor]
    gate_weights_BGE: Tensor | None = None
    dropped: Tensor | None = None
    statistics: MixtureStatistics | None = None
    gates_wanted_BGE: Tensor | None = None

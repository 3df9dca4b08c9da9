"""Statistics of a mixture's gates and experts over a batch, computed on request."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.mixture.experts.mlp import Record
from mmoe.mixture.experts.norm import segment_sum
from mmoe.mixture.gates import GateOutput


class MixtureStatistics(NamedTuple):
    """Numbers about what a mixture did with one batch, detached.

    With w the weights of gate g for row b, divided by their sum over the experts:

    Attributes:
        picks_GE: How many rows gate g sent to expert e, before any were dropped, int64. A dense
            gate picks what it sees.
        dropped_GE: How many of those the capacity dropped, int64.
        entropy_G: Mean over the rows of `−Σ_e w log w`, nats: 0 = one expert a row.
        effective_experts_of_mean_G: `exp(−Σ_e w̄ log w̄)` of the mean weights w̄ over the rows: how
            many experts the gate uses over the batch, 1 … E. (What runs and reports call
            `effective_experts` is the exp of `entropy_G` over all rows: how many *one row* uses.)
        pair_ratio: Distinct pairs of row and expert over all picks, before any were dropped: from
            1/G (all gates pick alike) to 1 (nothing shared).
        dead_share_E: Share of an expert's ReLU units (all layers) that were 0 for every row it
            got; NaN for an expert without rows. None where experts are not ReLU `MLPExperts`.
    """

    picks_GE: Tensor
    dropped_GE: Tensor
    entropy_G: Tensor
    effective_experts_of_mean_G: Tensor
    pair_ratio: Tensor
    dead_share_E: Tensor | None


@torch.no_grad()
def measure(
    decision: GateOutput, kept: GateOutput, visibility_GE: Tensor, dead_share_E: Tensor | None
) -> MixtureStatistics:
    """Measures what gates and experts did with a batch.

    Args:
        decision: What the gates wanted.
        kept: What the capacity left of it.
        visibility_GE: Which gate sees which expert.
        dead_share_E: From `dead_share`, or None.

    Returns:
        The statistics.
    """
    weights_BGE = decision.as_weights(visibility_GE.shape[1])
    # Weights of sigmoid gates need not add up to 1; entropy is one of shares
    weights_BGE = weights_BGE / weights_BGE.sum(-1, keepdim=True).clamp(min=1e-30)
    rows = max(weights_BGE.shape[0], 1)  # without any, all means are 0 and not NaN
    picked_BGE = decision.picked(visibility_GE)
    picks_GE = picked_BGE.sum(0)
    kept_GE = kept.picked(visibility_GE).sum(0)
    return MixtureStatistics(
        picks_GE=picks_GE,
        dropped_GE=picks_GE - kept_GE,
        entropy_G=_entropy(weights_BGE).sum(0) / rows,
        effective_experts_of_mean_G=_entropy(weights_BGE.sum(0) / rows).exp(),
        pair_ratio=picked_BGE.any(1).sum() / picks_GE.sum().clamp(min=1),
        dead_share_E=dead_share_E,
    )


@torch.no_grad()
def dead_share(record: Record, rows: Tensor | Sequence[Tensor]) -> Tensor:
    """Returns the share of each expert's ReLU units that were 0 for all of its rows.

    Args:
        record: From `MLPExperts`.
        rows: Which rows are an expert's: where they ran grouped, `offsets_E1`; else a bool mask of
            the rows for each expert.

    Returns:
        `dead_share_E`, float32; NaN for an expert without rows.
    """
    grouped = isinstance(rows, Tensor)
    rows_E = rows.diff() if grouped else torch.stack([mask.sum() for mask in rows])
    alive_EH = torch.cat([_alive_units(units, rows) for units in record], dim=1)
    return torch.where(rows_E > 0, 1 - alive_EH.float().mean(1), torch.nan)


def _alive_units(units: Tensor | list[Tensor], rows: Tensor | Sequence[Tensor]) -> Tensor:
    """Marks the units that were above 0 for a row that counts, bool `[E, H]`."""
    if isinstance(units, Tensor):
        assert isinstance(rows, Tensor)
        return segment_sum((units > 0).float(), rows) > 0
    return torch.stack(
        [((y > 0) & mask.unsqueeze(1)).any(0) for y, mask in zip(units, rows, strict=True)]
    )


def _entropy(weights: Tensor) -> Tensor:
    """Over the last dimension, in nats; 0 · log 0 is 0."""
    return torch.special.entr(weights).sum(-1)

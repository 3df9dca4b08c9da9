"""Capacity: at most so many rows for each expert while training; what exceeds it is dropped."""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture.dispatcher import experts_of_pairs
from mmoe.ops import host_is_near

Priority = Literal["position", "choice", "probability"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limit of the rows that an expert computes in a training step, and which rows stay.

    With B rows, E experts and G gates of K picks, all gates together ask an expert for
    `n̄ = B · min(G · K, E) / E` distinct rows at most on average. The capacity C is

    - factor > 0: `⌈factor · n̄⌉`, a fixed number for a batch size;
    - factor = 0: as many as the busiest expert needs: nothing is dropped;
    - factor < 0: as many as it needs, but at most `⌈|factor| · n̄⌉`;

    then held between `minimum` and `maximum`. Pairs of sample and expert are counted once, however
    many gates share them; a dropped pair is lost to all of them. Weights are not renormalised: what
    was dropped adds nothing, as in GShard and Switch. Evaluation drops nothing.

    Args:
        factor: See above.
        priority: Whose rows stay: `position`, the first of the batch; `choice`, all first picks
            before any second pick (for gates that return their picks best first; a pair that
            several gates share counts by its best), equal ones by position; or `probability`, those
            with the largest weight, added up over the gates (batch-prioritised routing), equal ones
            by position.
        minimum: C is at least this, in rows.
        maximum: C is at most this, in rows, whatever the factor asks for.

    Raises:
        ValueError: A setting out of range, with its name.

    Example:
        >>> from mmoe.mixture import Capacity
        >>> Capacity(1.25).limit(rows=64, picks=2, num_experts=8)
        20
        >>> Capacity(0.0).limit(rows=64, picks=2, num_experts=8)
        64

    Source: Lepikhin et al., "GShard" (ICLR 2021), section 2.2, and algorithm 1 for `choice`; Hwang
        et al., "Tutel" (MLSys 2023), for the signs of the factor; Riquelme et al., "Scaling vision
        with sparse mixture of experts" (NeurIPS 2021), section 4, for batch-prioritised routing.
    """

    factor: float = 1.25
    priority: Priority = "position"
    minimum: int | None = None
    maximum: int | None = None
    _ratio: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor: expected a finite number, got {self.factor}")
        if self.priority not in get_args(Priority):
            raise ValueError(
                f"priority: expected one of {', '.join(get_args(Priority))}, got {self.priority!r}"
            )
        for name, value in (("minimum", self.minimum), ("maximum", self.maximum)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected 1 or more rows, got {value}")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(
                f"minimum: expected at most maximum ({self.maximum}), got {self.minimum}"
            )
        # 1.1 is meant as 11/10: in binary, 1.1 · 10 rows would be a bit more than 11.
        ratio = Fraction(abs(self.factor)).limit_denominator(10**9)
        ratio = max(ratio, Fraction(1, 10**9))
        object.__setattr__(self, "_ratio", ratio.as_integer_ratio())

    def limit(self, rows: int, picks: int, num_experts: int) -> int:
        """Returns the rows that an expert keeps at most; it depends on shapes alone.

        Args:
            rows: B.
            picks: G · K, what all gates together pick for one row.
            num_experts: E.

        Returns:
            C, or with a factor of 0 or less the most it may become; never above B.
        """
        limit = rows
        if self.factor:
            over, under = self._ratio
            limit = -(-rows * min(picks, num_experts) * over // (num_experts * under))
        # sym_min and sym_max are min and max that leave a traced batch size free.
        if self.minimum is not None:
            limit = torch.sym_max(limit, self.minimum)
        if self.maximum is not None:
            limit = torch.sym_min(limit, self.maximum)
        return cast(int, torch.sym_min(limit, rows))

    def width(self, limit: int, offsets_E1: Tensor) -> int:
        """Returns the rows to set aside for each expert in padded execution.

        With a factor of 0 or less this is what the busiest expert has; inside `torch.compile` and
        on a GPU it is `limit`.

        Args:
            limit: C of this batch, as `rows` gives it.
            offsets_E1: Where each expert's rows start, int32.
        """
        # Reading the sizes would make the host wait for a GPU, or end the tracing of a program
        if self.factor > 0 or not host_is_near(offsets_E1):
            return limit
        needed = int(offsets_E1.diff().max())
        return min(max(needed, self.minimum or 0), limit)


class Kept(NamedTuple):
    """Picks of a batch that the capacity left.

    Attributes:
        experts_BGK: The picks, int32; −1 where there was none or it was dropped.
        dropped: How many picks were dropped, int64, one number on the picks' device.
        limit: The most rows that an expert has now.
    """

    experts_BGK: Tensor
    dropped: Tensor
    limit: int


def drop_over_capacity(
    capacity: Capacity,
    experts_BGK: Tensor,
    weights_BGK: Tensor,
    num_experts: int,
    k: int | None = None,
    most_pairs: int | None = None,
) -> Kept:
    """Drops what exceeds the capacity; nothing is read on the host.

    Args:
        capacity: The setting.
        experts_BGK: int32; −1 = unused.
        weights_BGK: What each pick weighs, for the priority `probability`; picks are best first for
            the priority `choice`.
        num_experts: E.
        k: How many picks a gate is meant to make, where that is fewer than K: DSelect-k gates
            return E picks, of which k are used in the end.
        most_pairs: How many distinct experts all gates pick for a row at most, if that is known.

    Returns:
        The picks that stay.

    Example:
        >>> import torch
        >>> picks = torch.tensor([[[0]], [[0]], [[1]]], dtype=torch.int32)
        >>> weights = torch.tensor([[[0.2]], [[0.9]], [[0.5]]])
        >>> capacity = Capacity(0.5, priority="probability")  # 1 row for each of 2 experts
        >>> kept = drop_over_capacity(capacity, picks, weights, num_experts=2)
        >>> kept.experts_BGK.flatten().tolist(), int(kept.dropped)
        ([-1, 0, 1], 1)
    """
    B, G, K = experts_BGK.shape
    picks = G * min(K, k or K)
    picks = picks if most_pairs is None else min(picks, most_pairs)
    limit = capacity.limit(B, picks, num_experts)
    # Pairs, not picks, fill an expert: one that several gates share is computed once
    plan = ops.route_plan(experts_BGK, num_experts)
    places_P = _places(plan, _ranks(capacity.priority, plan, weights_BGK))
    # The entry at the end is for unused picks, and for a batch without pairs.
    keeps_P1 = torch.cat([places_P < limit, places_P.new_zeros(1, dtype=torch.bool)])
    kept_BGK = keeps_P1[plan.slots_BGK.long()]
    dropped = ((experts_BGK >= 0) & ~kept_BGK).sum()
    return Kept(torch.where(kept_BGK, experts_BGK, -1), dropped, limit)


def _ranks(priority: Priority, plan: ops.RoutePlan, weights_BGK: Tensor) -> Tensor | None:
    """A number for every pair; in an expert's queue small ones come first. None: all are equal."""
    if priority == "position":
        return None
    if priority == "probability":
        return -_pair_weights(plan, weights_BGK)
    pairs, K = plan.rows_P.shape[0], weights_BGK.shape[2]
    choice_K = torch.arange(K, dtype=torch.int32, device=plan.rows_P.device)
    # Entry `pairs` takes what unused picks write, and is cut off.
    slots_N = torch.where(plan.slots_BGK >= 0, plan.slots_BGK, pairs).flatten().long()
    best_P1 = choice_K.new_full((pairs + 1,), K)
    choices_N = choice_K.expand(plan.slots_BGK.shape).flatten()
    return best_P1.scatter_reduce(0, slots_N, choices_N, "amin")[:pairs]


def _places(plan: ops.RoutePlan, ranks_P: Tensor | None) -> Tensor:
    """Numbers every pair in its expert's queue, from 0 on."""
    expert_P = experts_of_pairs(plan)
    start_P = plan.offsets_E1[expert_P]
    place_P = torch.arange(expert_P.shape[0], device=expert_P.device) - start_P
    if ranks_P is None:
        return place_P
    # Stable, both: of equal ones the first of the batch stays; the second sort keeps the ranks'
    # order
    order_P = torch.argsort(ranks_P, stable=True)
    order_P = order_P[torch.argsort(expert_P[order_P], stable=True)]
    # Experts are in rising order again, so each one's queue stands where its pairs stand.
    return torch.empty_like(place_P).scatter(0, order_P, place_P)


def _pair_weights(plan: ops.RoutePlan, weights_BGK: Tensor) -> Tensor:
    """The weight of every pair, added up over the picks that share it, in a fixed order."""
    weights_BGK = weights_BGK.detach().to(ops.accumulate_dtype(weights_BGK.dtype))
    ones_BG1 = weights_BGK.new_ones(*weights_BGK.shape[:2], 1)
    # What a pair weighs is how much of its output goes into the mixtures: a gradient.
    zeros_P1 = weights_BGK.new_zeros(plan.rows_P.shape[0], 1)
    gradients = torch.ops.mmoe.gated_combine_backward(
        ones_BG1, zeros_P1, plan.slots_BGK, weights_BGK.contiguous()
    )
    return gradients[0].flatten()

"""`better_placement`: which experts should change ranks, by the rows that each computed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.mixture import DispatchPlan
from mmoe.parallel.experts.placement import ExpertPlacement

# What a rank's experts may take, over those of the fullest rank today
_ROOM = 1.1


class Balance(NamedTuple):
    """A placement that is better than the one before.

    Attributes:
        placement: The new one.
        moved: Experts that change ranks, in the order of their numbers.
        before: Load of the busiest rank over the mean of all, as it was.
        after: The same of the new placement.
    """

    placement: ExpertPlacement
    moved: tuple[int, ...]
    before: float
    after: float

    @property
    def gain(self) -> float:
        """Predicted speed-up of the busiest rank's experts."""
        return self.before / self.after


def better_placement(
    placement: ExpertPlacement,
    loads_E: Sequence[float],
    sizes_E: Sequence[float] | None = None,
    *,
    least_gain: float = 1.05,
) -> Balance | None:
    """Looks for a placement in which the busiest rank has less to compute.

    A step takes as long as its busiest rank: `max_r Σ_{e on r} load_e`. Each rank keeps as many
    experts as it has, and none needs a tenth more memory than the fullest one today.

    Two searches are made. From today's placement, experts of the busiest rank change places with
    those of others for as long as that helps, which moves few. Or all are dealt out anew, the
    largest load first, each to the rank that has least, and then change places; this one is taken
    where it is better by more than 2 %.

    Args:
        placement: Today's.
        loads_E: Of each expert; any unit, such as rows times parameters.
        sizes_E: Memory of each expert, in any unit; default: all are alike.
        least_gain: Below it nothing is moved.

    Returns:
        The better placement, the experts of each rank in the order of their numbers; None: there is
        none that gains so much.

    Raises:
        ValueError: Not one load for each expert.

    Example:
        >>> from mmoe.parallel import ExpertPlacement, better_placement
        >>> better = better_placement(ExpertPlacement.even(4, 2), [40, 30, 20, 10])
        >>> better.placement.experts, better.moved, round(better.gain, 2)
        (((1, 2), (0, 3)), (0, 2), 1.4)

    Source: Graham, "Bounds on multiprocessing timing anomalies" (SIAM J. Appl. Math. 1969), for the
        largest first.
    """
    E = placement.num_experts
    if len(loads_E) != E:
        raise ValueError(f"loads_E: expected one for each of {E} experts, got {len(loads_E)}")
    if sum(loads_E) <= 0:
        return None
    search = _Search(placement, loads_E, [1.0] * E if sizes_E is None else sizes_E)
    ranks = search.swapped(list(placement.ranks))
    dealt = search.dealt_out()
    if search.fits(dealt):
        # Dealing out anew moves nearly all experts: it has to be worth that
        anew = search.swapped(dealt)
        ranks = anew if search.busiest(anew) < 0.98 * search.busiest(ranks) else ranks
    found = search.balance(ranks)
    return found if found.gain >= least_gain else None


class _Search:
    """State that both searches share."""

    def __init__(
        self, placement: ExpertPlacement, loads_E: Sequence[float], sizes_E: Sequence[float]
    ) -> None:
        self.placement, self.loads_E, self.sizes_E = placement, list(loads_E), list(sizes_E)
        self.room = _ROOM * max(self.of_ranks(placement.ranks, self.sizes_E))

    def of_ranks(self, ranks_E: Sequence[int], values_E: Sequence[float]) -> list[float]:
        """The sum of each rank's."""
        sums = [0.0] * self.placement.num_ranks
        for value, rank in zip(values_E, ranks_E, strict=True):
            sums[rank] += value
        return sums

    def busiest(self, ranks_E: Sequence[int]) -> float:
        """The load of the rank that has most."""
        return max(self.of_ranks(ranks_E, self.loads_E))

    def fits(self, ranks_E: Sequence[int]) -> bool:
        """Returns whether no rank holds much more than the fullest one today."""
        return max(self.of_ranks(ranks_E, self.sizes_E)) <= self.room

    def dealt_out(self) -> list[int]:
        """Deals all experts out anew, the largest first."""
        places = [len(own) for own in self.placement.experts]
        sums, ranks_E = [0.0] * len(places), list(self.placement.ranks)
        # Equal loads by number: every rank searches for itself, and all must find the same
        for e in sorted(range(len(self.loads_E)), key=lambda e: (-self.loads_E[e], e)):
            old = ranks_E[e]  # of two that have as little, where it is
            free = (rank for rank, left in enumerate(places) if left)
            rank = min(free, key=lambda r: (sums[r], r != old, r))
            ranks_E[e] = rank
            places[rank] -= 1
            sums[rank] += self.loads_E[e]
        return ranks_E

    def swapped(self, ranks_E: list[int]) -> list[int]:
        """Experts of the busiest rank change places with others for as long as that helps."""
        for _ in range(len(ranks_E)):
            pair = self._best_swap(ranks_E)
            if pair is None:
                break
            e, f = pair
            ranks_E[e], ranks_E[f] = ranks_E[f], ranks_E[e]
        return ranks_E

    def balance(self, ranks_E: Sequence[int]) -> Balance:
        """Compares a placement with today's."""
        old, numbers = self.placement.ranks, range(self.placement.num_ranks)
        mean = float(sum(self.loads_E)) / len(numbers)
        held = (tuple(e for e, rank in enumerate(ranks_E) if rank == r) for r in numbers)
        moved = (e for e, rank in enumerate(ranks_E) if rank != old[e])
        return Balance(
            replace(self.placement, experts=tuple(held)),
            tuple(moved),
            self.busiest(old) / mean,
            self.busiest(ranks_E) / mean,
        )

    def _best_swap(self, ranks_E: Sequence[int]) -> tuple[int, int] | None:
        sums, held = self.of_ranks(ranks_E, self.loads_E), self.of_ranks(ranks_E, self.sizes_E)
        worst = sums.index(max(sums))
        # Better by more than rounding, or two experts could change places for ever
        best, pair = sums[worst] * (1 - 1e-9), None
        mine = [e for e, rank in enumerate(ranks_E) if rank == worst]
        others = [(f, rank) for f, rank in enumerate(ranks_E) if rank != worst]
        for e in mine:
            for f, rank in others:
                less = self.loads_E[e] - self.loads_E[f]
                after = max(sums[worst] - less, sums[rank] + less)
                smaller = self.sizes_E[e] - self.sizes_E[f]
                room = max(held[worst] - smaller, held[rank] + smaller) <= self.room
                if after < best and room:
                    best, pair = after, (e, f)
        return pair


class ExpertLoads:
    """Counts the rows of each expert, over the batches of this rank.

    A row that several gates pick an expert for is computed once, and counted once. Rows are counted
    while gradients are enabled: what is scored between epochs is no load of training.

    Args:
        num_experts: E; of slices, where experts are cut.

    Attributes:
        counts_E: int64, since the last `take`.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> loads = ExpertLoads(3)
        >>> picks = torch.tensor([[[0, 2], [2, -1]], [[2, 1], [1, 2]]], dtype=torch.int32)
        >>> weights = torch.ones(2, 2, 2)
        >>> loads.count(
        ...     DispatchPlan(
        ...         experts_BGK=picks,
        ...         weights_BGK=weights,
        ...         num_experts=3,
        ...         expert_source=(0, 0, 0),
        ...     )
        ... )
        >>> loads.take().tolist(), loads.take().tolist()
        ([1, 1, 2], [0, 0, 0])
    """

    def __init__(self, num_experts: int) -> None:
        self.counts_E = torch.zeros(num_experts, dtype=torch.int64)

    def count(self, plan: DispatchPlan) -> None:
        """Adds the distinct (row, expert) pairs of a batch; nothing waits for a GPU here."""
        if not torch.is_grad_enabled():
            return
        pairs_E = pairs_of_experts(plan)
        self.counts_E = self.counts_E.to(pairs_E.device) + pairs_E

    def take(self) -> Tensor:
        """Returns the counts, and begins anew."""
        counts_E, self.counts_E = self.counts_E, torch.zeros_like(self.counts_E)
        return counts_E


def pairs_of_experts(plan: DispatchPlan) -> Tensor:
    """Returns how many rows each expert is picked for, `[E]` int64: a row counts once."""
    picks_BP = plan.experts_BGK.flatten(1).long()
    # An unused pick, −1, goes to a column behind the last expert
    picks_BP = torch.where(picks_BP < 0, plan.num_experts, picks_BP)
    asked_BX = picks_BP.new_zeros(len(picks_BP), plan.num_experts + 1, dtype=torch.bool)
    asked_BX.scatter_(1, picks_BP, True)
    return asked_BX.sum(0)[:-1]

"""`better_placement`: which experts should change ranks, by the rows that each computed."""

from collections.abc import Sequence
from typing import NamedTuple

from mmoe.parallel.experts.placement import ExpertPlacement


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
        """How many times faster the busiest rank's experts are done, as predicted."""
        return self.before / self.after


def better_placement(
    placement: ExpertPlacement,
    loads_E: Sequence[float],
    kinds: Sequence[range] = (),
    *,
    least_gain: float = 1.05,
) -> Balance | None:
    """Looks for a placement in which the busiest rank has less to compute.

    A step takes as long as its busiest rank: `max_r Σ_{e on r} load_e`. Each rank keeps as many
    experts of each kind as it has, so that nobody needs more memory, and no tensor another shape.
    Two searches are made: from today's placement, experts of the busiest rank change places with
    those of others for as long as that helps, which moves few; or all are dealt out anew, the
    largest load first, each to the rank that has least, and then change places. The second one is
    taken where it is better by more than 2 %.

    Args:
        placement: Today's.
        loads_E: Of each expert; any unit, such as rows times parameters.
        kinds: Numbers of the experts of each kind, which alone can change places; default: one.
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
    total = float(sum(loads_E))
    if total <= 0:
        return None
    search = _Search(placement, loads_E, kinds or [range(E)])
    few, anew = search.swapped(list(placement.ranks)), search.swapped(search.dealt_out())
    ranks = anew if search.busiest(anew) < 0.98 * search.busiest(few) else few
    mean = total / placement.num_ranks
    before = search.busiest(list(placement.ranks)) / mean
    found = Balance(
        ExpertPlacement(
            tuple(
                tuple(e for e in range(E) if ranks[e] == rank)
                for rank in range(placement.num_ranks)
            )
        ),
        tuple(e for e in range(E) if ranks[e] != placement.ranks[e]),
        before,
        search.busiest(ranks) / mean,
    )
    return found if found.gain >= least_gain else None


class _Search:
    """What both searches know."""

    def __init__(
        self, placement: ExpertPlacement, loads_E: Sequence[float], kinds: Sequence[range]
    ) -> None:
        self.placement, self.loads_E = placement, [float(load) for load in loads_E]
        self.kind_E = [
            next(k for k, own in enumerate(kinds) if e in own) for e in range(len(loads_E))
        ]

    def of_ranks(self, ranks_E: Sequence[int]) -> list[float]:
        """The load of each rank."""
        sums = [0.0] * self.placement.num_ranks
        for load, rank in zip(self.loads_E, ranks_E, strict=True):
            sums[rank] += load
        return sums

    def busiest(self, ranks_E: Sequence[int]) -> float:
        """The load of the rank that has most."""
        return max(self.of_ranks(ranks_E))

    def dealt_out(self) -> list[int]:
        """All experts anew, the largest first."""
        room: dict[tuple[int, int], int] = {}
        for rank, kind in zip(self.placement.ranks, self.kind_E, strict=True):
            room[rank, kind] = room.get((rank, kind), 0) + 1
        sums, ranks_E = [0.0] * self.placement.num_ranks, list(self.placement.ranks)
        for e in sorted(range(len(self.loads_E)), key=lambda e: (-self.loads_E[e], e)):
            free = [rank for rank in range(len(sums)) if room.get((rank, self.kind_E[e]), 0)]
            old = self.placement.ranks[e]  # of two that have as little, where it is
            rank = min(free, key=lambda r: (sums[r], r != old, r))
            ranks_E[e] = rank
            room[rank, self.kind_E[e]] -= 1
            sums[rank] += self.loads_E[e]
        return ranks_E

    def swapped(self, ranks_E: list[int]) -> list[int]:
        """Experts of the busiest rank change places with others for as long as that helps."""
        ranks_E = list(ranks_E)
        for _ in range(len(ranks_E)):
            sums = self.of_ranks(ranks_E)
            worst = sums.index(max(sums))
            best, pair = sums[worst], None
            for e in (e for e, rank in enumerate(ranks_E) if rank == worst):
                for f, rank in enumerate(ranks_E):
                    less = self.loads_E[e] - self.loads_E[f]
                    if rank == worst or self.kind_E[e] != self.kind_E[f] or less <= 0:
                        continue
                    after = max(sums[worst] - less, sums[rank] + less)
                    if after < best * (1 - 1e-9):
                        best, pair = after, (e, f)
            if pair is None:
                break
            e, f = pair
            ranks_E[e], ranks_E[f] = ranks_E[f], ranks_E[e]
        return ranks_E

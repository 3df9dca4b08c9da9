"""Shadowed experts: their weights travel for a call, instead of the rows that picked them."""

import warnings
from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import DispatchPlan
from mmoe.mixture.experts.contract import pool_of
from mmoe.mixture.experts.lender import Lender, lender_of
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import Compute
from mmoe.parallel.experts.mode import Mode
from mmoe.parallel.experts.overlap import mix_here, split_picks
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.weights import begin_weights
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.object_collectives import from_all

RowsTravel = Callable[[Sequence[Tree], DispatchPlan, Compute], Tensor]
_ROWS_TRAVEL = (
    "shadowed: expected experts that differ in their weights alone (MLPExperts, or modules of one "
    "class, settings and shapes), whose kind every rank knows (pool.part), and that do not look at "
    "the batch (norm batch); their rows travel instead, which gives the same numbers"
)


class Shadowing:
    """Runs calls of which some experts are shadowed.

    The weights leave the ranks that hold them at once, and travel while the rows of the other
    experts do, forward, and so do their gradients backward:

        weights ──────────────────────────────────▶
        sizes, rows, others' rows, outputs           own rows by the copies    add

    Args:
        wire: The ranks.
        placement: Who holds which expert.

    Attributes:
        warned: Whether it was said that rows travel although experts were to be shadowed.
    """

    def __init__(self, wire: Wire, placement: ExpertPlacement) -> None:
        self._wire, self.warned = wire, False
        self.place(placement)

    def place(self, placement: ExpertPlacement) -> None:
        """Takes another placement; all ranks together."""
        self._placement = placement
        # Whether the experts of all ranks can be joined; asked once of every pool
        self._joinable: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def run(
        self,
        mode: Mode,
        sources: Sequence[Tree],
        plan: DispatchPlan,
        compute: Compute,
        rows_travel: RowsTravel,
    ) -> Tensor:
        """Mixes what this rank's rows get of the copies, and of the experts whose rows travel.

        Args:
            mode: Says which experts are shadowed.
            sources: S tensors `x_BD`.
            plan: The picks of all E experts.
            compute: Runs the experts of this rank.
            rows_travel: Does all that is asked of the other experts.

        Returns:
            `out_BGO` in the dtype of the rows.

        Raises:
            ValueError: An expert that there is not.
        """
        chosen = self._chosen(mode)
        lender = self._lender(compute)
        if lender is None:
            return rows_travel(sources, plan, compute)
        # In the order in which weights arrive, rank by rank
        order = [e for e in self._placement.order if e in chosen]
        # Before rows: weights travel while the others' rows do
        by_copies = self._begin(lender, chosen)
        rest, own = split_picks(plan, order)
        all_shadowed = len(order) == self._placement.num_experts
        others_BGO = None if all_shadowed else rows_travel(sources, rest, compute)
        out_BGO = mix_here(sources, own, by_copies())
        out_BGO = out_BGO.to(cast(Tensor, sources[plan.expert_source[0]]).dtype)
        return out_BGO if others_BGO is None else others_BGO + out_BGO

    def _begin(self, lender: Lender, chosen: frozenset[int]) -> Callable[[], Compute]:
        """Begins to copy weights; returns what waits for them, and makes a pool of them."""
        held = [[e for e in own if e in chosen] for own in self._placement.experts]
        places = self._placement.places
        taken = lender.take([places[e] for e in held[self._wire.rank]])
        counts = [len(own) for own in held]
        if not lender.formats:
            return lambda: lender.compute_by(sum(counts), {})
        names = [form.name for form in lender.formats]
        arrive = begin_weights(self._wire, lender.formats, counts, [taken[name] for name in names])
        return lambda: lender.compute_by(sum(counts), dict(zip(names, arrive(), strict=True)))

    def _chosen(self, mode: Mode) -> frozenset[int]:
        """The shadowed experts, as the placement numbers them."""
        slices = self._placement.slices
        experts = range(self._placement.num_experts // slices)
        if mode.shadowed == "all":
            return frozenset(range(self._placement.num_experts))
        if unknown := sorted(set(mode.shadowed) - set(experts)):
            raise ValueError(
                f"shadowed: expected experts from 0 to {len(experts) - 1}, got {unknown[0]}"
            )
        return frozenset(e * slices + s for e in mode.shadowed for s in range(slices))

    def _lender(self, compute: Compute) -> Lender | None:
        """The lender of this rank's experts; None on all ranks where those of some cannot be."""
        pool = pool_of(compute)
        lender = lender_of(pool)
        key = cast(nn.Module, pool if pool is not None else self)
        if key not in self._joinable:
            self._joinable[key] = self._agreed(lender)
        return lender if self._joinable[key] else None

    def _agreed(self, lender: Lender | None) -> bool:
        agreed = can_be_joined(lender, self._wire.group)
        if not agreed:
            self.warn_of_rows()
        return agreed

    def warn_of_rows(self) -> None:
        """Says, once, that the rows travel although experts were to be shadowed."""
        if not self.warned:
            warnings.warn(_ROWS_TRAVEL, stacklevel=2)
        self.warned = True


def can_be_joined(lender: Lender | None, group: dist.ProcessGroup | None) -> bool:
    """Returns whether the experts of all ranks can be joined; all ranks together."""
    said = from_all(None if lender is None else lender.structure(), group)
    return None not in said and len(set(said)) == 1

"""Dispatchers: carry rows to experts and back, here or to other ranks.

A dispatcher holds no parameters, so it is no module. The mixture hands it the rows and the picks of
all gates; whether the experts are here or on other ranks is the dispatcher's business alone.

`RankSums` are handed over likewise, to layers that look across the rows of a batch which ranks
share: the mixture never knows how they talk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mmoe.mixture.pytrees import Tree, gather_rows, mix_grouped, stack_sources
from mmoe.ops import RoutePlan, host_is_near, route_plan


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchPlan:
    """Decisions of all gates about one batch.

    Attributes:
        experts_BGK: The experts that gate g picked for sample b, int32; −1 = an unused pick.
        weights_BGK: How much of each.
        num_experts: E, over all ranks.
        expert_source: For each expert, which of the S input sources it reads.
        source_E: `source_places(expert_source)` on the picks' device; None: it is made here.
        routes: The plan of these picks, if it was made already.
        output_dim: O, what the experts return; None: not known.
        most_pairs: How many distinct experts a row has at most; None: any number.
    """

    experts_BGK: Tensor
    weights_BGK: Tensor
    num_experts: int
    expert_source: tuple[int, ...]
    source_E: Tensor | None = None
    routes: RoutePlan | None = None
    output_dim: int | None = None
    most_pairs: int | None = None

    @property
    def bound(self) -> int:
        """Most distinct experts of a row, by the shapes or as given."""
        G, K = self.experts_BGK.shape[1:]
        bounds = [G * K, self.num_experts]
        return min(bounds if self.most_pairs is None else [*bounds, self.most_pairs])


# Runs this rank's experts on what `Dispatcher.dispatch` returns, rows and offsets: `y_RO`.
Compute = Callable[[Tree, Tensor | None], Tree]


class Dispatcher(Protocol):
    """Interface of what moves rows to the experts of this rank, and outputs back.

    What else it may say of itself are `DispatcherTraits`, as `traits` or as attributes of their
    names: a mixture checks by them what it is given, and lets it `run` the experts.
    """

    def dispatch(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tree, Tensor | None, Any]:
        """Sends rows out; returns those for the experts here, sorted by expert.

        Args:
            sources: S tensors `x_BD`, or trees of tensors with B rows.
            plan: The picks.

        Returns:
            `rows_RD`, the rows that this rank's e experts compute, expert-major; `offsets_e1`,
            where each expert's rows start, int32; a handle for `combine`. Offsets of None: every
            expert computes all of the rows, which then come once.
        """
        ...

    def combine(self, y: Tree, handle: Any) -> Tree:
        """Brings outputs back: `out_BGO[b, g] = Σ_k weights[b, g, k] · y[pick]`.

        Args:
            y: Output of each row that `dispatch` returned, in that order.
            handle: That `dispatch` returned with them.
        """
        ...


def source_places(expert_source: Sequence[int]) -> Tensor:
    """Returns which of the sources that experts read each expert reads, int32.

    Example:
        >>> source_places([3, 0, 3]).tolist()
        [1, 0, 1]
    """
    read = sorted(set(expert_source))
    return torch.tensor([read.index(source) for source in expert_source], dtype=torch.int32)


class LocalHandle(NamedTuple):
    """State that `LocalDispatcher.combine` needs of a batch."""

    slots_BGK: Tensor
    weights_BGK: Tensor


class LocalDispatcher:
    """Dispatches where all experts are here: gathers rows, combines results.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan, LocalDispatcher
        >>> x_BD = torch.tensor([[1.0], [2.0]])
        >>> plan = DispatchPlan(
        ...     experts_BGK=torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32),
        ...     weights_BGK=torch.tensor([[[0.25, 0.75]], [[1.0, 0.0]]]),
        ...     num_experts=2,
        ...     expert_source=(0, 0),
        ... )
        >>> rows_RD, offsets, handle = LocalDispatcher().dispatch([x_BD], plan)
        >>> rows_RD.flatten().tolist(), offsets.tolist()
        ([1.0, 1.0, 2.0], [0, 1, 3])
        >>> LocalDispatcher().combine(10 * rows_RD, handle).flatten().tolist()
        [10.0, 20.0]
    """

    def dispatch(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tree, Tensor, LocalHandle]:
        """Gathers every distinct (sample, expert) pair once, however many gates picked it."""
        x, routes, handle = self.read(sources, plan)
        return gather_rows(x, routes), routes.offsets_E1, handle

    def read(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tree, RoutePlan, LocalHandle]:
        """Says what `dispatch` gathers: the rows, which of them each pair reads, and the handle."""
        routes = plan.routes
        if routes is None:
            routes = plan_routes(plan.experts_BGK, plan.num_experts, most_pairs=plan.most_pairs)
        handle = LocalHandle(routes.slots_BGK, plan.weights_BGK)
        # Of sources that nobody reads, as those of gates alone, no row is copied
        read = sorted(set(plan.expert_source))
        if len(read) == 1:
            return sources[read[0]], routes, handle
        source_E = plan.source_E
        if source_E is None:
            source_E = source_places(plan.expert_source).to(routes.rows_P.device)
        by_source = routes_by_source(routes, plan.experts_BGK, source_E, len(read))
        return stack_sources([sources[s] for s in read]), by_source, handle

    def combine(self, y: Tree, handle: LocalHandle) -> Tree:
        """Adds up the outputs that each gate asked for."""
        return mix_grouped(y, handle.slots_BGK, handle.weights_BGK)


def plan_routes(
    experts_BGK: Tensor, num_experts: int, limit: int | None = None, most_pairs: int | None = None
) -> RoutePlan:
    """Makes a `route_plan` with no more rows than are known to be needed.

    Args:
        experts_BGK: int32; −1 = unused.
        num_experts: E.
        limit: The most rows that an expert has, if that is known.
        most_pairs: The most distinct experts that a row has, if that is known.

    Returns:
        The plan. Its tail is cut off where the number of pairs can be read for nothing; elsewhere
        it has as many places as there can be pairs.

    Raises:
        ValueError: A row has more experts than `most_pairs` (where that can be read for nothing).

    Example:
        >>> import torch
        >>> picks = torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32)
        >>> plan_routes(picks, num_experts=2).rows_P.tolist()
        [0, 0, 1]
    """
    plan = route_plan(experts_BGK, num_experts)
    rows = experts_BGK.shape[0]
    if host_is_near(plan.offsets_E1):
        pairs = int(plan.offsets_E1[-1])
        if most_pairs is not None and pairs > rows * most_pairs:
            raise ValueError(
                f"gate: expected at most {most_pairs} distinct experts for a row, as it says, got "
                f"{pairs} for {rows} rows"
            )
        # Elsewhere the host would wait for the number, and the plan keeps a place for every
        # possible pair
        return plan._replace(rows_P=plan.rows_P[:pairs])
    if most_pairs is not None and most_pairs < num_experts:
        plan = plan._replace(rows_P=plan.rows_P[: rows * most_pairs])
    # A traced batch size stays free only where nothing is cut.
    if limit is not None and not torch.compiler.is_compiling():
        rows = min(plan.rows_P.shape[0], num_experts * limit)
        return plan._replace(rows_P=plan.rows_P[:rows])
    return plan


def experts_of_pairs(plan: RoutePlan) -> Tensor:
    """Returns the expert of every pair, int64; E in the tail."""
    pairs_P = torch.arange(plan.rows_P.shape[0], device=plan.rows_P.device, dtype=torch.int32)
    return torch.searchsorted(plan.offsets_E1[1:], pairs_P, right=True)


def padded_routes(plan: RoutePlan, experts_BGK: Tensor, width: int) -> RoutePlan:
    """Makes the plan with `width` rows an expert: pair i of e is row e · width + i.

    Args:
        plan: Of these picks; no expert has more than `width` rows.
        experts_BGK: The picks.
        width: C, rows for each expert.

    Returns:
        A plan of E · C rows; row −1 where an expert has fewer.

    Example:
        >>> import torch
        >>> picks = torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32)
        >>> padded = padded_routes(plan_routes(picks, num_experts=2), picks, width=2)
        >>> padded.rows_P.tolist(), padded.slots_BGK.flatten().tolist()
        ([0, -1, 0, 1], [0, 2, 3, -1])
    """
    device, num_experts = plan.rows_P.device, plan.offsets_E1.shape[0] - 1
    starts_E, ends_E = plan.offsets_E1[:-1], plan.offsets_E1[1:]
    pairs_EC = starts_E.unsqueeze(1) + torch.arange(width, device=device, dtype=torch.int32)
    pairs = plan.rows_P.shape[0]
    # Entry `pairs` stands for a place that no pair takes.
    rows_P1 = torch.cat([plan.rows_P, plan.rows_P.new_full((1,), -1)])
    rows_EC = rows_P1[torch.where(pairs_EC < ends_E.unsqueeze(1), pairs_EC, pairs)]
    offsets_E1 = width * torch.arange(num_experts + 1, device=device, dtype=torch.int32)
    # Each expert's rows move as a block, and so do the slots that point to them
    shift_E = offsets_E1[:-1] - starts_E
    shift_BGK = shift_E[experts_BGK.clamp(min=0).long()]
    slots_BGK = torch.where(plan.slots_BGK >= 0, plan.slots_BGK + shift_BGK, -1)
    return RoutePlan(rows_EC.flatten(), offsets_E1, slots_BGK)


def routes_by_source(
    plan: RoutePlan, experts_BGK: Tensor, source_E: Tensor, num_sources: int
) -> RoutePlan:
    """Makes the plan over stacked sources: row b · S + s is sample b of source s.

    Args:
        plan: Over samples.
        experts_BGK: The picks.
        source_E: Which source each expert reads, int32.
        num_sources: S.

    Returns:
        A plan over B · S rows that is good for gathering; the slots for combining are the old ones.
    """
    # The tail has expert E, which is no index; its rows are −1 anyhow
    expert_P = experts_of_pairs(plan).clamp(max=source_E.shape[0] - 1)
    rows_P = torch.where(plan.rows_P >= 0, plan.rows_P * num_sources + source_E[expert_P], -1)
    sources_S11 = torch.arange(num_sources, device=source_E.device).view(-1, 1, 1)
    source_BGK = source_E[experts_BGK.clamp(min=0).long()]
    # A pair's gradient belongs to the one source that its expert read
    slots_BSGK = torch.where(
        source_BGK.unsqueeze(1) == sources_S11, plan.slots_BGK.unsqueeze(1), -1
    )
    return RoutePlan(rows_P, plan.offsets_E1, slots_BSGK.flatten(0, 1))


class RankSums(Protocol):
    """Sums of amounts over ranks, where each rank has some rows of one batch.

    The loss is `L = Σ_r L_r`, the sum of what each rank calls `backward` on. Two kinds of sums
    differ in their gradient:

    - `of_losses`: every rank computes the same loss F(S) from the sums `S = Σ_r s_r`, and F counts
      once, not W times. So `dF/ds_r = F'(S)`, which every rank knows by itself.
    - `of_rows`: every rank's rows read the sums, so `dL/ds_r = Σ_q dL_q/dS`, a sum over ranks too.
    """

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Adds up losses and counts, of the types that came; no gradient between ranks."""
        ...

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Adds up what the rows of every rank read, of the types that came."""
        ...


class OneRank:
    """A `RankSums` of one process: every amount is its own sum."""

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Returns the amounts as they are."""
        return amounts

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Returns the amounts as they are."""
        return amounts


ONE_RANK = OneRank()

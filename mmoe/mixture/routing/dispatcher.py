"""How rows reach the experts and come back: the seam between the mixture and the ranks.

A dispatcher holds no parameters, so it is no module. The mixture hands it the rows and the picks of
all gates; whether the experts are here or on other ranks is the dispatcher's business alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture.pytrees import Tree, gather_rows, mix_grouped, stack_sources
from mmoe.mixture.routing.routes import plan_routes, routes_by_source


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchPlan:
    """What the gates decided about one batch.

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
    routes: ops.RoutePlan | None = None
    output_dim: int | None = None
    most_pairs: int | None = None

    @property
    def bound(self) -> int:
        """Number of distinct experts that a row has at most, by the shapes or as it was said."""
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
        """Brings outputs back: `out_BGO[b, g] = Σ_k weights[b, g, k] · y[pick]`."""
        ...


class OverlappingDispatcher(Dispatcher, Protocol):
    """Interface of a dispatcher that calls the experts itself."""

    def run(self, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tree:
        """Does what `dispatch`, `compute` and `combine` do one after the other."""
        ...


def source_places(expert_source: Sequence[int]) -> Tensor:
    """Returns which of the sources that experts read each expert reads, int32.

    Example:
        >>> from mmoe.mixture.routing.dispatcher import source_places
        >>> source_places([3, 0, 3]).tolist()
        [1, 0, 1]
    """
    read = sorted(set(expert_source))
    return torch.tensor([read.index(source) for source in expert_source], dtype=torch.int32)


class LocalHandle(NamedTuple):
    """What `LocalDispatcher.combine` needs of a batch."""

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
    ) -> tuple[Tree, ops.RoutePlan, LocalHandle]:
        """Says what `dispatch` gathers: the rows, which of them each pair reads, and the handle."""
        routes = plan.routes
        if routes is None:
            routes = plan_routes(plan.experts_BGK, plan.num_experts, most_pairs=plan.most_pairs)
        handle = LocalHandle(routes.slots_BGK, plan.weights_BGK)
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

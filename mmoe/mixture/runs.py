"""The three ways to run a pool for one batch's decision; all give the same numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from mmoe.mixture.experts.mlp_experts import Record
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.routing.dispatcher import Dispatcher, DispatchPlan, LocalDispatcher
from mmoe.mixture.routing.routes import padded_routes
from mmoe.mixture.statistics import dead_share
from mmoe.mixture.trees import Tree, join_rows, mix_dense, split_rows


class Run(NamedTuple):
    """What came of it.

    Attributes:
        out_BGO: One mix per gate.
        dead_share_E: Where it was asked for and can be told, else None.
    """

    out_BGO: Tree
    dead_share_E: Tensor | None


def run_dense(
    pool: Pool, inputs: Sequence[Tree], weights_BGE: Tensor, picked_BGE: Tensor | None
) -> Run:
    """Every expert on all rows, then one combine that reads each output once for all gates.

    Args:
        pool: The experts.
        inputs: One for all experts, or one per expert.
        weights_BGE: What each gate gives each expert.
        picked_BGE: Which experts each gate asked for, where dead units are to be counted.
    """
    extra, record = _record(pool, picked_BGE is not None)
    y = pool.dense(inputs, **extra)
    share_E = None
    if record is not None and picked_BGE is not None:
        masks = picked_BGE.any(1).unbind(1)
        share_E = dead_share(record, masks)
    return Run(mix_dense(y, weights_BGE), share_E)


def run_grouped(
    pool: Pool,
    dispatcher: Dispatcher,
    sources: Sequence[Tree],
    plan: DispatchPlan,
    statistics: bool,
) -> Run:
    """Each expert on the rows that some gate picked it for."""
    extra, record = _record(pool, statistics and isinstance(dispatcher, LocalDispatcher))

    def compute(rows: Tree, offsets_E1: Tensor | None) -> Tree:
        if offsets_E1 is None:
            return join_rows(pool.dense([rows]))
        return pool.grouped(rows, offsets_E1, **extra)

    run = getattr(dispatcher, "run", None)
    if run is not None and not getattr(pool, "uses_batch", False):
        return Run(run(sources, plan, compute), None)
    rows, offsets_E1, handle = dispatcher.dispatch(sources, plan)
    out_BGO = dispatcher.combine(compute(rows, offsets_E1), handle)
    share_E = None
    if record is not None:
        assert offsets_E1 is not None, "the local dispatcher tells where each expert's rows are"
        share_E = dead_share(record, offsets_E1)
    return Run(out_BGO, share_E)


def run_padded(
    pool: Pool, sources: Sequence[Tree], plan: DispatchPlan, width: int, statistics: bool
) -> Run:
    """Each expert on `width` rows, zeros where it has fewer: shapes that never change.

    Args:
        pool: The experts.
        sources: S inputs.
        plan: With its routes; no expert has more than `width` rows.
        width: C.
        statistics: Whether to count dead units.
    """
    assert plan.routes is not None
    dispatcher = LocalDispatcher()
    routes = padded_routes(plan.routes, plan.experts_BGK, width)
    padded = DispatchPlan(
        experts_BGK=plan.experts_BGK,
        weights_BGK=plan.weights_BGK,
        num_experts=plan.num_experts,
        expert_source=plan.expert_source,
        source_E=plan.source_E,
        routes=routes,
    )
    rows, _, handle = dispatcher.dispatch(sources, padded)
    extra, record = _record(pool, statistics)
    y = pool.dense(split_rows(rows, [width] * plan.num_experts), **extra)
    share_E = None
    if record is not None:
        masks = (routes.rows_P >= 0).view(plan.num_experts, width).unbind(0)
        share_E = dead_share(record, masks)
    return Run(dispatcher.combine(join_rows(y), handle), share_E)


def _record(pool: Pool, wanted: bool) -> tuple[dict[str, Any], Record | None]:
    """What to hand to the pool, so that it tells what its units gave."""
    if not wanted or not getattr(pool, "has_dead_units", False):
        return {}, None
    record: Record = []
    return {"record": record}, record

"""Builds modules of the sections of a `ModelConfig`: mixtures, experts, towers."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmoe.config import EXPERTS, TOWERS, ExpertConfig, ModelConfig
from mmoe.mixture import Capacity, MixedExperts, MLPExperts, MultiGateMixture, StackedExperts
from mmoe.mixture.experts.norm import ExpertBatchNorm
from mmoe.models.gates import build_gate
from mmoe.models.layout import Layout
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement
from mmoe.tasks import TaskTowers

BuiltPool = MLPExperts | StackedExperts | MixedExperts


def build_mixture(
    model: ModelConfig,
    layout: Layout,
    width: int,
    num_gates: int,
    num_experts: int,
    *,
    gate: nn.Module | None = None,
    visibility: Tensor | None = None,
    expert_source: Sequence[int] | None = None,
    gate_source: Sequence[int] | None = None,
    gate_tasks: Sequence[str | None] | None = None,
) -> MultiGateMixture:
    """Builds one level, whole or this rank's part of it.

    Spread experts start with the weights that they have on one process: every rank draws the whole
    pool, and keeps its part. So a level's pool must fit into the memory of a rank once, while it is
    built.

    Args:
        model: Experts, gates, capacity, execution.
        layout: Who holds the experts.
        width: D.
        num_gates: G.
        num_experts: E, over all ranks.
        gate: Default: the one that `model.gate` asks for.
        visibility: As in `MultiGateMixture`.
        expert_source: Likewise.
        gate_source: Likewise.
        gate_tasks: The task of each gate, None for one of several; default: not known.
    """
    pool, dispatcher = build_experts(model, width, num_experts), None
    if layout.spread:
        placement = ExpertPlacement.even(num_experts, layout.world_size)
        pool = pool.part(placement.on(layout.rank))
        dispatcher = AllToAllDispatcher(placement, wire_dtype=layout.wire_dtype)
    else:
        # A rank that has an expert alone sees all of its rows; with copies it does not
        for module in pool.modules():
            if isinstance(module, ExpertBatchNorm):
                module.ranks = layout.sums
    if gate is None:
        gate = build_gate(model, width, num_gates, num_experts, layout.sums, gate_tasks)
    return MultiGateMixture(
        width,
        num_gates,
        pool,
        gate=gate,
        visibility=visibility,
        expert_source=expert_source,
        gate_source=gate_source,
        execution=model.execution,
        dispatcher=dispatcher,
        capacity=build_capacity(model),
    )


def build_experts(model: ModelConfig, input_dim: int, num_experts: int) -> BuiltPool:
    """Builds `num_experts` experts as `model.expert` says, or those of `model.experts`.

    Raises:
        ValueError: They return rows of several widths, or do not say how wide theirs are.
    """
    pools = [_pool(expert, input_dim, n or num_experts) for expert, n in model.expert_kinds]
    if len(pools) == 1:
        return pools[0]
    names = [f"experts.{i} ({expert.kind})" for i, (expert, _) in enumerate(model.expert_kinds)]
    return MixedExperts(pools, names)


def _pool(config: ExpertConfig, input_dim: int, num_experts: int) -> MLPExperts | StackedExperts:
    """Experts of one kind."""
    build, keywords = EXPERTS.implementation(config), config.keywords()
    if config.makes_pools:
        return build(num_experts, input_dim, **keywords)
    pool = StackedExperts(build(input_dim, **keywords) for _ in range(num_experts))
    if pool.output_dim is None:
        raise ValueError(
            f"expert kind {config.kind}: its modules do not say how wide their output is; give "
            "them an attribute output_dim"
        )
    return pool


def build_capacity(model: ModelConfig) -> Capacity | None:
    """Returns the capacity that `model.capacity` says, or None."""
    return None if model.capacity is None else Capacity(**model.capacity.model_dump())


def build_towers(model: ModelConfig, num_tasks: int, input_dim: int | None) -> TaskTowers:
    """Builds a tower per task over outputs of the last experts' width."""
    assert input_dim is not None, "build_experts asks for it"
    build, keywords = TOWERS.implementation(model.tower), model.tower.keywords()
    return TaskTowers.of(build(input_dim, **keywords) for _ in range(num_tasks))


def pool_names(model: ModelConfig) -> list[str]:
    """Names the experts of one pool: a warm start finds them, and a report groups them.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> kinds = [{"kind": "mlp", "count": 2}, {"kind": "mlp", "count": 1, "norm": "layer"}]
        >>> pool_names(ModelConfig(experts=kinds))
        ['mlp 1 expert 1', 'mlp 1 expert 2', 'mlp 2 expert 1']
        >>> pool_names(ModelConfig(num_experts=2))
        ['expert 1', 'expert 2']
    """
    if model.experts is None:
        return numbered("expert", model.num_experts)
    kinds = [expert.kind for expert in model.experts]
    names: list[str] = []
    for i, expert in enumerate(model.experts):
        turn = f" {kinds[: i + 1].count(expert.kind)}" if kinds.count(expert.kind) > 1 else ""
        names += numbered(f"{expert.kind}{turn} expert", expert.count or 0)
    return names


def numbered(name: str, count: int) -> list[str]:
    """Returns the names `expert 1`, `expert 2` and so on."""
    return [f"{name} {number}" for number in range(1, count + 1)]

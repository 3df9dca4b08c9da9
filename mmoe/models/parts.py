"""From the sections of a `ModelConfig` to modules and settings: mixtures, experts, towers."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmoe.config import EXPERTS, TOWERS, ModelConfig
from mmoe.mixture import Capacity, ExpertPool, MLPExperts, MultiGateMixture
from mmoe.mixture.experts.norm import ExpertBatchNorm
from mmoe.models.gates import build_gate
from mmoe.models.layout import Layout
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement
from mmoe.tasks import TaskTowers


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
) -> MultiGateMixture:
    """One level, whole or this rank's part of it.

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
        gate = build_gate(model, width, num_gates, num_experts, layout.sums)
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


def build_experts(model: ModelConfig, input_dim: int, num_experts: int) -> MLPExperts | ExpertPool:
    """`num_experts` experts as `model.expert` says.

    Raises:
        ValueError: They are modules that do not say how wide their output is.
    """
    config = model.expert
    build, keywords = EXPERTS.implementation(config), config.keywords()
    if config.makes_pools:
        return build(num_experts, input_dim, **keywords)
    pool = ExpertPool(build(input_dim, **keywords) for _ in range(num_experts))
    if pool.output_dim is None:
        raise ValueError(
            f"expert kind {config.kind}: its modules do not say how wide their output is; give "
            "them an attribute output_dim"
        )
    return pool


def build_capacity(model: ModelConfig) -> Capacity | None:
    """The capacity that `model.capacity` says, or none."""
    return None if model.capacity is None else Capacity(**model.capacity.model_dump())


def build_towers(model: ModelConfig, num_tasks: int, input_dim: int | None) -> TaskTowers:
    """A tower per task over outputs of the last experts, `input_dim` wide."""
    assert input_dim is not None, "build_experts asks for it"
    build, keywords = TOWERS.implementation(model.tower), model.tower.keywords()
    return TaskTowers.of(build(input_dim, **keywords) for _ in range(num_tasks))


def numbered(name: str, count: int) -> list[str]:
    """The names `expert 1`, `expert 2` and so on."""
    return [f"{name} {number}" for number in range(1, count + 1)]

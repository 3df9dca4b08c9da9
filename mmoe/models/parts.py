"""From the sections of a `ModelConfig` to modules and settings: mixtures, experts, towers."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmoe.config.model import ModelConfig
from mmoe.mixture import Capacity, MLPExperts, MultiGateMixture
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
    elif model.expert.norm == "batch":
        # A rank that has an expert alone sees all of its rows; with copies it does not
        for norm in pool.norms:
            assert isinstance(norm, ExpertBatchNorm)
            norm.ranks = layout.sums
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


def build_experts(model: ModelConfig, input_dim: int, num_experts: int) -> MLPExperts:
    """`num_experts` MLPs as `model.expert` says."""
    last = model.expert.output_activation
    return MLPExperts(
        num_experts,
        input_dim,
        model.expert.hidden,
        activation=model.expert.activation,
        output_activation=None if last == "none" else last,
        norm=model.expert.norm,
        dropout=model.expert.dropout,
    )


def build_capacity(model: ModelConfig) -> Capacity | None:
    """The capacity that `model.capacity` says, or none."""
    return None if model.capacity is None else Capacity(**model.capacity.model_dump())


def build_towers(model: ModelConfig, num_tasks: int) -> TaskTowers:
    """A tower per task over outputs of the last experts' width."""
    return TaskTowers(
        num_tasks,
        model.expert.hidden[-1],
        model.tower.hidden,
        activation=model.tower.activation,
        dropout=model.tower.dropout,
    )


def numbered(name: str, count: int) -> list[str]:
    """The names `expert 1`, `expert 2` and so on."""
    return [f"{name} {number}" for number in range(1, count + 1)]

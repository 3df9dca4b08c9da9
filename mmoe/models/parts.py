"""From the sections of a `ModelConfig` to modules and settings: experts, capacity, towers."""

from mmoe.config.model import ModelConfig
from mmoe.mixture import Capacity, MLPExperts
from mmoe.tasks import TaskTowers


def build_experts(model: ModelConfig, input_dim: int, num_experts: int) -> MLPExperts:
    """`num_experts` MLPs as `model.expert` says."""
    return MLPExperts(
        num_experts,
        input_dim,
        model.expert.hidden,
        activation=model.expert.activation,
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

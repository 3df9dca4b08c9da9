"""From the sections of a `ModelConfig` to modules: experts, gates, towers."""

from torch import nn

from mmoe.config.model import ModelConfig
from mmoe.mixture import ExpertPool, SoftmaxGate, TopKGate, mlp_experts
from mmoe.tasks import TaskTowers


def build_experts(model: ModelConfig, input_dim: int, num_experts: int) -> ExpertPool:
    """`num_experts` MLPs as `model.expert` says."""
    return mlp_experts(
        num_experts,
        input_dim,
        model.expert.hidden,
        activation=model.expert.activation,
        dropout=model.expert.dropout,
    )


def build_gate(model: ModelConfig, input_dim: int, num_gates: int, num_experts: int) -> nn.Module:
    """The gates that `model.gate` asks for."""
    sizes = (input_dim, num_gates, num_experts)
    hidden, temperature = model.gate.hidden, model.gate.temperature
    if model.gate.kind == "softmax":
        return SoftmaxGate(*sizes, hidden=hidden, temperature=temperature)
    return TopKGate(*sizes, k=model.gate.k, hidden=hidden, temperature=temperature)


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

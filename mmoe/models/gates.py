"""From the `gate` section of a `ModelConfig` to a gate module."""

from torch import nn

from mmoe.config.model import GateConfig, ModelConfig
from mmoe.mixture import (
    CosineGate,
    DSelectKGate,
    GateOptions,
    GShardGate,
    NoisyTopKGate,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    SwitchGate,
    TopKGate,
)
from mmoe.mixture.rank_sums import ONE_RANK, RankSums


def build_gate(
    model: ModelConfig,
    input_dim: int,
    num_gates: int,
    num_experts: int,
    ranks: RankSums = ONE_RANK,
) -> nn.Module:
    """The gates that `model.gate` asks for; their losses are those of all `ranks`' rows.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models.gates import build_gate
        >>> model = ModelConfig(gate={"kind": "cosine", "k": 3, "dropout": 0.1})
        >>> gate = build_gate(model, input_dim=20, num_gates=2, num_experts=8)
        >>> type(gate).__name__, gate.k, gate.options.dropout
        ('CosineGate', 3, 0.1)
    """
    gate, sizes = model.gate, (input_dim, num_gates, num_experts)
    options = _options(gate, ranks)
    if gate.kind == "softmax":
        return SoftmaxGate(*sizes, **options)
    if gate.kind == "switch":
        return SwitchGate(*sizes, jitter=gate.jitter, **options)
    if gate.kind == "gshard":
        return GShardGate(*sizes, **options)
    if gate.kind == "static":
        return StaticGate(num_gates, num_experts, k=gate.k, softmax=gate.softmax, **options)
    return _gate_with_k(gate, sizes, options)


def _gate_with_k(gate: GateConfig, sizes: tuple[int, int, int], options: GateOptions) -> nn.Module:
    k = gate.picks
    assert k is not None, "the config gives these kinds a k"
    if gate.kind == "noisy_top_k":
        return NoisyTopKGate(
            *sizes,
            k=k,
            importance_loss=gate.importance_loss,
            load_loss=gate.load_loss,
            **options,
        )
    if gate.kind == "cosine":
        projection_dim = gate.projection_dim
        return CosineGate(
            *sizes, k=k, projection_dim=projection_dim, softmax=gate.softmax, **options
        )
    if gate.kind == "sigmoid":
        return SigmoidGate(
            *sizes, k=k, normalize=gate.normalize, bias_speed=gate.bias_speed, **options
        )
    if gate.kind == "dselect_k":
        return DSelectKGate(
            sizes[0] if gate.per_sample else None,
            *sizes[1:],
            k=k,
            gamma=gate.gamma,
            entropy_loss=gate.entropy_loss,
            code_loss=gate.code_loss,
            **options,
        )
    return TopKGate(*sizes, k=k, softmax=gate.softmax, **options)


def _options(gate: GateConfig, ranks: RankSums) -> GateOptions:
    options: GateOptions = {
        "hidden": gate.hidden,
        "temperature": gate.temperature,
        "dropout": gate.dropout,
        "z_loss": gate.z_loss,
        "balance_scope": gate.balance_scope,
        "ranks": ranks,
    }
    if gate.balance_loss is not None:  # else the gate's own default holds
        options["balance_loss"] = gate.balance_loss
    return options

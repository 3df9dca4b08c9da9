"""Builds a gate of the `gate` section of a `ModelConfig`."""

from typing import Any

from torch import nn

from mmoe.config import GATES, LearnedGateConfig, ModelConfig
from mmoe.mixture import DSelectKGate, StaticGate
from mmoe.mixture.rank_sums import ONE_RANK, RankSums


def build_gate(
    model: ModelConfig,
    input_dim: int,
    num_gates: int,
    num_experts: int,
    ranks: RankSums = ONE_RANK,
) -> nn.Module:
    """Builds the gates that `model.gate` asks for; losses are those of all `ranks`' rows.

    What implements their kind is called with the three sizes and the section's keys; where these
    are the options of learned gates, `ranks` is among them.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models.gates import build_gate
        >>> model = ModelConfig(gate={"kind": "cosine", "k": 3, "dropout": 0.1})
        >>> gate = build_gate(model, input_dim=20, num_gates=2, num_experts=8)
        >>> type(gate).__name__, gate.k, gate.options.dropout
        ('CosineGate', 3, 0.1)
    """
    keywords = model.gate.keywords()
    if isinstance(model.gate, LearnedGateConfig):
        keywords["ranks"] = ranks
    return GATES.implementation(model.gate)(input_dim, num_gates, num_experts, **keywords)


def static_gate(input_dim: int, num_gates: int, num_experts: int, **keywords: Any) -> StaticGate:
    """Builds a static gate, which reads no input."""
    return StaticGate(num_gates, num_experts, **keywords)


def dselect_k_gate(
    input_dim: int, num_gates: int, num_experts: int, *, per_sample: bool, **keywords: Any
) -> DSelectKGate:
    """Builds a DSelect-k gate, which reads no input where tasks choose once for all samples."""
    return DSelectKGate(input_dim if per_sample else None, num_gates, num_experts, **keywords)

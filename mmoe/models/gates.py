"""Builds a gate of the `gate` section of a `ModelConfig`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from mmoe.config import GATES, GateConfig, LearnedGateConfig, ModelConfig
from mmoe.config.gates import SelectingGateConfig
from mmoe.mixture import DSelectKGate, Selection, StaticGate
from mmoe.mixture.gates.select import Selector
from mmoe.mixture.rank_sums import ONE_RANK, RankSums


def build_gate(
    model: ModelConfig,
    input_dim: int,
    num_gates: int,
    num_experts: int,
    ranks: RankSums = ONE_RANK,
    tasks: Sequence[str | None] | None = None,
    first: nn.Module | None = None,
) -> nn.Module:
    """Builds the gates that `model.gate` asks for; losses are those of all `ranks`' rows.

    What implements their kind is called with the three sizes and the section's keys; where these
    are the options of learned gates, `ranks` is among them. Where gates decide together, those of
    `tasks` that `select_voters` does not name have no vote; None: gates of no single task, which
    have one. Where they join those of `first`, which were there before, they have none at all.

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
    selection = _selection(model.gate, tasks)
    if selection is not None and first is not None:
        there = cast(Selector, first.select)
        votes = there.selection.votes or [1.0] * len(there.votes_G)
        selection = replace(selection, votes=(*votes, *[0.0] * num_gates))
    if selection is not None:
        keywords["selection"] = selection
    return GATES.implementation(model.gate)(input_dim, num_gates, num_experts, **keywords)


def _selection(gate: GateConfig, tasks: Sequence[str | None] | None) -> Selection | None:
    """How the gates decide together, if they do."""
    said = gate.selection() if isinstance(gate, SelectingGateConfig) else None
    if said is None:
        return None
    assert isinstance(gate, SelectingGateConfig)
    votes, voters = None, gate.select_voters
    if voters is not None and tasks is not None:
        votes = tuple(float(task is None or task in voters) for task in tasks)
    return Selection(votes=votes, **said)


def static_gate(input_dim: int, num_gates: int, num_experts: int, **keywords: Any) -> StaticGate:
    """Builds a static gate, which reads no input."""
    return StaticGate(num_gates, num_experts, **keywords)


def dselect_k_gate(
    input_dim: int, num_gates: int, num_experts: int, *, per_sample: bool, **keywords: Any
) -> DSelectKGate:
    """Builds a DSelect-k gate, which reads no input where tasks choose once for all samples."""
    return DSelectKGate(input_dim if per_sample else None, num_gates, num_experts, **keywords)

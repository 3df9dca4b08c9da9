"""Checks of a mixture's settings and of what its gate returns: every failure is a ValueError."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.mixture.gates import GateOutput


def check_visibility(
    visibility: Tensor | Sequence[Sequence[bool]] | None, num_gates: int, num_experts: int
) -> Tensor:
    """`visibility_GE` as a bool tensor; every gate sees an expert and every expert is seen."""
    if num_gates < 1:
        raise ValueError(f"num_gates: expected 1 or more, got {num_gates}")
    if visibility is None:
        return torch.ones(num_gates, num_experts, dtype=torch.bool)
    matrix_GE = torch.as_tensor(visibility).bool()
    if matrix_GE.dim() != 2 or len(matrix_GE) != num_gates:
        raise ValueError(
            f"visibility: expected a [gates, experts] matrix with {num_gates} rows, one per gate, "
            f"got shape {list(matrix_GE.shape)}"
        )
    for g, row in enumerate(matrix_GE):
        if not row.any():
            raise ValueError(f"visibility: gate {g} sees no expert; every gate needs one or more")
    for e, column in enumerate(matrix_GE.T):
        if not column.any():
            raise ValueError(
                f"visibility: no gate sees expert {e}; remove it, or show it to a gate"
            )
    return matrix_GE


def check_source(name: str, source: Sequence[int] | None, count: int, what: str) -> tuple[int, ...]:
    """Source numbers as a tuple; default: all read source 0."""
    source = (0,) * count if source is None else tuple(source)
    if len(source) != count or min(source) < 0:
        raise ValueError(
            f"{name}: expected {count} source numbers from 0 on, one per {what}, got {list(source)}"
        )
    return source


def check_decision(decision: GateOutput, rows_gates_experts: tuple[int, int, int]) -> None:
    """Refuses weights or picks of a shape that no gate of this mixture may return."""
    rows, num_gates, num_experts = rows_gates_experts
    weights, experts = decision.weights, decision.experts
    if weights.dim() != 3 or weights.shape[:2] != (rows, num_gates):
        raise ValueError(
            f"gate: expected weights of shape [{rows}, {num_gates}, …] (rows, gates), "
            f"got {list(weights.shape)}"
        )
    if experts is None and weights.shape[2] != num_experts:
        raise ValueError(
            f"gate: expected a weight for each of {num_experts} experts, got {weights.shape[2]}; "
            "a gate that picks experts must return the picks as well"
        )
    if experts is not None and experts.shape != weights.shape:
        raise ValueError(
            "gate: expected as many picks as weights, got shapes "
            f"{list(experts.shape)} and {list(weights.shape)}"
        )

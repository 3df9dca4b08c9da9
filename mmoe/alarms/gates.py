"""Alarms: an expert that no gate uses, and gates that choose always the same or not at all."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmoe.alarms.alarm import Alarm

# In parts of the even share, 1 / experts that the gate sees: less is a fiftieth of what an
# untrained gate gives. Healthy runs on the bundled data keep a tenth and more.
_DEAD = 0.02
# Weight of one expert over all rows, beyond which the others hardly reach the task
_ALWAYS = 0.99
# Nats that a gate is away from even weights, row by row: a new gate is some 0.01 to 0.1 away, so
# one that has learnt anything is not nearer
_EVEN = 1e-4
# Rows that an expert would get of even gates; fewer tell nothing
_FEWEST_ROWS = 100

_DEAD_UNITS = (
    "its units are dead: a lower learning rate, less weight decay or another activation "
    "(model.expert.activation), then train anew"
)


def gate_alarms(
    levels: Sequence[Mapping[str, Any]], constant: Sequence[tuple[int, str]] = ()
) -> list[Alarm]:
    """Finds dead experts and gates, level by level.

    Args:
        levels: `GateStatistics.summary()` of learned gates that read their input.
        constant: Level and name of each expert whose output is one and the same for all rows.
    """
    found: list[Alarm] = []
    for entry in levels:
        name = f" of level {entry['level']}" if len(levels) > 1 else ""
        weight_GE = np.array(entry["mean_weight"], np.float64)
        share_GE = weight_GE / np.maximum(weight_GE.sum(axis=1, keepdims=True), 1e-300)
        visible_GE = np.array(entry["visible"], bool)
        picks = max(min(entry["effective_experts"]), 1.0)  # of a gate for one row
        if entry["samples"] * picks / share_GE.shape[1] < _FEWEST_ROWS:
            continue
        found += _dead_experts(entry, share_GE, visible_GE, name)
        found += _gates(entry, share_GE, visible_GE, name)
    for level, expert in constant:
        name = f" of level {level}" if len(levels) > 1 else ""
        finding = f"{expert}{name} gives the same output for every row"
        found.append(Alarm(kind="dead_expert", about=expert, finding=finding, mend=_DEAD_UNITS))
    return found


def _dead_experts(
    entry: Mapping[str, Any], share_GE: np.ndarray, visible_GE: np.ndarray, name: str
) -> list[Alarm]:
    even_G1 = 1 / np.maximum(visible_GE.sum(axis=1, keepdims=True), 1)
    used_GE = visible_GE & (share_GE >= _DEAD * even_G1)
    dead = np.flatnonzero(visible_GE.any(axis=0) & ~used_GE.any(axis=0))
    return [
        Alarm(
            kind="dead_expert",
            about=entry["experts"][e],
            finding=f"{entry['experts'][e]}{name} is used by no gate (at most "
            f"{share_GE[visible_GE[:, e], e].max():.2%} of a gate's weight)",
            mend="it computes for nothing: fewer experts (model.num_experts), or even loads "
            "(model.gate.balance_loss: 0.01), then train anew",
        )
        for e in dead
    ]


def _gates(
    entry: Mapping[str, Any], share_GE: np.ndarray, visible_GE: np.ndarray, name: str
) -> list[Alarm]:
    found = []
    for g, gate in enumerate(entry["gates"]):
        seen = int(visible_GE[g].sum())
        if seen < 2:
            continue
        first = int(share_GE[g].argmax())
        if share_GE[g, first] > _ALWAYS:
            finding = (
                f"the gate of {gate}{name} always takes {entry['experts'][first]} "
                f"({share_GE[g, first]:.1%} of its weight)"
            )
            mend = (
                "the task learns from no other expert: a lower learning rate, model.gate.dropout: "
                "0.1 or model.gate.balance_loss: 0.01; if it wants nothing else, single_task is "
                "as good"
            )
        elif np.log(seen) - entry["entropy"][g] < _EVEN:
            finding = (
                f"the gate of {gate}{name} weighs all {seen} experts evenly for every row, as "
                "if it had not been trained"
            )
            mend = "train longer or at a higher rate; if it stays so, shared_bottom is as good"
        else:
            continue
        found.append(Alarm(kind="gate", about=gate, finding=finding, mend=mend))
    return found

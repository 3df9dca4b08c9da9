"""Logs that nobody's rules were made on: invented ones of many kinds, and real ones."""

from benchmarks.first_try.logs import (
    additive,
    deep,
    factors,
    memory,
    moving,
    numbers,
    shared,
    trees,
)
from benchmarks.first_try.logs.real import NAMES, Held, held_logs
from benchmarks.first_try.logs.worlds import (
    EITHER,
    GENERATED,
    ID,
    LIST,
    MOMENT,
    TIME,
    VECTOR,
    Generated,
    Kinds,
    Log,
    Value,
    hashes,
    zipf,
)

_FAMILIES = (
    additive,
    trees,
    factors,
    shared,
    numbers,
    moving,
    deep,
    memory,
)  # in the order of LOGS
LOGS = GENERATED
# Families from before regressions and times; `real` are Census-Income and Hillstrom
OLD = frozenset({"additive", "trees", "factors", "shared", "real"})
# Whose every task has interactions that a wide part cannot hold: experts have something to learn
INTERACTING = frozenset({
    "insurance", "sensors", "households", "shop", "songs", "jobs", "funnel",
    "parcels", "valves", "earners", "accounts",
})  # fmt: skip

__all__ = [
    "EITHER",
    "GENERATED",
    "ID",
    "INTERACTING",
    "LIST",
    "LOGS",
    "MOMENT",
    "NAMES",
    "OLD",
    "TIME",
    "VECTOR",
    "Generated",
    "Held",
    "Kinds",
    "Log",
    "Value",
    "hashes",
    "held_logs",
    "zipf",
]  # fmt: skip

"""Logs that nobody's rules were made on: invented ones of many kinds, and real ones."""

from benchmarks.first_try.logs import binary, later  # noqa: F401 - they register theirs, in the order of LOGS
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
    hashes,
    zipf,
)

LOGS = GENERATED
Log = Generated | Held

# Families from before regressions and times; `real` are Census-Income and Hillstrom
OLD = frozenset({"additive", "trees", "factors", "shared", "real"})
# Whose every task has interactions that a wide part cannot hold: experts have something to learn
INTERACTING = frozenset({
    "insurance", "sensors", "households", "shop", "songs", "jobs", "funnel",
    "parcels", "valves", "earners", "accounts",
})  # fmt: skip

__all__ = [
    "EITHER", "ID", "INTERACTING", "LIST", "LOGS", "MOMENT", "NAMES", "OLD", "TIME", "VECTOR",
    "Kinds", "Log", "hashes", "held_logs", "zipf",
]  # fmt: skip

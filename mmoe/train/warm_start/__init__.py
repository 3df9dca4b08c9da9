"""Warm starts: yesterday's model continued on today's data.

`EarlierRun` reads a run and says whether a config can continue it; `transfer` copies its weights
and optimizer state into a new state, entry by entry, by the names of features, tasks and experts.
"""

from mmoe.train.warm_start.earlier import EarlierRun, WarmStart, WarmStartReport
from mmoe.train.warm_start.transfer import transfer

__all__ = ["EarlierRun", "WarmStart", "WarmStartReport", "transfer"]

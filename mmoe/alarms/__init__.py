"""Alarms: what is wrong with a run that its metrics do not say by themselves; NumPy alone.

Each check is a function from arrays to `Alarm`s; `mmoe.train.alarms` hands it the arrays and says
what comes back. Thresholds stand above each check with their reasons.
"""

from mmoe.alarms.alarm import Alarm, lines_of
from mmoe.alarms.columns import Column, TrainingColumns
from mmoe.alarms.data import Effect, drifts, leaks_in, rare_ids, repeated_rows, shift_of
from mmoe.alarms.distribution import Distribution, PredictedFile, predicted_file
from mmoe.alarms.gates import gate_alarms
from mmoe.alarms.tasks import (
    adds_nothing,
    alarm_of_explosion,
    exploded_losses,
    label_deviation,
    same_predictions,
    tasks_outdone,
    wrong_level,
)

__all__ = [
    "Alarm",
    "Column",
    "Distribution",
    "Effect",
    "PredictedFile",
    "TrainingColumns",
    "adds_nothing",
    "alarm_of_explosion",
    "drifts",
    "exploded_losses",
    "gate_alarms",
    "label_deviation",
    "leaks_in",
    "lines_of",
    "predicted_file",
    "rare_ids",
    "repeated_rows",
    "same_predictions",
    "shift_of",
    "tasks_outdone",
    "wrong_level",
]

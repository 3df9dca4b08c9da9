"""Alarms: what is wrong with a run that its metrics do not say by themselves; NumPy alone.

Each check is a function in a file of its own, from arrays to `Alarm`s; `mmoe.train.alarms` hands it
the arrays and says what comes back. Thresholds stand at the top of each file with their reasons.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.alarms.alarm import Alarm, lines_of
    from mmoe.alarms.calibration import label_deviation, wrong_level
    from mmoe.alarms.column import Column
    from mmoe.alarms.distribution import Distribution, PredictedFile, predicted_file
    from mmoe.alarms.drift import drifts, rare_ids
    from mmoe.alarms.exploded import alarm_of_explosion, exploded_losses
    from mmoe.alarms.gates import gate_alarms
    from mmoe.alarms.leaks import leaks_in
    from mmoe.alarms.outdone import adds_nothing, tasks_outdone
    from mmoe.alarms.predictions import same_predictions
    from mmoe.alarms.profile import TrainingColumns
    from mmoe.alarms.repeats import Effect, repeated_rows

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
    "tasks_outdone",
    "wrong_level",
]

__getattr__ = lazily(
    __name__,
    {
        "alarm": ["Alarm", "lines_of"],
        "calibration": ["label_deviation", "wrong_level"],
        "column": ["Column"],
        "distribution": ["Distribution", "PredictedFile", "predicted_file"],
        "drift": ["drifts", "rare_ids"],
        "exploded": ["alarm_of_explosion", "exploded_losses"],
        "gates": ["gate_alarms"],
        "leaks": ["leaks_in"],
        "outdone": ["adds_nothing", "tasks_outdone"],
        "predictions": ["same_predictions"],
        "profile": ["TrainingColumns"],
        "repeats": ["Effect", "repeated_rows"],
    },
)

"""What a run hands to `mmoe.alarms`, and what it does with what comes back.

`learn_columns` looks at the training rows, `Watch` at the rows that are evaluated,
as they pass.
"""

from mmoe.train.alarms.learnt import learn_columns
from mmoe.train.alarms.sampled import SampledTraining
from mmoe.train.alarms.watch import Watch, alarms_of_metrics, say_alarms, with_levels

__all__ = [
    "SampledTraining",
    "Watch",
    "alarms_of_metrics",
    "learn_columns",
    "say_alarms",
    "with_levels",
]

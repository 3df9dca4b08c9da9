"""Tasks: what is predicted, where its label comes from, on which rows it exists."""

from mmoe.config.tasks.base import TaskConfig, further_columns, prediction_columns
from mmoe.config.tasks.d2q import D2QTask
from mmoe.config.tasks.entire_space import EntireSpaceTask, entire_space_tasks, refuse_sampled
from mmoe.config.tasks.grouped import BprTask, GroupedTask, JrcTask, SoftmaxTask, group_of
from mmoe.config.tasks.levels import MulticlassTask, OrdinalTask
from mmoe.config.tasks.plain import BinaryTask, NumberTask, RegressionTask
from mmoe.config.tasks.registry import TASKS
from mmoe.config.tasks.relations import check_relations, order_of, parents_of
from mmoe.config.tasks.transfer import TRANSFERS, TransferConfig
from mmoe.config.tasks.values import HuberTask, WatchTimeTask, ZilnTask

__all__ = [
    "TASKS",
    "TRANSFERS",
    "BinaryTask",
    "BprTask",
    "D2QTask",
    "EntireSpaceTask",
    "GroupedTask",
    "HuberTask",
    "JrcTask",
    "MulticlassTask",
    "NumberTask",
    "OrdinalTask",
    "RegressionTask",
    "SoftmaxTask",
    "TaskConfig",
    "TransferConfig",
    "WatchTimeTask",
    "ZilnTask",
    "check_relations",
    "entire_space_tasks",
    "further_columns",
    "group_of",
    "order_of",
    "parents_of",
    "prediction_columns",
    "refuse_sampled",
]

"""`TASKS`: the kinds of tasks. One is a class with its own keys, and a line here."""

from typing import Any

from mmoe.config.kinds import Kinds
from mmoe.config.tasks.base import TaskConfig
from mmoe.config.tasks.d2q import D2QTask
from mmoe.config.tasks.entire_space import EntireSpaceTask
from mmoe.config.tasks.grouped import BprTask, JrcTask, SoftmaxTask
from mmoe.config.tasks.levels import MulticlassTask, OrdinalTask
from mmoe.config.tasks.plain import BinaryTask, RegressionTask
from mmoe.config.tasks.values import HuberTask, WatchTimeTask, ZilnTask
from mmoe.metrics.task_kinds import TaskKind, add_kind, remove_kind


class _Tasks(Kinds[TaskConfig]):
    """Each is trained by an `Objective` (torch) and judged by the `TaskKind` in `KINDS` (NumPy)."""

    def add(
        self,
        kind: str,
        config_class: type[TaskConfig],
        implementation: Any,
        judge: TaskKind | None = None,
    ) -> None:
        """Makes a kind known, with a judge that is not in `KINDS` yet.

        Raises:
            ValueError: There is such a kind, the class is not one of this name, or the judge turns
                a metric round.
        """
        super().add(kind, config_class, implementation)
        try:
            if judge is not None:
                add_kind(kind, judge)
        except Exception:  # whatever is wrong with the judge, it is mended and added once more
            super().remove(kind)
            raise

    def remove(self, kind: str) -> None:
        """Forgets a kind, and its judge."""
        super().remove(kind)
        remove_kind(kind)


TASKS = _Tasks("task", TaskConfig, default="binary")
TASKS.add("binary", BinaryTask, "mmoe.tasks.kinds.binary:Binary")
TASKS.add("regression", RegressionTask, "mmoe.tasks.kinds.regression:Regression")
TASKS.add("entire_space", EntireSpaceTask, "mmoe.tasks.kinds.entire_space:EntireSpace")
TASKS.add("huber", HuberTask, "mmoe.tasks.kinds.huber:Huber")
TASKS.add("watch_time", WatchTimeTask, "mmoe.tasks.kinds.watch_time:WatchTime")
TASKS.add("ziln", ZilnTask, "mmoe.tasks.kinds.ziln:Ziln")
TASKS.add("multiclass", MulticlassTask, "mmoe.tasks.kinds.multiclass:Multiclass")
TASKS.add("ordinal", OrdinalTask, "mmoe.tasks.kinds.ordinal:Ordinal")
TASKS.add("d2q", D2QTask, "mmoe.tasks.kinds.d2q:D2Q")
TASKS.add("bpr", BprTask, "mmoe.tasks.kinds.grouped:Bpr")
TASKS.add("softmax", SoftmaxTask, "mmoe.tasks.kinds.grouped:Softmax")
TASKS.add("jrc", JrcTask, "mmoe.tasks.kinds.grouped:Jrc")

"""Metrics that a task names, beside those that its kind always has."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mmoe.config.kinds import HasKinds, Kinds
from mmoe.metrics.columns import NAMED_COLUMNS
from mmoe.metrics.ranking import Ndcg, Recall
from mmoe.metrics.task_kinds import HIGHER_IS_BETTER, KINDS


class MetricConfig(HasKinds):
    """A metric beside those that the task's kind always has."""

    if TYPE_CHECKING:
        kind: Any


_K = "so many rows of each group of data.group_column count: those scored best"


class NdcgConfig(MetricConfig):
    """NDCG@k by group, the mean over groups with a positive row, each counted once."""

    kind: Literal["ndcg"] = "ndcg"
    k: int = Field(default=10, ge=1, le=1_000_000, description=_K)


class RecallConfig(MetricConfig):
    """Recall@k by group, the mean over groups with a positive row, each counted once."""

    kind: Literal["recall"] = "recall"
    k: int = Field(default=10, ge=1, le=1_000_000, description=_K)


class _Metrics(Kinds[MetricConfig]):
    """Each is implemented by a `NamedMetric`; what tables and `monitor` know of it is NumPy's."""

    def add(self, kind: str, config_class: type[MetricConfig], implementation: Any) -> None:
        """Makes a metric known.

        Raises:
            ValueError: There is such a metric, or the classes are not those of one of this name.
        """
        column, higher_is_better = implementation.column, implementation.higher_is_better
        if any(kind in task_kind.keys for task_kind in KINDS.values()):
            raise ValueError(f"metric {kind!r}: a kind of task has it already; choose another name")
        if column.key != kind:
            raise ValueError(
                f"metric {kind!r}: the key of {implementation.__name__}.column is {column.key!r}; "
                "it has to be the name, under which metrics.json has the value"
            )
        super().add(kind, config_class, implementation)
        NAMED_COLUMNS[kind] = replace(column, optional=True)  # only where a task names it
        HIGHER_IS_BETTER[kind] = higher_is_better

    def remove(self, kind: str) -> None:
        """Forgets a metric."""
        super().remove(kind)
        del NAMED_COLUMNS[kind], HIGHER_IS_BETTER[kind]


METRICS = _Metrics("metric", MetricConfig)
METRICS.add("ndcg", NdcgConfig, Ndcg)
METRICS.add("recall", RecallConfig, Recall)

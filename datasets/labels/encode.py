"""Labels, where they are observed, row weights and GAUC groups; how long events take to come."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig
from mmoe.config.data import microseconds
from mmoe.datasets.features.domains import domain_keys, exists_in
from mmoe.datasets.features.fit_numbers import Moments
from mmoe.datasets.labels.expressions import Values, evaluate_label, shown
from mmoe.datasets.labels.maturity import (
    MISSING,
    DelayFit,
    Maturity,
    YoungRows,
    delays_of,
    maturity_of,
    young_rows,
)
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.locations import find_column, first_true, is_number, place
from mmoe.datasets.rows.projection import labels_with_missing
from mmoe.datasets.values.columns import to_numbers
from mmoe.datasets.values.keys import codes_of, refuse_nested
from mmoe.metrics import LabelColumn, kind_of
from mmoe.metrics.task_kinds.binary import zero_or_one


class OrderedCheck:
    """Checks labels, seen chunk by chunk, for whether a calibrator may compare their tasks.

    A task whose label is missing wherever the one before did not happen predicts a probability
    given that, which may well be the larger.
    """

    def __init__(self, config: RunConfig) -> None:
        self.names = [task.name for task in config.trained_tasks]
        self.pairs = config.model.transfer.calibrator(config.trained_tasks)[1]
        self.comparable_P = np.zeros(len(self.pairs), bool)

    def add(self, labels: EncodedLabels) -> None:
        """Looks at more training rows."""
        for p, (former, later) in enumerate(self.pairs):
            failed_N = labels.observed_NT[:, former] & (labels.labels_NT[:, former] == 0)
            self.comparable_P[p] |= bool((failed_N & labels.observed_NT[:, later]).any())

    def finish(self, origin: str) -> None:
        """Refuses a pair of labels where the later one exists only where the former happened."""
        for (former, later), comparable in zip(self.pairs, self.comparable_P, strict=True):
            if not comparable:
                first, then = self.names[former], self.names[later]
                raise ValueError(
                    f"{origin}: task {then!r} has labels only where {first!r} happened, so what it "
                    f"predicts is a probability given that, which model.transfer would hold below "
                    f"that of {first!r}; write 0 where it did not happen, or say observed_when: "
                    f"{first}, or model.transfer.calibrator_weight: 0"
                )


@dataclass(frozen=True)
class _Label:
    values_N: np.ndarray  # float64, 0 where unobserved
    observed_N: np.ndarray
    young: YoungRows | None = None
    young_N: np.ndarray | None = None  # of labels that would be observed
    exists_N: np.ndarray | None = None  # rows in whose domain there is the task; None: all

    def may_count(self) -> np.ndarray:
        """Marks rows that have the task and are old enough, or young and weighted."""
        exists_N = np.ones(len(self.values_N), bool) if self.exists_N is None else self.exists_N
        return exists_N if self.young is None else exists_N & self.young.observed()

    def trained(self) -> np.ndarray:
        """Returns the labels to learn."""
        return self.values_N if self.young is None else self.young.trained(self.values_N)


def encode_labels(
    config: RunConfig,
    table: pa.Table,
    origin: str,
    *,
    training: bool = False,
    maturity: Maturity | None = None,
    check: "TrainableCheck | None" = None,
) -> EncodedLabels:
    """Encodes the labels of every task, with row weights and groups.

    A label is unobserved where its column is empty, where its expression has no value, and where
    `observed_when` is not true (another task: where that task's label is not an observed 1). So it
    is where the task does not exist in the row's domain, and where the row is younger than the
    task's `matures_after`.

    Args:
        config: Tasks, weight columns, data.group_column.
        table: N rows with the columns that these need.
        origin: What the user calls the data; starts error messages.
        training: These rows train: each binary task must have both classes among them.
        maturity: When the labels were collected; None: at the newest of these rows' times, unless
            data.time.as_of says.
        check: Is given these rows, which train beside others, instead.

    Raises:
        ValueError: A column is missing, a label is neither 0 nor 1 (or not finite), a weight is
            negative or missing, a training label has one class only, or a row has no time.

    Source: Saito, Morishita and Yasui, "Dual learning algorithm for delayed conversions" (SIGIR
        2020), equation 5, for young rows of tasks with `immature: weight`.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"},
        ...               {"name": "long", "label": "seconds > 30", "observed_when": "click"}]})
        >>> table = pa.table({"click": [1, 0, 1], "seconds": [40, None, 10]})
        >>> labels = encode_labels(config, table, "log.csv")
        >>> labels.labels_NT.tolist()
        [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
        >>> labels.observed_NT[:, 1].tolist()
        [True, False, True]
    """
    table = labels_with_missing(table, config)
    if maturity is None:
        as_of = None if config.data.time is None else config.data.time.as_of
        maturity = maturity_of(config, [(table, origin)], as_of=as_of, to_train=training)
    encoded, observed = _LabelEncoder(config, table, origin, maturity).encoded()
    seen = TrainableCheck(config, maturity) if training else check
    if seen is not None:
        seen.add(encoded, observed)
    if training and seen is not None:
        seen.finish(origin)
    return encoded


class TrainableCheck:
    """Checks labels, seen chunk by chunk, for whether they can be trained on.

    A loss needs observed labels, one of which counts; AUC and log-loss need both classes.

    Args:
        config: Tasks.
        maturity: When the labels were collected, and whether tasks may do without.
    """

    def __init__(self, config: RunConfig, maturity: Maturity | None = None) -> None:
        self.leaves_young = maturity is not None and maturity.leaves_young
        self.tasks, self.ordered = config.trained_tasks, OrderedCheck(config)
        self.group = config.compared_group
        self.rows = 0
        self.masked_T = np.zeros(len(self.tasks), np.int64)
        self.heaviest_T = np.zeros(len(self.tasks), np.float32)
        self.observed_T = np.zeros(len(self.tasks), np.int64)
        self.lowest_T = np.full(len(self.tasks), np.inf)
        self.highest_T = np.full(len(self.tasks), -np.inf)
        self.compared_T = np.zeros(len(self.tasks), np.int64)
        self.moments = [Moments() for _ in self.tasks]
        self.lost_T = np.zeros(len(self.tasks))  # squares of what float32 makes of labels off

    def add(self, labels: EncodedLabels, observed: Sequence[np.ndarray]) -> None:
        """Looks at more training rows.

        Args:
            labels: Of these rows.
            observed: Of each task the labels that are observed, before float32 rounds them.
        """
        for t, numbers_N in enumerate(observed):
            self.moments[t].add(numbers_N)
            self.lost_T[t] += np.square(numbers_N.astype(np.float32) - numbers_N).sum()
        self.rows += len(labels)
        self.ordered.add(labels)
        for t, task in enumerate(self.tasks):
            observed_N = labels.observed_NT[:, t]
            if labels.young_NT is not None:
                self.masked_T[t] += int((labels.young_NT[:, t] & ~observed_N).sum())
            weights = labels.weights_NT[observed_N | kind_of(task.kind).weighs_unobserved, t]
            self.heaviest_T[t] = max(self.heaviest_T[t], weights.max(initial=0))
            values = labels.labels_NT[observed_N, t]
            if len(values):
                self.observed_T[t] += len(values)
                self.lowest_T[t] = min(self.lowest_T[t], values.min())
                self.highest_T[t] = max(self.highest_T[t], values.max())
            if task.compares:
                # Groups with both a 1 and a 0 that count
                assert labels.compared_N is not None, "a task compares rows of a group"
                counts_N = observed_N & (labels.weights_NT[:, t] > 0) & (labels.compared_N >= 0)
                happened_N = labels.labels_NT[:, t] > 0.5
                ones, zeros = (labels.compared_N[counts_N & of] for of in (happened_N, ~happened_N))
                self.compared_T[t] += len(np.intersect1d(ones, zeros))

    def finish(self, origin: str) -> None:
        """Refuses a task that has no label, no row that counts, or one class only."""
        for t, task in enumerate(self.tasks):
            observed = int(self.observed_T[t])
            masked = int(self.masked_T[t])
            if masked and self.leaves_young and self.observed_T.any():
                continue
            if not observed and masked:
                raise ValueError(
                    f"{origin}: task {task.name!r} has no label left to train on: all {masked} are "
                    f"of rows younger than {task.matures_after} (matures_after); give older rows, "
                    "shorten matures_after, or set data.time.as_of where labels were collected "
                    "later than the newest row"
                )
            if not observed:
                raise ValueError(
                    f"{origin}: task {task.name!r} has no observed label among {self.rows} "
                    f"training rows; check its label {shown(task.label)} and observed_when"
                    + (f" {shown(task.observed_when)}" if task.observed_when else "")
                )
            if not self.heaviest_T[t]:
                raise ValueError(
                    f"{origin}: column {task.weight_column!r} (weight_column of task "
                    f"{task.name!r}) is 0 on all {observed} training rows with a label, so "
                    "nothing would be learnt; check the column, or remove weight_column or the task"
                )
            lowest, highest = float(self.lowest_T[t]), float(self.highest_T[t])
            kind, label, reason = kind_of(task.kind), shown(task.label), None
            of = self.moments[t]
            of.finish()
            if of.count:
                lost = sqrt(self.lost_T[t] / of.count)
                reason = kind.merged(label, of.count, of.mean, of.deviation, lost)
            if reason is None and task.untrainable(lowest, highest) is not None:
                reason = (
                    f"label {label} {task.untrainable(lowest, highest)}; check the label and the "
                    "split, or remove the task"
                )
            if reason is None:
                reason = kind.untrainable(label, observed, lowest, highest)
            if reason is not None:
                left = f" (without the {masked} of rows younger than {task.matures_after})"
                raise ValueError(f"{origin}: task {task.name!r} {reason}{left if masked else ''}")
            if task.compares and not self.compared_T[t]:
                raise ValueError(
                    f"{origin}: task {task.name!r} ({task.kind}) compares rows of the same "
                    f"{self.group!r}, but no group among {self.rows} training rows has both a 1 "
                    "and a 0; name the column that rows shown together share (a request, a session)"
                )
        self.ordered.finish(origin)


class _LabelEncoder:
    """Resolves each task's label once; `observed_when` may chain from task to task."""

    def __init__(
        self, config: RunConfig, table: pa.Table, origin: str, maturity: Maturity | None
    ) -> None:
        self.config = config
        self.tasks = {task.name: task for task in config.tasks}
        self.table = table
        self.origin = origin
        self.maturity = maturity
        self.ages_N = None if maturity is None else maturity.ages(table, config, origin)
        self.done: dict[str, _Label] = {}
        restricted = any(task.domains is not None for task in config.tasks)
        self.domains = domain_keys(config, table, origin) if restricted else None

    def encoded(self) -> tuple[EncodedLabels, list[np.ndarray]]:
        """Encodes all tasks, with weights and groups; and observed labels before float32."""
        config, table, origin = self.config, self.table, self.origin
        labels = [self.label(task.name) for task in config.tasks]
        weights = [
            _weights(task, label, table, origin)
            for task, label in zip(config.tasks, labels, strict=True)
        ]
        groups_N, group = None, config.data.group_column
        if group is not None:  # codes by first appearance, −1 where the key is missing
            groups_N = codes_of(find_groups(table, group, origin))[0]
        young_NT = None  # labels that exist and may still change; None where none can
        if any(label.young_N is not None for label in labels):
            none_N = np.zeros(table.num_rows, bool)
            each = [none_N if label.young_N is None else label.young_N for label in labels]
            young_NT = np.stack(each, axis=1)
        encoded = EncodedLabels(
            labels_NT=np.stack([label.trained() for label in labels], axis=1).astype(np.float32),
            observed_NT=np.stack([label.observed_N for label in labels], axis=1),
            weights_NT=np.stack(weights, axis=1).astype(np.float32),
            groups_N=groups_N,
            young_NT=young_NT,
            compared_N=_compared(config, table, origin, groups_N),
        )
        return encoded, [label.values_N[label.observed_N] for label in labels]

    def label(self, name: str, waiting: tuple[str, ...] = ()) -> _Label:
        if name in waiting:
            circle = " → ".join((*waiting[waiting.index(name) :], name))
            raise ValueError(
                f"task {name!r}: observed_when goes round in a circle ({circle}); remove one"
            )
        if name not in self.done:
            task = self.tasks[name]
            used_by = f"task {task.name!r}"
            values = evaluate_label(task.label, self.table, self.origin, used_by)
            column = self._column(values, task.label, used_by, task)
            values_N = kind_of(task.kind).numbers(column)
            observed = ~values.missing & self._observed_when(task, (*waiting, name))
            exists_N = exists_in(task, self.domains)
            observed = observed if exists_N is None else observed & exists_N
            if task.matures_after is None:
                found = _Label(np.where(observed, values_N, 0.0), observed)
            else:
                found = self._mature(task, values_N, observed)
            self.done[name] = replace(found, exists_N=exists_N)
        return self.done[name]

    def _mature(self, task: TaskConfig, values_N: np.ndarray, there_N: np.ndarray) -> _Label:
        """Returns the label where it can no longer change, or where it counts all the same."""
        assert self.maturity is not None and self.ages_N is not None, "a task's labels mature"
        young = young_rows(task, self.maturity, self.ages_N, self.table, self.config, self.origin)
        observed = there_N & young.observed()
        values_N = np.where(observed, young.known(values_N), 0.0)
        return _Label(values_N, observed, young, there_N & young.young_N)

    def _column(
        self, values: Values, label: str, used_by: str, task: TaskConfig | None = None
    ) -> LabelColumn:
        return LabelColumn(
            **vars(values),
            is_text=values.is_text,
            is_flag=values.is_flag,
            label=label,
            shown=shown(label),
            config=task,
            used_by=used_by,
            place=lambda index: place(self.table, self.origin, index),
            is_word=lambda index: not is_number(values.data[index].as_py()),
        )

    def _observed_when(self, task: TaskConfig, waiting: tuple[str, ...]) -> np.ndarray:
        condition = task.observed_when
        if condition is None:
            return np.ones(self.table.num_rows, bool)
        if condition in self.tasks:
            kind = self.tasks[condition].kind
            if not kind_of(kind).is_event:
                named = self.tasks[condition]
                has = f"== {named.outcomes[0]!r}" if named.outcomes else "> 0"
                raise ValueError(
                    f"task {task.name!r}: observed_when is the task {condition!r}, which is a "
                    f"{kind}; write a condition such as {named.label} {has}"
                )
            other = self.label(condition, waiting)
            return other.observed_N & (other.values_N == 1)
        used_by = f"observed_when of task {task.name!r}"
        values = evaluate_label(condition, self.table, self.origin, used_by)
        flags_N = zero_or_one(self._column(values, condition, used_by))
        return ~values.missing & (flags_N == 1)


def _weights(task: TaskConfig, label: _Label, table: pa.Table, origin: str) -> np.ndarray:
    """Row weights; 0 of a row that is too young for the task, whatever happened on it.

    A row without its event stays, as ESMM learns a purchase's probability from unclicked rows too.
    Were those kept that are young, while young purchases are masked, purchases would look rarer.
    """
    if task.weight_column is None:
        return label.may_count().astype(np.float64)
    used_by = f"weight_column of task {task.name!r}"
    weights_N = to_numbers(table, task.weight_column, origin, used_by)
    usable_N = (weights_N >= 0) & np.isfinite(weights_N)
    if (row := first_true(label.observed_N & ~usable_N)) is not None:
        came = "empty" if np.isnan(weights_N[row]) else f"{weights_N[row]:g}"
        raise ValueError(
            f"{place(table, origin, row)}: column {task.weight_column!r} ({used_by}) is {came}, "
            "expected a number of 0 or more; mend the cell, or drop the row"
        )
    return np.where(usable_N & label.may_count(), weights_N, 0.0)


def _compared(
    config: RunConfig, table: pa.Table, origin: str, groups_N: np.ndarray | None
) -> np.ndarray | None:
    """The same for the group whose rows a loss compares, which is often the same one."""
    name = config.compared_group
    if name is None or name == config.data.group_column:
        return None if name is None else groups_N
    return codes_of(find_groups(table, name, origin, "group of tasks"))[0]


def find_groups(
    table: pa.Table, name: str, origin: str, used_by: str = "data.group_column"
) -> pa.ChunkedArray:
    """Finds the column by which rows belong together.

    Raises:
        ValueError: It is not there, or holds what is no id.
    """
    column = find_column(table, name, origin, used_by)
    refuse_nested(column, f"{origin}: column {name!r} (of {used_by})")
    return column


_LATER = Maturity(as_of=2**62)  # than any window: labels as the data has them


def with_curves(
    config: RunConfig, maturity: Maturity, training: Iterable[pa.Table], origin: str
) -> Maturity:
    """Returns the same with a curve for each task with `immature: weight`.

    Where tasks may be left as they are (`maturity.leaves_young`), one of too few events gets none,
    and its young rows are masked.

    Args:
        config: Of the run.
        maturity: When the labels were collected.
        training: Training rows, in chunks; not read where no task needs them.
        origin: What the user calls them.

    Raises:
        ValueError: A positive label has no time of its event, one is before its row, or too few
            are known.
    """
    tasks = [
        (t, task, DelayFit(microseconds(task.matures_after)))
        for t, task in enumerate(config.tasks)
        if task.immature == "weight" and task.matures_after is not None
    ]
    for table in training if tasks else ():
        labels = encode_labels(config, table, origin, maturity=_LATER)
        ages_N = maturity.ages(table, config, origin)
        for t, task, fit in tasks:
            delays_N = delays_of(task, maturity, ages_N, table, config, origin)
            event_N = labels.observed_NT[:, t] & (labels.labels_NT[:, t] == 1)
            if (row := first_true(event_N & (delays_N == MISSING))) is not None:
                raise ValueError(
                    f"{place(table, origin, row)}: column {task.happened_at!r} (happened_at of "
                    f"task {task.name!r}) is empty, but the label is 1; give the event's time, or "
                    "set immature: mask"
                )
            known_N = event_N & (delays_N <= ages_N)
            fit.add(delays_N[known_N], ages_N[known_N])
    curves = {
        task.name: fit.finish(origin, task.name)
        for _, task, fit in tasks
        if fit.is_enough or not maturity.leaves_young
    }
    return replace(maturity, curves=curves)

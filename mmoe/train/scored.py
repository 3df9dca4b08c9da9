"""`evaluate_scored`: metrics of scores that were written, by labels that came later."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig, prediction_columns
from mmoe.datasets import EncodedLabels, FeatureEncoder, encode_labels, read_table
from mmoe.datasets.features.domains import domain_keys, exists_in
from mmoe.datasets.files.readers import column_names
from mmoe.datasets.rows.locations import missing_column, visible_columns
from mmoe.datasets.rows.projection import label_uses, text_cells
from mmoe.datasets.values.arrow import is_numeric, is_text, pc
from mmoe.parallel import launched_ranks
from mmoe.run import Reporter, RunDirectory, SilentReporter
from mmoe.train.measure import domain_metrics, metrics_of


def join_by_key(
    left: pa.Table, right: pa.Table, key: Sequence[str], left_origin: str, right_origin: str
) -> pa.Table:
    """Returns the rows that are in both tables, each once, in the order of the first.

    Keys of different types are compared as numbers or times where both are such, or can be read as
    such, else as text; times without a zone are UTC. Rows without a key are in neither.

    Args:
        left: With the columns of `key`, and others.
        right: Likewise; no other column is in both.
        key: Names of the columns that tell rows apart.
        left_origin: What the user calls the first table.
        right_origin: Likewise.

    Raises:
        ValueError: A key stands twice in a table, or cannot be compared; names it.
    """
    columns: list[tuple[Any, Any]] = []
    for name in key:
        for table, origin in ((left, left_origin), (right, right_origin)):
            kind = table[name].type
            if pa.types.is_nested(kind) or pa.types.is_null(kind):
                what = "no value" if pa.types.is_null(kind) else str(kind)
                raise ValueError(f"{origin}: --key {name} holds {what}; name one of single values")
        columns.append(_alike(left[name], right[name]))
    keys = [pa.table({f"k{n}": pair[side] for n, pair in enumerate(columns)}) for side in (0, 1)]
    for keys_of, origin in zip(keys, (left_origin, right_origin), strict=True):
        _check_unique(keys_of, key, origin)
    on = keys[0].column_names
    joined = (
        keys[0]
        .append_column("left", pa.array(range(left.num_rows), pa.int64()))
        .join(
            keys[1].append_column("right", pa.array(range(right.num_rows), pa.int64())),
            keys=on,
            join_type="inner",
        )
        .sort_by("left")
    )
    first, second = left.take(joined["left"]), right.take(joined["right"])
    found = {name: first[name] for name in visible_columns(left)}
    found |= {name: second[name] for name in right.column_names if name not in found}
    return pa.table(found)


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Casts both to one type."""
    if one.type == other.type:
        return one, other
    for kind in _kinds(one.type, other.type):
        with suppress(pa.ArrowException):
            return _cast(one, kind), _cast(other, kind)
    return one.cast(pa.large_string()), other.cast(pa.large_string())


def _kinds(one: pa.DataType, other: pa.DataType) -> list[pa.DataType]:
    """Types to compare in, the best first; what is text may have to be read."""
    kinds = [kind for kind in (one, other) if not is_text(kind)]
    if all(map(pa.types.is_temporal, kinds)) and kinds:
        return [pa.timestamp("us"), pa.timestamp("ns")]
    if all(map(is_numeric, kinds)) and kinds:
        return [pa.int64(), pa.float64()]
    return []


def _cast(cells: Any, kind: pa.DataType) -> Any:
    if pa.types.is_floating(cells.type):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
    return cells.cast(kind)


def _check_unique(keys: pa.Table, key: Sequence[str], origin: str) -> None:
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    for name in keys.column_names:  # rows without a key are joined with none
        twice = twice.filter(pc.is_valid(twice[name]))
    if twice.num_rows:
        one = twice.to_pylist()[0]
        shown = ", ".join(f"{name} {one[f'k{n}']!r}" for n, name in enumerate(key))
        raise ValueError(
            f"{origin}: {shown} is the key of {one['count_all']} rows, so that it is not known "
            "which label belongs to which; add a column to --key that tells them apart"
        )


def evaluate_scored(
    run: RunDirectory,
    scored: str,
    labels: str,
    key: Sequence[str],
    reporter: Reporter | None = None,
    *,
    all_negatives: bool = False,
) -> dict[str, Any]:
    """Measures scores that `mmoe score` wrote, by labels that came later.

    Rows of both are joined by the columns of `key`; rows that only one of them has are left out,
    and counted. Both are held in memory, without the features.

    Args:
        run: That scored; its config says what the labels are.
        scored: Files of scores with the columns of `key`, which `--keep` copied.
        labels: Files with the same columns, and those of the labels.
        key: Names of the columns that tell rows apart.
        reporter: Told what was joined.
        all_negatives: As of `evaluate_run`.

    Returns:
        `tasks`: metrics by task, as in metrics.json, of tasks that were scored and have labels;
        `rows`: how many were joined, scored and labelled. `domains`: as in metrics.json, where a
        file has their column.

    Raises:
        ValueError: A column is missing, a key stands twice, no row is in both, or a label cannot be
            used.
    """
    reporter, config = reporter or SilentReporter(), run.config()
    if launched_ranks() > 1:
        raise ValueError("--labels: scores are joined by one process; start it without torchrun")
    if not key:
        raise ValueError("--labels needs --key: the columns that tell the rows of both files apart")
    key = list(dict.fromkeys(key))
    there, later = column_names(scored), column_names(labels)
    _check_has_key(key, {scored: there, labels: later})
    config = _without_groups(config, {*there, *later}, reporter)
    chosen, known = _tasks(config, there, later, scored, labels)
    predictions = prediction_columns(chosen.tasks)
    section = config.model.domains
    wanted = [*label_uses(known, [*later, *there]), *([] if section is None else [section.column])]
    used = [n for n in dict.fromkeys(wanted) if n not in key and n in {*there, *later}]
    beside = [n for n in used if n not in later and n in there and n not in predictions]
    cells = text_cells(config)
    left = read_table(scored, [*key, *beside, *predictions], cells=cells)
    right = read_table(labels, [*key, *(n for n in used if n in later)], cells=cells)
    rows, counts = _joined(left, right, key, scored, labels, reporter)
    encoded = _of_tasks(encode_labels(known, rows, labels), known.tasks, chosen.tasks)
    absent = _absent(chosen, rows, labels)
    columns = [_numbers(rows, name, chosen.tasks, scored, absent) for name in predictions]
    there_NP = np.stack(columns, axis=1)
    found, notes = metrics_of(chosen, there_NP, encoded, all_negatives=all_negatives)
    for note in notes:
        reporter.say(f"note: {note}")
    by_domain = _by_domain(run, chosen, rows, there_NP, encoded, labels, all_negatives)
    return {"tasks": found, "rows": counts} | by_domain


def _check_has_key(key: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
    for name in key:
        for origin, names in columns.items():
            if name not in names:
                raise ValueError(missing_column(name, names, origin, "--key"))


def _without_groups(config: RunConfig, columns: set[str], reporter: Reporter) -> RunConfig:
    """The config without a group column that neither file has: GAUC is then left out, and said."""
    groups = config.data.group_column
    if groups in {None, *columns} or any(task.metrics for task in config.tasks):
        return config
    reporter.say(f"note: neither file has {groups}, so there is no GAUC; --keep it if you like")
    data = config.data.model_copy(update={"group_column": None})
    return config.model_copy(update={"data": data})


def _joined(
    left: pa.Table,
    right: pa.Table,
    key: Sequence[str],
    scored: str,
    labels: str,
    reporter: Reporter,
) -> tuple[pa.Table, dict[str, int]]:
    """Joins scores and labels, at least one row of them; returns how many rows."""
    rows = join_by_key(left, right, key, scored, labels)
    counts = {"joined": len(rows), "scored": len(left), "labelled": len(right)}
    reporter.say(
        f"{counts['joined']:,} rows have scores and labels, of {counts['scored']:,} in {scored} "
        f"and {counts['labelled']:,} in {labels}"
    )
    if not len(rows):
        raise ValueError(
            f"--key {' '.join(key)}: no row of {scored} is in {labels}; the first ones are "
            f"{_first(left, key)} and {_first(right, key)}"
        )
    return rows, counts


def _by_domain(
    run: RunDirectory,
    config: RunConfig,
    rows: pa.Table,
    predictions_NP: np.ndarray,
    encoded: EncodedLabels,
    origin: str,
    all_negatives: bool,
) -> dict[str, Any]:
    """Metrics of each domain, where one of the files says which domain a row is of."""
    section = config.model.domains
    if section is None or section.column not in rows.column_names:
        return {}
    domains = FeatureEncoder.load(run.vocabulary).domains
    assert domains is not None, "the run has domains"
    codes_N = domains.codes(domain_keys(config, rows, origin))
    encoded = replace(encoded, domains_N=codes_N)
    return domain_metrics(config, domains, predictions_NP, encoded, all_negatives=all_negatives)


def _tasks(
    config: RunConfig, there: Sequence[str], later: Sequence[str], scored: str, labels: str
) -> tuple[RunConfig, RunConfig]:
    """The run with the tasks that can be measured alone, and with those whose labels are known."""
    of_scores = [t for t in config.tasks if set(prediction_columns([t])) <= set(there)]
    if not of_scores:
        wanted = ", ".join(prediction_columns(config.tasks))
        raise ValueError(
            f"{scored}: has none of the run's predictions ({wanted}); name what `mmoe score` wrote"
        )
    columns = {*there, *later}
    lacking = {task.name: _lacking(config, task, columns) for task in config.tasks}
    known = [
        task
        for task in config.tasks
        if not lacking[task.name] and not lacking.get(task.observed_when or "")
    ]
    both = [task for task in of_scores if task in known]
    if not both:
        first = of_scores[0]
        needed = lacking[first.name] or lacking[first.observed_when or ""]
        raise ValueError(
            f"{labels}: lacks {', '.join(sorted(needed))}, which task {first.name!r} is measured "
            f"by; it has {', '.join(later)}"
        )
    return _with(config, both), _with(config, known)


def _with(config: RunConfig, tasks: Sequence[TaskConfig]) -> RunConfig:
    """Returns a config that measures all rows, however the run's own were split."""
    return config.model_copy(update={"tasks": list(tasks), "data": config.data.unsplit()})


def _lacking(config: RunConfig, task: TaskConfig, columns: set[str]) -> set[str]:
    """Columns that a task's label, weight and rows need and that neither file has."""
    if task.observed_when in {other.name for other in config.tasks}:  # whose label is looked at too
        task = task.model_copy(update={"observed_when": None})
    return set(label_uses(_with(config, [task]), columns)) - columns


def _of_tasks(
    labels: EncodedLabels, known: Sequence[TaskConfig], chosen: Sequence[TaskConfig]
) -> EncodedLabels:
    """Encoded labels of some of the tasks."""
    chosen_T = [t for t, task in enumerate(known) if task in chosen]
    young = labels.young_NT
    return replace(
        labels,
        labels_NT=labels.labels_NT[:, chosen_T],
        observed_NT=labels.observed_NT[:, chosen_T],
        weights_NT=labels.weights_NT[:, chosen_T],
        young_NT=None if young is None else young[:, chosen_T],
        targets_NT=None,
    )


def _absent(config: RunConfig, rows: pa.Table, origin: str) -> dict[str, np.ndarray]:
    """The rows in whose domain a task does not exist, by column of predictions."""
    found: dict[str, np.ndarray] = {}
    for task in config.tasks:
        if task.domains is not None:
            exists_N = exists_in(task, domain_keys(config, rows, origin))
            assert exists_N is not None, "it names its domains"
            found |= dict.fromkeys(prediction_columns([task]), ~exists_N)
    return found


def _numbers(
    rows: pa.Table,
    name: str,
    tasks: Sequence[TaskConfig],
    scored: str,
    absent: Mapping[str, np.ndarray],
) -> np.ndarray:
    """A column of predictions as `Predictor` gives it: of classes, their numbers.

    Where the task does not exist stands that of another row: the label is unobserved there.
    """
    classes = next((t.outcomes for t in tasks if name == f"pred_{t.name}"), None)
    values = rows[name]
    absent_N = absent.get(name)
    if absent_N is not None and not absent_N.all():
        values = values.take(pa.array(np.where(absent_N, absent_N.argmin(), np.arange(len(rows)))))
    if values.null_count:
        raise ValueError(f"{scored}: {name} is empty in {values.null_count:,} rows; score again")
    if classes is None:
        return values.to_numpy().astype(np.float32)
    numbers = {str(label): number for number, label in enumerate(classes)}
    strange = next((v for v in values.to_pylist() if str(v) not in numbers), None)
    if strange is not None:
        raise ValueError(
            f"{scored}: {name} holds {strange!r}, which is no class of the run; name scores that "
            "this run wrote"
        )
    return np.array([numbers[str(value)] for value in values.to_pylist()], np.float32)


def _first(table: pa.Table, key: Sequence[str]) -> str:
    return ", ".join(f"{name} {table[name][0].as_py()!r}" for name in key) if len(table) else "none"

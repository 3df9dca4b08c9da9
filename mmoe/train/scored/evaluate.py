"""`evaluate_scored`: metrics of scores that were written, by labels that came later."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig, TaskConfig
from mmoe.config.tasks import prediction_columns
from mmoe.datasets.features.domains import domain_keys, exists_in
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.readers import column_names, read_table
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.locations import missing_column
from mmoe.datasets.rows.projection import label_uses, text_cells
from mmoe.parallel import launched_ranks
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.train.measure import domain_metrics, metrics_of
from mmoe.train.scored.join import join_by_key


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
    groups = config.data.group_column
    if launched_ranks() > 1:
        raise ValueError("--labels: scores are joined by one process; start it without torchrun")
    if not key:
        raise ValueError("--labels needs --key: the columns that tell the rows of both files apart")
    key = list(dict.fromkeys(key))
    there, later = column_names(scored), column_names(labels)
    for name in key:
        for columns, origin in ((there, scored), (later, labels)):
            if name not in columns:
                raise ValueError(missing_column(name, columns, origin, "--key"))
    if groups not in (None, *there, *later) and not any(task.metrics for task in config.tasks):
        reporter.say(f"note: neither file has {groups}, so there is no GAUC; --keep it if you like")
        config = config.model_copy(
            update={"data": config.data.model_copy(update={"group_column": None})}
        )
    chosen, known = _tasks(config, there, later, scored, labels)
    predictions = prediction_columns(chosen.tasks)
    section = config.model.domains
    wanted = [*label_uses(known, [*later, *there]), *([] if section is None else [section.column])]
    used = [n for n in dict.fromkeys(wanted) if n not in key and n in {*there, *later}]
    beside = [n for n in used if n not in later and n in there and n not in predictions]
    cells = text_cells(config)
    left = read_table(scored, [*key, *beside, *predictions], cells=cells)
    right = read_table(labels, [*key, *(n for n in used if n in later)], cells=cells)
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
    encoded = _of_tasks(encode_labels(known, rows, labels), known.tasks, chosen.tasks)
    absent = _absent(chosen, rows, labels)
    columns = [_numbers(rows, name, chosen.tasks, scored, absent) for name in predictions]
    found, notes = metrics_of(
        chosen, np.stack(columns, axis=1), encoded, all_negatives=all_negatives
    )
    for note in notes:
        reporter.say(f"note: {note}")
    return {"tasks": found, "rows": counts} | _by_domain(
        run, chosen, rows, np.stack(columns, axis=1), encoded, labels, all_negatives
    )


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
    """All rows are measured, however the run's own were split."""
    return config.model_copy(update={"tasks": list(tasks), "data": config.data.unsplit()})


def _lacking(config: RunConfig, task: TaskConfig, columns: set[str]) -> set[str]:
    """Columns that a task's label, weight and rows need and that neither file has."""
    if task.observed_when in {other.name for other in config.tasks}:  # whose label is looked at too
        task = task.model_copy(update={"observed_when": None})
    return set(label_uses(_with(config, [task]), columns)) - columns


def _of_tasks(
    labels: EncodedLabels, known: Sequence[TaskConfig], chosen: Sequence[TaskConfig]
) -> EncodedLabels:
    """Labels of some tasks of those that were encoded."""
    places = [t for t, task in enumerate(known) if task in chosen]
    young = labels.young_NT
    return replace(
        labels,
        labels_NT=labels.labels_NT[:, places],
        observed_NT=labels.observed_NT[:, places],
        weights_NT=labels.weights_NT[:, places],
        young_NT=None if young is None else young[:, places],
        targets_NT=None,
    )


def _absent(config: RunConfig, rows: pa.Table, origin: str) -> dict[str, np.ndarray]:
    """Of columns of predictions: the rows in whose domain there is no such task."""
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
    absent: Mapping[str, np.ndarray] = MappingProxyType({}),
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
    places = {str(label): number for number, label in enumerate(classes)}
    strange = next((v for v in values.to_pylist() if str(v) not in places), None)
    if strange is not None:
        raise ValueError(
            f"{scored}: {name} holds {strange!r}, which is no class of the run; name scores that "
            "this run wrote"
        )
    return np.array([places[str(value)] for value in values.to_pylist()], np.float32)


def _first(table: pa.Table, key: Sequence[str]) -> str:
    return ", ".join(f"{name} {table[name][0].as_py()!r}" for name in key) if len(table) else "none"

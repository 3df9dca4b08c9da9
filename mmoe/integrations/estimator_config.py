"""The config that an estimator trains: its own or an inferred one, with its parameters in it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import TASKS, RunConfig, config_from_dict, load_config, set_values
from mmoe.datasets import infer_config
from mmoe.datasets.labels.expressions import columns_of, quote
from mmoe.datasets.values.arrow import pc
from mmoe.errors import warn_caller
from mmoe.integrations.estimator_rows import refuse_times
from mmoe.metrics import first_of, kind_of

# Named parameters, so that GridSearchCV can vary them, and the config keys they set.
_SETTINGS = {
    "model": "model.kind",
    "num_experts": "model.num_experts",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.optimizer.learning_rate",
    "seed": "seed",
}


def config_for(
    ranker: Any, table: pa.Table, y: pa.Table | None, regressions: Sequence[str] = ()
) -> RunConfig:
    """Makes the config that an estimator's parameters ask for; warns of columns that it leaves out.

    Args:
        ranker: Their owner, a `MultiTaskRanker`.
        table: X and y.
        y: Its columns; None: X has them.
        regressions: Those whose values are numbers to be met, also where there are only two.

    Raises:
        ValueError: A parameter, key or value is wrong, or nothing can be inferred.
    """
    if not isinstance(ranker.settings, Mapping | None):
        raise ValueError(f"settings: expected a mapping, got {ranker.settings!r}")
    given = {key: getattr(ranker, name) for name, key in _SETTINGS.items()}
    overrides = {key: value for key, value in given.items() if value is not None}
    raw, labels = raw_config(ranker.config), [] if y is None else y.column_names
    if raw is None and not labels:
        raise ValueError(
            "y: expected a DataFrame with a column for each label, got None: MultiTaskRanker "
            "without a config requires y to be passed, but the target y is None"
        )
    if raw is None:
        refuse_times(table.select(labels))
        raw = _inferred(table, labels, regressions)
    return _finished(raw, overrides | dict(ranker.settings or {}))


def raw_config(given: Any) -> dict[str, Any] | None:
    """Returns the `config` of an estimator as a mapping; None: one is to be inferred.

    Raises:
        ValueError: It is neither a config nor names one.
    """
    if given is None:
        return None
    if isinstance(given, RunConfig):
        return given.model_dump(mode="json")
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str | Path):
        return load_config(given).model_dump(mode="json")
    raise ValueError(f"config: expected a RunConfig, a mapping or a YAML file, got {given!r}")


def _inferred(table: pa.Table, labels: Sequence[str], regressions: Sequence[str]) -> dict[str, Any]:
    """A config from the columns; which were left out is warned of, as nobody reads it here."""
    config, reasons = infer_config(table, list(labels), origin="X", split=False)
    listed = "; ".join(f"{column!r}: {reason}" for column, reason in reasons.left_out)
    raw = config.model_dump(mode="json")
    for column, task in zip(labels, raw["tasks"], strict=True):
        if column in regressions and kind_of(task["kind"]).is_event:
            task |= {"kind": "regression", "label": quote(column), "metrics": []}
    headline = first_of(task["kind"] for task in raw["tasks"]).headline
    raw["training"]["monitor"] = f"mean.{headline}"
    if listed:
        warn_caller(f"columns of X left out ({listed})")
    return raw


def _finished(raw: Mapping[str, Any], values: Mapping[str, Any]) -> RunConfig:
    """Sets dotted keys; values pass through YAML, as `--set` on the command line does."""
    assignments = [f"{key}={json.dumps(value, default=_plain)}" for key, value in values.items()]
    config = config_from_dict(set_values(raw, assignments), origin="MultiTaskRanker")
    if config.data.requests is not None and config.data.requests.candidates is not None:
        raise ValueError(
            "data.requests.candidates: X and y have a row for each candidate; set "
            "data.requests.column, the column of X that says of which request each is"
        )
    return config


def task_called(labels: Mapping[str, str], name: str) -> str:
    """Returns the task of this name, or the one whose label is made of the column of this name.

    A task's name has ASCII letters, digits and _ alone, a column's may have others.

    Args:
        labels: Task → its label.
        name: Comes back where it is neither, or a column of several labels.

    Example:
        >>> task_called({"gefallt": "`gefällt` == 'ja'", "buy": "buy"}, "gefällt")
        'gefallt'
    """
    if name in labels:
        return name
    found = [task for task, label in labels.items() if name == label or _reads(label) == [name]]
    return found[0] if len(found) == 1 else name


def _reads(label: str) -> list[str]:
    try:
        return columns_of(label)
    except ValueError:  # a column as it is written, which is no expression
        return []


def label_column(raw: Mapping[str, Any], task: str) -> str:
    """Returns the column that a task's label is made of; the task's name where there are several.

    Raises:
        ValueError: There is no such task.
    """
    labels = {section["name"]: section["label"] for section in raw["tasks"]}
    if task not in labels:
        raise ValueError(f"task: there is no {task!r} in the config; it has {', '.join(labels)}")
    columns = columns_of(labels[task])
    return columns[0] if len(columns) == 1 else task


def with_label(
    raw: Mapping[str, Any], task: str, column: str, values: pa.ChunkedArray, there: set[str]
) -> dict[str, Any]:
    """Returns a config one task of which is trained on values that are given.

    The other tasks stay where all columns that they need are there; else it is the only one.

    Args:
        raw: The config.
        task: Name of the task.
        column: Where the values will be, as `label_column` says.
        values: Labels; what is neither 0 nor 1 is read as the task's label says.
        there: All columns that there are.
    """
    tasks = [dict(section) for section in raw["tasks"]]
    names = [section["name"] for section in tasks]
    whole = all(_is_there(section, there, names) for section in tasks if section["name"] != task)
    mine = tasks[names.index(task)]
    if set(pc.unique(values.drop_null()).to_pylist()) <= {0, 1} or column == task:
        mine["label"] = quote(column)
    if whole:
        return {**raw, "tasks": tasks}
    mine["observed_when"], mine["after"] = None, []  # what it came after may not be there
    if mine.get("kind") == "entire_space":  # without its event
        known = TASKS.config_class("binary").model_fields
        mine = {key: value for key, value in mine.items() if key in known} | {"kind": "binary"}
    model = {key: value for key, value in (raw.get("model") or {}).items() if key != "transfer"}
    bias = model.get("bias")
    if bias is not None and bias.get("tasks") is not None:
        model["bias"] = {**bias, "tasks": [task]} if task in bias["tasks"] else None
    kind = kind_of(mine.get("kind", "binary"))
    training = dict(raw.get("training") or {})
    metric = str(training.get("monitor")).rpartition(".")[2]
    training["monitor"] = f"mean.{metric if metric in kind.monitored else kind.headline}"
    found = {**raw, "tasks": [mine], "model": model, "training": training}
    if mine.get("matures_after") is None and (raw.get("data") or {}).get("time") is not None:
        found["data"] = {**raw["data"], "time": None}  # which is of the others
    return found


def _is_there(task: Mapping[str, Any], there: set[str], names: Sequence[str]) -> bool:
    """Whether all columns are there that a task needs."""
    texts, condition, weight = [task["label"]], task.get("observed_when"), task.get("weight_column")
    if condition is not None and condition not in names:
        texts.append(condition)
    columns = {c for text in texts for c in ([text] if text in there else columns_of(text))}
    others = {weight, *(task.get(key) for key in ("happened_at", "group", "duration"))}
    return columns | (others - {None, ""}) <= there


def _plain(value: Any) -> Any:
    """NumPy's numbers, as searches over np.arange or randint hand them in."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise ValueError(f"settings: expected numbers, texts or lists, got {value!r}")


def split_parameters(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parts parameters into an estimator's own, and keys of the config with their values.

    Example:
        >>> split_parameters({"epochs": 3, "model__gate__kind": "top_k"})
        ({'epochs': 3}, {'model.gate.kind': 'top_k'})
    """
    own: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for name, value in given.items():
        if "__" in name and name.partition("__")[0] in RunConfig.model_fields:
            keys[name.replace("__", ".")] = value
        else:
            own[name] = value
    return own, keys


def as_parameters(settings: Any) -> dict[str, Any]:
    """Returns values of config keys as parameters; nothing where they are none.

    Example:
        >>> as_parameters({"model.gate.kind": "top_k", "seed": 2})
        {'model__gate__kind': 'top_k'}
    """
    if not isinstance(settings, Mapping):
        return {}
    nested = {key: value for key, value in settings.items() if "." in str(key)}
    return {key.replace(".", "__"): value for key, value in nested.items()}

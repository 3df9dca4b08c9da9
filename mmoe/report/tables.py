"""The numbers of the page as text: results, model line, facts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmoe.config import GateConfig, ModelConfig

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a results table: its heading, what it means, and the text of a cell."""

    heading: str
    meaning: str
    text: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Table:
    """Headings with their meaning, and rows of text (the first cell is the task)."""

    columns: list[Column]
    rows: list[list[str]]


def results_tables(tasks: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Makes the tables of binary, then of regression tasks; columns of dashes are left out.

    Example:
        >>> table = results_tables({"click": {"auc": 0.75, "rows": 900, "positives": 45}})[0]
        >>> [column.heading for column in table.columns]
        ['AUC', 'log-loss', 'NE', 'calibration', 'ECE', 'rows', 'positives']
        >>> table.rows[0]
        ['click', '0.7500', '–', '–', '–', '–', '900', '45 (5.0 %)']
    """
    tables = []
    for columns, regression in ((_BINARY, False), (_REGRESSION, True)):
        mine = {name: values for name, values in tasks.items() if ("rmse" in values) == regression}
        if not mine:
            continue
        # The oracle and groups are there for some data only: no columns of dashes for the rest.
        kept = [
            column
            for column in columns
            if column.heading not in _OPTIONAL
            or any(column.text(values) != NONE for values in mine.values())
        ]
        rows = [[name, *(column.text(values) for column in kept)] for name, values in mine.items()]
        tables.append(Table(kept, rows))
    return tables


def model_line(model: ModelConfig) -> str:
    """Describes the model in a few words.

    Example:
        >>> model_line(ModelConfig())
        'MMoE · 8 experts of 256-128 · softmax gates · tower 64'
        >>> model_line(ModelConfig(gate={"kind": "noisy_top_k"})).split(" · ")[2]
        'noisy top-2 gates'
    """
    name = _MODELS.get(model.kind, model.kind)
    pool = {
        "shared_bottom": "1 shared network",
        "single_task": "1 network a task",
        "cgc": f"{model.shared_experts} shared + {model.task_experts} own experts a task",
        "ple": f"{model.levels} levels of {model.shared_experts} shared + "
        f"{model.task_experts} own experts a task",
    }.get(model.kind, f"{model.num_experts} expert{'s' * (model.num_experts > 1)}")
    parts = [name, f"{pool} of {_widths(model.expert.hidden)}"]
    if model.kind not in ("shared_bottom", "single_task"):
        parts.append(f"{_gates(model.gate)} gates")
    parts.append(f"tower {_widths(model.tower.hidden)}" if model.tower.hidden else "linear tower")
    return " · ".join(parts)


def _gates(gate: GateConfig) -> str:
    names = {
        "softmax": "softmax",
        "top_k": f"top-{gate.picks}",
        "noisy_top_k": f"noisy top-{gate.picks}",
        "switch": "Switch",
        "gshard": "GShard",
        "cosine": f"cosine top-{gate.picks}",
        "sigmoid": f"sigmoid top-{gate.picks}",
        "dselect_k": f"DSelect-{gate.picks}",
        "static": "static" if gate.picks is None else f"static top-{gate.picks}",
    }
    return names[gate.kind]


def count(value: Any) -> str:
    """Writes a whole number with thin spaces between thousands."""
    return NONE if not _known(value) else f"{int(value):,}".replace(",", "\u202f")


def duration(seconds: Any) -> str:
    """Writes seconds as a person says them.

    Example:
        >>> duration(12.34), duration(95), duration(7260)
        ('12.3 s', '1 min 35 s', '2 h 1 min')
    """
    if not _known(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _decimal(key: str, form: str = "{:.4f}") -> Callable[[Mapping[str, Any]], str]:
    return lambda values: form.format(values[key]) if _known(values.get(key)) else NONE


def _gap(values: Mapping[str, Any]) -> str:
    ours, best = values.get("auc"), values.get("oracle_auc")
    if ours is None or best is None or not (_known(ours) and _known(best)):
        return NONE
    return f"{best - ours:.4f}".replace("-", "−")


def _positives(values: Mapping[str, Any]) -> str:
    rows, positives = values.get("rows"), values.get("positives")
    if not rows or positives is None:
        return count(positives)
    return (
        f"{count(positives)} ({100 * positives / rows:.{1 if positives * 100 >= rows else 2}f} %)"
    )


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _widths(hidden: Sequence[int]) -> str:
    return "-".join(map(str, hidden))


_MODELS = {
    "mmoe": "MMoE",
    "omoe": "OMoE",
    "cgc": "CGC",
    "ple": "PLE",
    "esmm": "ESMM",
    "shared_bottom": "Shared-Bottom",
    "single_task": "Single-task",
}
_OPTIONAL = ("best AUC", "gap", "GAUC")
_ROWS = Column("rows", "test rows where the label is observed", lambda v: count(v.get("rows")))
_BINARY = (
    Column(
        "AUC",
        "chance that a positive row is scored above a negative one; 0.5 is guessing",
        _decimal("auc"),
    ),
    Column(
        "best AUC",
        "the oracle's: what the true probabilities reach on the same rows",
        _decimal("oracle_auc"),
    ),
    Column("gap", "best AUC minus AUC: what a better model could still gain", _gap),
    Column(
        "GAUC",
        "AUC within each group (user), averaged by rows over groups with both classes",
        _decimal("gauc"),
    ),
    Column(
        "log-loss", "mean negative log-likelihood in nats; lower is better", _decimal("logloss")
    ),
    Column("NE", "log-loss over that of the base rate; below 1 it has learned", _decimal("ne")),
    Column(
        "calibration",
        "sum of predictions over positives; 1 is right, above 1 promises too much",
        _decimal("calibration", "{:.3f}"),
    ),
    Column("ECE", "mean gap of prediction and outcome over bins of equal size", _decimal("ece")),
    _ROWS,
    Column("positives", "positive rows, and their share", _positives),
)
_REGRESSION = (
    Column(
        "RMSE", "root of the mean squared error, in units of the label", _decimal("rmse", "{:.4g}")
    ),
    Column("MAE", "mean absolute error, in units of the label", _decimal("mae", "{:.4g}")),
    _ROWS,
)

"""The numbers of the page as text: results, model line, facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmoe.config import ModelConfig, TaskConfig
from mmoe.metrics import KINDS, Column, kind_of_metrics
from mmoe.metrics.columns import NAMED_COLUMNS, NONE, is_number


@dataclass(frozen=True, slots=True)
class Table:
    """Headings with their meaning, and rows of text (the first cell is the task)."""

    columns: list[Column]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of text under headings, as a page and a terminal show them; the first cell is a name."""

    headings: list[str]
    rows: list[list[str]]
    title: str = ""


def results_tables(tasks: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Makes a table for the tasks of each kind; columns of dashes are left out.

    Example:
        >>> table = results_tables({"click": {"auc": 0.75, "rows": 900, "positives": 45}})[0]
        >>> [column.heading for column in table.columns]
        ['AUC', 'log-loss', 'NE', 'calibration', 'ECE', 'rows', 'positives']
        >>> table.rows[0]
        ['click', '0.7500', '–', '–', '–', '–', '900', '45 (5.0 %)']
    """
    tables = []
    for kind in KINDS.values():
        mine = {name: v for name, v in tasks.items() if kind_of_metrics(v) is kind}
        if not mine:
            continue
        # The oracle and groups are there for some data only: no columns of dashes for the rest.
        kept = [
            column
            for column in (*kind.columns, *kind.columns_with_bias, *NAMED_COLUMNS.values())
            if not column.optional or any(column.text(values) != NONE for values in mine.values())
        ]
        rows = [[name, *(column.text(values) for column in kept)] for name, values in mine.items()]
        tables.append(Table(kept, rows))
    return tables


def model_line(
    model: ModelConfig, tasks: Sequence[TaskConfig] = (), *, untrained: bool = False
) -> str:
    """Describes the model in a few words, and which tasks come after which.

    Where the mixture is `untrained` it names what scores.

    Example:
        >>> model_line(ModelConfig())
        'MMoE · 8 experts of 256-128 · softmax gates · tower 64'
        >>> model_line(ModelConfig(gate={"kind": "noisy_top_k"})).split(" · ")[2]
        'noisy top-2 gates'
        >>> model_line(ModelConfig(interaction="fm")).split(" · ")[-1]
        'factorization machine'
        >>> buy = TaskConfig(name="buy", label="buy", kind="entire_space", after="click")
        >>> model_line(ModelConfig(transfer="aitm"), [buy]).split(" · ")[-1]
        'AITM: buy after click (ESMM)'
    """
    if untrained:
        return f"the wide part alone · {model.title or model.kind} beside it untrained"
    parts = [model.title or model.kind, f"{model.pool_title} of {model.experts_title}"]
    if model.has_gates:
        parts.append(f"{model.gate.title} gates")
    parts += [model.tower.title, model.interaction.title]
    if model.bias is not None:
        parts.append(f"bias tower of {', '.join(model.bias.features)}")
    parts.append(_relations(model, tasks))
    return " · ".join(filter(None, parts))


def _relations(model: ModelConfig, tasks: Sequence[TaskConfig]) -> str:
    """Builds the grid of tasks that come after others, and what is made of it."""
    told = []
    for task in tasks:
        before = task.after or ([] if task.event is None else [task.event])
        if before:
            how = f" ({task.title})" if task.title else ""
            told.append(f"{task.name} after {' and '.join(before)}{how}")
    line = ", ".join(told)
    return f"{model.transfer.title}: {line}" if line and model.transfer.title else line


def duration(seconds: Any) -> str:
    """Writes seconds as a person says them.

    Example:
        >>> duration(12.34), duration(95), duration(7260)
        ('12.3 s', '1 min 35 s', '2 h 1 min')
    """
    if not is_number(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

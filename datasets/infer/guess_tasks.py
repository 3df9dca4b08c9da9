"""Tasks from label columns: 0/1 as they are, two values as an expression, numbers as regression."""

import ast
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import TaskConfig
from mmoe.datasets.infer.profile import profile_column
from mmoe.datasets.infer.reading import number_keys
from mmoe.datasets.labels.expressions import columns_of, evaluate, evaluate_label, parse, quote
from mmoe.datasets.labels.targets import fit_scale, has_long_tail, tail_share
from mmoe.datasets.rows.locations import (
    first_true,
    is_number,
    missing_column,
    place,
    visible_columns,
)
from mmoe.datasets.values.arrow import is_numeric, pc, plain
from mmoe.datasets.values.columns import parse_amounts
from mmoe.datasets.values.text import settle
from mmoe.metrics import kind_of

_POSITIVE_WORDS = (
    "1", "y", "yes", "t", "true", "on", "pos", "positive", "click", "clicked", "buy", "bought",
    "purchase", "purchased", "converted", "success", "win", "won", "good", "like", "liked",
    "ja", "wahr", "oui", "vrai", "si", "sí", "sì", "sim", "verdadero", "vero", "tak", "да", "是",
    "はい",
)  # fmt: skip
_NEGATIVE_WORDS = (
    "0", "n", "no", "f", "false", "off", "neg", "negative", "none", "not", "bad", "fail", "failed",
    "lost", "nein", "falsch", "non", "faux", "não", "falso", "nee", "nej", "nie", "нет", "否",
    "いいえ",
)  # fmt: skip
_MOSTLY = 0.99  # of the rows 0 or 1: then other whole numbers are stray, not a regression
_NUMBERS = 0.9  # of the different values: then others are words among numbers
_WIDE = 0.6  # deviation of logarithms, from which on values spread over orders of magnitude
_COUNTS = 100  # different values above 0, up to which they are counts
# Times that a lognormal's mean may be above or below that of the labels: at 1.8 (exponential noise
# to the power 1.5) its test R² was -0.01 beside a curve's 0.12, at 3.5 (squared) -0.38 beside 0.05
_OFF_MEAN = 1.25


@dataclass(frozen=True, kw_only=True)
class GuessedTask:
    """A guessed task, the reason for it, and its label in each row."""

    task: TaskConfig
    columns: list[str]
    reasons: list[str]
    values_N: np.ndarray  # float64, 0 where unobserved
    observed_N: np.ndarray

    @property
    def is_event(self) -> bool:
        """Whether labels are 0 or 1."""
        return kind_of(self.task.kind).is_event

    @property
    def rarer(self) -> int:
        """Number of rows of the rarer outcome, of an event."""
        positives = self.positives
        return min(positives, int(self.observed_N.sum()) - positives)

    @property
    def positives(self) -> int:
        """Number of observed labels that are 1."""
        return int((self.values_N[self.observed_N] == 1).sum())


def guess_task(table: pa.Table, label: str, name: str, origin: str) -> GuessedTask:
    """Guesses the task for one `--label`: a column, or an expression over columns.

    Raises:
        ValueError: There is no such column, it is empty, constant or infinite somewhere, it is text
            of many values, or 0 and 1 but for a few rows.
    """
    if label not in visible_columns(table):
        return _from_expression(table, label, name, origin)
    column = plain(table[label])
    column = settle(column) if pa.types.is_large_string(column.type) else column
    if pa.types.is_decimal(column.type) or pa.types.is_floating(column.type):
        # Without NaN: expressions and samples then print as numbers
        floats = column.cast(pa.float64(), safe=False)
        column = pc.if_else(pc.is_nan(floats), None, floats)
        table = table.set_column(table.column_names.index(label), label, column)
    where = f"{origin}: label column {label!r}"
    wrong = f"{where} holds {column.type}, expected 0 and 1, two values, or numbers"
    if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
        raise ValueError(wrong)
    values = pc.unique(column.drop_null())
    if len(values) == 0:
        raise ValueError(f"{where} is empty; expected 0 and 1, two values, or numbers")
    if len(values) == 1:
        raise ValueError(
            f"{where} holds {values[0].as_py()!r} only; a label needs two values or more"
        )
    profile = profile_column(label, column)
    if profile.numbers_N is not None:
        _refuse_infinite(table, label, profile.numbers_N, origin)
    if profile.nature == "text" or (len(values) == 2 and not _is_zero_one(values)):
        if len(values) > 2 and (amount := _as_amount(label, values)) is not None:
            return _from_expression(table, amount, name, origin)
        if len(values) > 2:
            _refuse_text_among_numbers(column, values, table, label, origin)
            some = ", ".join(repr(value) for value in values[:5].to_pylist())
            raise ValueError(
                f"{where} holds {len(values)} different texts ({some}, …), expected 0/1, two "
                f'values or numbers; say which one counts: --label "{quote(label)} == '
                f'{values[0].as_py()!r}"'
            )
        expression, reason = _two_values(label, column, values)
        task = TaskConfig(name=name, label=expression)
        return _guessed(table, task, [label], [reason], origin)
    if profile.nature == "boolean" or _is_zero_one(values):
        return _guessed(table, TaskConfig(name=name, label=quote(label)), [label], [], origin)
    if profile.nature in ("integer", "real"):
        assert profile.numbers_N is not None
        if profile.nature == "integer":
            _refuse_stray(table, label, profile.numbers_N, origin)
        return _regression(table, label, name, profile.numbers_N, origin)
    raise ValueError(wrong)


def _as_amount(label: str, values: pa.Array) -> str | None:
    """The expression of a label whose texts are numbers such as $1,234.50 or 1.2k."""
    texts = values.cast(pa.large_string())
    keys = number_keys(texts) or {}
    marks = [keys["decimal"]] if "decimal" in keys else [".", ","]
    for decimal in marks:
        if not parse_amounts(pa.chunked_array([texts]), decimal).null_count:
            return f"number({quote(label)}" + ("" if decimal == "." else ", ','") + ")"
    return None


def consequence_notes(tasks: list[GuessedTask]) -> dict[str, str]:
    """Says which label is other than 0 only where another is 1, though it is known elsewhere.

    Of several such events the rarest is named, which lies nearest: opened, clicked, then bought. A
    number may be such a consequence, as seconds watched are, but no cause.
    """
    events = [task for task in tasks if task.is_event]
    notes = {}
    for task in tasks:
        causes = [other for other in events if other is not task and _happens_after(task, other)]
        if causes:
            nearest = min(causes, key=lambda cause: cause.positives)
            notes[task.task.name] = nearest.task.name
    return notes


def _happens_after(task: GuessedTask, other: GuessedTask) -> bool:
    inside_N = (task.values_N != 0) & task.observed_N
    outer_N = (other.values_N == 1) & other.observed_N
    if not (task.observed_N & ~outer_N).any():
        return False  # already learned from those rows alone
    most = outer_N.sum() - task.is_event  # a copy of the event's label is no consequence
    return 1 <= inside_N.sum() <= most and not (inside_N & ~outer_N).any()


def _from_expression(table: pa.Table, label: str, name: str, origin: str) -> GuessedTask:
    there = visible_columns(table)
    try:
        columns = columns_of(label)
    except ValueError:
        columns = []
    if not columns or label in columns:
        raise ValueError(missing_column(label, there, origin, "--label"))
    values = evaluate(label, table, origin, f"--label {label!r}")
    if not values.is_flag:
        numbers_N = np.where(values.missing, np.nan, values.data.astype(np.float64))
        _refuse_infinite(table, label, numbers_N, origin)
        present = numbers_N[~np.isnan(numbers_N)]
        if not np.isin(present, (0, 1)).all():
            keys, reason = _learnt_as(present)
            task = TaskConfig(name=name, label=label, **keys)
            return _guessed(table, task, columns, [reason], origin)
    return _guessed(table, TaskConfig(name=name, label=label), columns, [], origin)


def _guessed(
    table: pa.Table, task: TaskConfig, columns: list[str], reasons: list[str], origin: str
) -> GuessedTask:
    values = evaluate_label(task.label, table, origin, f"task {task.name!r}")
    observed_N = ~values.missing
    values_N = np.where(observed_N, values.data.astype(np.float64), 0.0)
    present = values_N[observed_N]
    if kind_of(task.kind).is_event:
        if not len(present) or present.min() == present.max():
            came = f"{present[0]:g} in every row" if len(present) else "empty in every row"
            raise ValueError(
                f"{origin}: label {task.label!r} is {came}; a label needs both 0 and 1"
            )
        reasons = [*reasons, f"{100 * present.mean():.3g} % of {len(present)} rows positive"]
    if len(present) < len(values_N):
        reasons = [*reasons, f"{len(values_N) - len(present)} rows have no label and are masked"]
    return GuessedTask(
        task=task, columns=columns, reasons=reasons, values_N=values_N, observed_N=observed_N
    )


def _refuse_infinite(table: pa.Table, label: str, numbers_N: np.ndarray, origin: str) -> None:
    """Training would refuse the row, so the config must not be written."""
    if (index := first_true(np.isinf(numbers_N))) is not None:
        raise ValueError(
            f"{place(table, origin, index)}: label {label!r} is {numbers_N[index]}, expected a "
            "finite number; leave the cell empty or clip it"
        )


def _refuse_text_among_numbers(
    column: pa.ChunkedArray, values: pa.Array, table: pa.Table, label: str, origin: str
) -> None:
    """A few words in a column of numbers make it a column of text."""
    texts = [text for text in values.to_pylist() if not is_number(text)]
    if not texts or len(texts) > (1 - _NUMBERS) * len(values):
        return
    there_N = pc.is_in(column, value_set=pa.array(texts, values.type)).to_numpy()
    index = int(there_N.argmax())
    raise ValueError(
        f"{place(table, origin, index)}: label column {label!r} is {column[index].as_py()!r}, but "
        f"a number in {len(column) - column.null_count - int(there_N.sum())} rows; mend the cell, "
        "or leave it empty"
    )


def _refuse_stray(table: pa.Table, label: str, numbers_N: np.ndarray, origin: str) -> None:
    """A few other values in a label of 0 and 1 must not turn it into a regression unasked."""
    present_N = ~np.isnan(numbers_N)
    stray_N = present_N & (numbers_N != 0) & (numbers_N != 1)
    if stray_N.sum() <= (1 - _MOSTLY) * present_N.sum():
        index = int(stray_N.argmax())
        raise ValueError(
            f"{place(table, origin, index)}: label column {label!r} is {numbers_N[index]:g}, but 0 "
            f"or 1 in {(present_N & ~stray_N).sum()} of {present_N.sum()} rows; mend the cell, or "
            f'say what counts: --label "{quote(label)} > 0" (for a regression: --label '
            f'"{quote(label)} + 0")'
        )


def _is_zero_one(values: pa.Array) -> bool:
    kind = values.type
    if pa.types.is_boolean(kind):
        return True
    if not is_numeric(kind):
        return False
    return {value for value in values.to_pylist() if value == value} <= {0, 1}


def _two_values(label: str, column: pa.ChunkedArray, values: pa.Array) -> tuple[str, str]:
    """Picks the positive one of two values: a word like yes, the larger number, the rarer."""
    pair = values.to_pylist()
    if all(isinstance(value, str) for value in pair):
        words = [value.strip().lower() for value in pair]
        looks = [
            (word in _POSITIVE_WORDS)
            - (word in _NEGATIVE_WORDS or word.startswith(("no ", "not ")))
            for word in words
        ]
        if looks[0] != looks[1]:
            chosen = pair[0] if looks[0] > looks[1] else pair[1]
            reason = f"{chosen!r} reads like the positive of {pair[0]!r} and {pair[1]!r}"
        else:
            counts = [pc.sum(pc.equal(column, value).cast(pa.int64())).as_py() for value in pair]
            chosen = pair[0] if counts[0] <= counts[1] else pair[1]
            reason = f"the rarer of {pair[0]!r} and {pair[1]!r}"
        return f"{quote(label)} == {chosen!r}", reason
    chosen = max(pair)
    return f"{quote(label)} == {chosen!r}", f"the larger of {min(pair)!r} and {chosen!r}"


def _regression(
    table: pa.Table, label: str, name: str, numbers_N: np.ndarray, origin: str
) -> GuessedTask:
    """Numbers in their own units, learnt as their distribution asks for."""
    present = numbers_N[np.isfinite(numbers_N)]
    keys, reason = _learnt_as(present)
    middle = float(np.median(present))
    reason = f"numbers of more than two values: {reason}"
    reason += f"; for a binary task instead: {{label: {quote(label)} > {middle:g}}}"
    task = TaskConfig(name=name, label=quote(label), **keys)
    return _guessed(table, task, [label], [reason], origin)


def _learnt_as(labels_N: np.ndarray) -> tuple[dict[str, Any], str]:
    """The kind and the target of a task whose labels are these numbers, and why.

    A squared error, unless the hundredth of rows that lie furthest out decides what it learns: then
    Huber's loss where these lie on both sides; a zero-inflated lognormal for values of 0 or more
    that spread over orders of magnitude as those of a lognormal do, and a curve for others. On ten
    draws of invented amounts (5,600 rows; lognormal noise, 40 or 600 ids, 0 to 70 % zeros) the
    lognormal had a test R² that was 0.002 to 0.032 above that of the curve, and on three of spend
    -0.002 to 0.010 above that of a squared error; on two of symmetrical noise (t, 2 degrees)
    Huber's was 0.005 and 0.011 above.
    """
    if not has_long_tail(labels_N):
        return {"kind": "regression"}, "a regression"
    why = f"the 1 % furthest from the mean make up {tail_share(labels_N):.0%} of their variance"
    above_N = labels_N[labels_N > 0]
    if labels_N.min() >= 0 and len(np.unique(above_N)) > _COUNTS and _is_lognormal(above_N):
        zeros = float((labels_N == 0).mean())
        return {"kind": "ziln"}, f"a lognormal, {zeros:.0%} of them 0: {why}"
    if fit_scale(labels_N, "auto") is None:
        return {"kind": "huber"}, f"a regression by Huber's loss: {why}, on both sides"
    return {"kind": "regression", "target": "auto"}, f"a regression on a curve: {why}"


def _is_lognormal(values_N: np.ndarray) -> bool:
    """Whether values above 0 spread over orders of magnitude, and have the mean of a lognormal."""
    logs_N = np.log(values_N)
    off_by = logs_N.mean() + logs_N.var() / 2 - np.log(values_N.mean())
    return bool(logs_N.std() > _WIDE and abs(off_by) <= np.log(_OFF_MEAN))


def separate_labels(labels: Sequence[str], columns: Sequence[str], origin: str) -> list[str]:
    """Returns the labels one by one: `click,buy` is two where no column has that name.

    Args:
        labels: As they were given: columns, expressions, or several columns with commas between.
        columns: That there are.
        origin: What the user calls the data; starts error messages.

    Raises:
        ValueError: Some of what stands between commas is a column, and some is not.

    Example:
        >>> separate_labels(["click, buy", "a,b"], ["click", "buy", "a,b"], "log.csv")
        ['click', 'buy', 'a,b']
    """
    found: list[str] = []
    for label in labels:
        parts = [part.strip() for part in label.split(",") if part.strip()]
        if label in columns or len(parts) < 2 or _is_expression(label):
            found.append(label)
            continue
        known = [part for part in parts if part in columns]
        if known and len(known) < len(parts):
            other = next(part for part in parts if part not in columns)
            right = " ".join(f"--label {shlex.quote(part)}" for part in parts)
            raise ValueError(
                f"{missing_column(other, columns, origin, f'--label {label!r}')} (labels one by "
                f"one: {right})"
            )
        found += known or [label]
    return found


def _is_expression(label: str) -> bool:
    """A comma inside brackets or quotes belongs to a formula."""
    try:
        return not isinstance(parse(label)[0], ast.Tuple)
    except ValueError:
        return False

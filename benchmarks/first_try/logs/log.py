"""A generated log: rows drawn from a world whose true probabilities are known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

Family = Literal["additive", "trees", "factors", "shared"]
# What a column may be taken for: a kind of feature, `both` (number and id), or left out
Kinds = frozenset[str]

ID: Kinds = frozenset({"categorical"})
NUMBER: Kinds = frozenset({"numeric", "both"})
EITHER: Kinds = frozenset(
    {"categorical", "numeric", "both"}
)  # few values in an order: hours, stars
LIST: Kinds = frozenset({"list"})
VECTOR: Kinds = frozenset({"vector"})
LEFT_OUT: Kinds = frozenset({"left_out"})
TIME: Kinds = frozenset({"left_out", "datetime"})
NOISE: Kinds = EITHER | LEFT_OUT  # says nothing of the labels, so that any kind is right

_PROBE = 50_000  # rows by which a task's rate is set


@dataclass(frozen=True)
class Drawn:
    """Rows before their labels: columns, and each task's logit but for a constant."""

    columns: dict[str, Any]
    logits: dict[str, np.ndarray]


# From a generator of rows and their number to rows; `late` rows lie after those of training.
Draw = Callable[[np.random.Generator, int, bool], Drawn]


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log of one family.

    Attributes:
        name: Of the log.
        family: What its truth is made of.
        rows: To train on, validation included.
        rates: Task → share of positive rows.
        kinds: Column → what it may be taken for.
        build: From the world's generator to what draws rows.
        seed: Of the world.
        seen_when: Task → the task without which its label is missing.
    """

    name: str
    family: Family
    rows: int
    rates: Mapping[str, float]
    kinds: Mapping[str, Kinds]
    build: Callable[[np.random.Generator], Draw]
    seed: int
    seen_when: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def draw(self) -> Draw:
        """Draws rows of this log's world, which its seed alone decides."""
        return self.build(np.random.default_rng([self.seed, 0]))

    @cached_property
    def constants(self) -> dict[str, float]:
        """What each task's logit is raised by, so that its rate is as wanted."""
        probe = self.draw(np.random.default_rng([self.seed, 1]), _PROBE, False)
        return {task: _constant(probe.logits[task], rate) for task, rate in self.rates.items()}

    def training(self) -> pa.Table:
        """Returns the rows to train on, with labels."""
        return self._rows(2, self.rows, late=False)[0]

    def test(self, rows: int) -> tuple[pa.Table, dict[str, np.ndarray]]:
        """Returns fresh rows with labels, and each task's true probabilities."""
        return self._rows(3, rows, late=True)

    def _rows(self, part: int, rows: int, late: bool) -> tuple[pa.Table, dict[str, np.ndarray]]:
        rng = np.random.default_rng([self.seed, part])
        drawn = self.draw(rng, rows, late)
        if set(drawn.columns) != set(self.kinds):
            raise ValueError(f"{self.name}: columns {sorted(drawn.columns)}, kinds of {self.kinds}")
        true = {t: _sigmoid(drawn.logits[t] + c) for t, c in self.constants.items()}
        labels = {t: (rng.random(rows) < p).astype(np.int64) for t, p in true.items()}
        columns = {name: _arrow(values) for name, values in drawn.columns.items()}
        for task, values_N in labels.items():
            before = self.seen_when.get(task)
            hidden_N = None if before is None else labels[before] == 0
            columns[task] = pa.array(values_N, mask=hidden_N)
        return pa.table(columns), true


def _constant(logits_N: np.ndarray, rate: float) -> float:
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        if _sigmoid(logits_N + middle).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _sigmoid(logits_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits_N, -40, 40)))


def _arrow(values: Any) -> pa.Array:
    """NaN is a missing value; rows of a matrix are lists of one length."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.ravel().astype(np.float32))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return pa.array(values, from_pandas=True)
    return pa.array(values)

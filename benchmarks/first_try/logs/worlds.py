"""What a log is, and what the worlds that draw them are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

# What a column may be taken for: a kind of feature, `both` (number and id), or left out
Kinds = frozenset[str]

ID: Kinds = frozenset({"categorical"})
NUMBER: Kinds = frozenset({"numeric", "both"})
EITHER: Kinds = ID | NUMBER  # few values in an order: hours, stars
LIST: Kinds = frozenset({"list"})
VECTOR: Kinds = frozenset({"vector"})
LEFT_OUT: Kinds = frozenset({"left_out"})
TIME: Kinds = frozenset({"left_out", "datetime"})  # which says little
MOMENT: Kinds = frozenset({"datetime"})  # whose hour, weekday or season says much
NOISE: Kinds = EITHER | LEFT_OUT  # says nothing of the labels, so that any kind is right
_KINDS = {
    "id": ID, "number": NUMBER, "either": EITHER, "list": LIST, "vector": VECTOR, "time": TIME,
    "moment": MOMENT, "noise": NOISE,
}  # fmt: skip
_VALUE = "value"  # said of a task in place of its rate: a regression

_PROBE = 50_000  # rows by which a task's rate is set
TEST_ROWS = 200_000
# Of logs that came later: fewer rows and one seed, as there are many of them
FEWER: Mapping[str, int] = {"seeds": 1, "test_rows": 50_000}


class Value(NamedTuple):
    """A regression's labels and what no model can beat."""

    expected_N: np.ndarray  # Mean of the label, given the columns
    labels_N: np.ndarray


# Rows before their labels: columns, and of each task its logit but for a constant, or its values
Drawn = tuple[dict[str, Any], Mapping[str, "np.ndarray | Value"]]
# From a generator of rows and their number to rows; `late` rows lie after those of training.
Draw = Callable[[np.random.Generator, int, bool], Drawn]


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A log of one family, drawn from a world whose true probabilities are known."""

    name: str
    family: str  # What its truth is made of
    rows: int  # To train on, validation included
    rates: Mapping[str, float | None]  # Task → share of positive rows; None: a regression
    kinds: Mapping[str, Kinds]  # Column → what it may be taken for
    build: Callable[[np.random.Generator], Draw]  # From the world's generator to what draws rows
    seed: int  # Of the world
    # Task → the task without which its label is missing
    seen_when: Mapping[str, str] = field(default_factory=dict)
    by_time: bool = False  # Whether the rows to judge on lie after those to train on
    # Options of `mmoe init` by which a stranger says which rows will be scored
    told: Sequence[str] = ()
    seeds: int | None = None  # How many trainings; None: by the number of rows
    test_rows: int = TEST_ROWS  # At most

    @cached_property
    def draw(self) -> Draw:
        return self.build(np.random.default_rng([self.seed, 0]))

    @cached_property
    def constants(self) -> dict[str, float]:
        """Of the logits of binary tasks, so that they have their rates."""
        _, signals = self.draw(np.random.default_rng([self.seed, 1]), _PROBE, False)
        return {
            task: _constant(np.asarray(signals[task]), rate)
            for task, rate in self.rates.items()
            if rate is not None
        }

    def training(self) -> pa.Table:
        """Returns the rows of the file that `mmoe init` sees, validation included."""
        return self._rows(2, self.rows, late=False)[0]

    def test(self, rows: int) -> tuple[pa.Table, Mapping[str, np.ndarray]]:
        """Returns at most so many rows, and each task's expected labels where they are known."""
        return self._rows(3, min(rows, self.test_rows), late=True)

    def _rows(self, part: int, rows: int, late: bool) -> tuple[pa.Table, dict[str, np.ndarray]]:
        rng = np.random.default_rng([self.seed, part])
        drawn, signals = self.draw(rng, rows, late)
        if set(drawn) != set(self.kinds):
            raise ValueError(f"{self.name}: columns {sorted(drawn)}, kinds of {self.kinds}")
        true, labels = {}, {}
        for task in self.rates:
            signal = signals[task]
            if isinstance(signal, Value):
                true[task], labels[task] = signal
            else:
                true[task] = sigmoid(signal + self.constants[task])
                labels[task] = (rng.random(rows) < true[task]).astype(np.int64)
        columns = {name: _arrow(values) for name, values in drawn.items()}
        for task, values_N in labels.items():
            before = self.seen_when.get(task)
            hidden_N = None if before is None else labels[before] == 0
            columns[task] = pa.array(values_N, mask=hidden_N)
        return pa.table(columns), true


# By name; worlds are drawn before any rule of inference or size is looked at on them
GENERATED: dict[str, Generated] = {}
Build = Callable[[np.random.Generator], Draw]


def log_of(family: str, rows: int, seed: int, words: str, **more: Any) -> Callable[[Build], Build]:
    """Makes a log of what builds its world; words are `task:rate`, then `column:kind`.

    `task:value` is a regression. `more` are further attributes of `Generated`.
    """

    rates, right = said_of(words)

    def known(build: Build) -> Build:
        log = build.__name__.removeprefix("_")
        GENERATED[log] = Generated(
            name=log, family=family, rows=rows, rates=rates, kinds=right, build=build, seed=seed,
            **more,
        )  # fmt: skip
        return build

    return known


def said_of(words: str) -> tuple[dict[str, float | None], dict[str, Kinds]]:
    """Returns rates of tasks and kinds of columns, from words as for `log_of`."""
    rates: dict[str, float | None] = {}
    right = {}
    for name, _, said in (word.partition(":") for word in words.split()):
        if said in _KINDS:
            right[name] = _KINDS[said]
        else:
            rates[name] = None if said == _VALUE else float(said)
    return rates, right


def _constant(logits_N: np.ndarray, rate: float) -> float:
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        if sigmoid(logits_N + middle).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def sigmoid(logits_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits_N, -40, 40)))


def _arrow(values: Any) -> pa.Array:
    """NaN is a missing value; rows of a matrix are lists of one length."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.ravel().astype(np.float32))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return pa.array(values, from_pandas=True)
    return pa.array(values)


# What the worlds are made of: ids by Zipf's law, effects, bumps, trees, texts


def zipf(rng: np.random.Generator, size: int, rows: int, power: float = 1.0) -> np.ndarray:
    weights = 1 / np.arange(1, size + 1) ** power
    bounds = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(bounds, rng.random(rows)), size - 1)


def shuffled(world: np.random.Generator, size: int, low: int, high: int) -> np.ndarray:
    """Returns `size` different whole numbers in [low, high): ids in no order."""
    span = high - low
    if span <= 4 * size:
        return low + world.permutation(span)[:size]
    found = np.unique(world.integers(low, high, 2 * size))
    return world.permutation(found)[:size]


def hashes(world: np.random.Generator, size: int) -> np.ndarray:
    numbers = world.integers(0, 2**63, size)
    return np.array([f"{number:016x}" for number in numbers])


def words(world: np.random.Generator, size: int) -> np.ndarray:
    ends = ["bar", "den", "kol", "mir", "nus", "pel", "ros", "sta", "tin", "vor", "wex", "yal"]
    found: list[str] = []
    while len(found) < size:
        name = "".join(world.choice(ends, int(world.integers(2, 5))))
        if name not in found:
            found.append(name)
    return np.array(found)


def bump(x_N: np.ndarray, middle: float, width: float) -> np.ndarray:
    return np.exp(-(((x_N - middle) / width) ** 2))


def standard(x_N: np.ndarray) -> np.ndarray:
    """Returns ranks of the values, from −1 to 1."""
    order = np.argsort(np.argsort(x_N, kind="stable"), kind="stable")
    return 2 * order / max(len(x_N) - 1, 1) - 1


class Tree:
    """A random tree over columns: axis-parallel cuts, a number in each leaf."""

    def __init__(
        self, world: np.random.Generator, samples: dict[str, np.ndarray], depth: int, scale: float
    ) -> None:
        self.column = str(world.choice(sorted(samples)))
        self.cut = float(np.quantile(samples[self.column], world.uniform(0.15, 0.85)))
        self.leaves = world.normal(0, scale, 2)
        self.children: Sequence[Tree] = ()
        if depth > 1:
            self.children = [Tree(world, samples, depth - 1, scale) for _ in range(2)]

    def __call__(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        right_N = columns[self.column] > self.cut
        if not self.children:
            return self.leaves[right_N.astype(int)]
        left, right = (child(columns) for child in self.children)
        return np.where(right_N, right, left)


def forest(
    world: np.random.Generator, samples: dict[str, np.ndarray], trees: int, depth: int, scale: float
) -> list[Tree]:
    return [Tree(world, samples, depth, scale / trees**0.5) for _ in range(trees)]


def add_up(trees: Sequence[Tree], columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.sum([tree(columns) for tree in trees], axis=0)


def with_gaps(rng: np.random.Generator, values_N: np.ndarray, share: float) -> np.ndarray:
    return np.where(rng.random(len(values_N)) < share, np.nan, values_N.astype(np.float64))


def tastes(
    world: np.random.Generator, left: int, right: int, width: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of two columns' ids; a pair's effect is their inner product."""
    a, b = world.normal(0, 1, (left, width)), world.normal(0, 1, (right, width))
    return a * (scale / width**0.5), b


def pairs(left: np.ndarray, i: np.ndarray, right: np.ndarray, j: np.ndarray) -> np.ndarray:
    return np.einsum("nk,nk->n", left[i], right[j])

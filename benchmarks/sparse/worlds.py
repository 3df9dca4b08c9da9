"""Logs whose true probabilities are known: a smooth function, segments, tasks that conflict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

IDS = tuple(np.geomspace(200, 100_000, 12).astype(int).tolist())  # values of each column of ids
NUMBERS = 10
ID_COLUMNS = tuple(f"id{number:02d}" for number in range(len(IDS)))
NUMBER_COLUMNS = tuple(f"x{number}" for number in range(NUMBERS))
_ZIPF = 1.05
_OF_GROUP = 4  # tasks that want about the same
_HIDDEN = 8  # numbers that each id stands for
_PIECE = 100_000  # rows whose logits are computed at once
Logits = Callable[[np.ndarray], np.ndarray]  # of the rows with these numbers, for each task


@dataclass(frozen=True)
class World:
    log: pa.Table
    truth_NT: np.ndarray  # float64, probabilities

    @property
    def tasks(self) -> tuple[str, ...]:
        return task_names(self.truth_NT.shape[1])


def task_names(count: int) -> tuple[str, ...]:
    return tuple(f"task{number:02d}" for number in range(count))


@dataclass(frozen=True)
class _Rows:
    ids: list[np.ndarray]
    hidden: list[np.ndarray]  # of each column, what its ids stand for
    numbers_NX: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, rows: int) -> "_Rows":
        ids = [_zipf(rng, size, rows) for size in IDS]
        hidden = [_normal(rng, size, _HIDDEN) for size in IDS]
        return cls(ids, hidden, _normal(rng, rows, NUMBERS))

    def effects(self, rng: np.random.Generator, tasks: int) -> np.ndarray:
        """What single ids add to each task's logit, with a variance of 1."""
        parts = (
            h[i] @ _normal(rng, _HIDDEN, tasks) for h, i in zip(self.hidden, self.ids, strict=True)
        )
        total_NT = np.sum(list(parts), axis=0)
        return total_NT / total_NT.std(0)

    def kinds(self, rng: np.random.Generator, column: int, count: int) -> np.ndarray:
        """A hidden kind of each row, which its id in a column tells."""
        return rng.integers(count, size=IDS[column])[self.ids[column]]


def draw_world(name: str, seed: int, rows: int, tasks: int) -> World:
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = _Rows.draw(rng, rows)
    logits, spread = _WORLDS[name](rng, drawn, tasks)
    pieces = [np.arange(at, min(at + _PIECE, rows)) for at in range(0, rows, _PIECE)]
    logits_NT = np.concatenate([logits(piece).astype(np.float32) for piece in pieces])
    logits_NT = (logits_NT - logits_NT.mean(0)) / logits_NT.std(0) * spread
    truth_NT = 1 / (1 + np.exp(-(logits_NT + np.linspace(-2, 0.5, tasks))))
    labels_NT = (rng.random((rows, tasks)) < truth_NT).astype(np.int8)
    columns: dict[str, np.ndarray] = dict(zip(ID_COLUMNS, drawn.ids, strict=True))
    columns |= dict(zip(NUMBER_COLUMNS, drawn.numbers_NX.T, strict=True))
    columns |= dict(zip(task_names(tasks), labels_NT.T, strict=True))
    return World(pa.table({key: pa.array(values) for key, values in columns.items()}), truth_NT)


def _smooth(rng: np.random.Generator, rows: _Rows, tasks: int) -> tuple[Logits, float]:
    """A network of 512 GELU units over the numbers and what the ids stand for."""
    width = len(IDS) * _HIDDEN + NUMBERS
    first = _normal(rng, width, 512) * (2 / width) ** 0.5
    last = _normal(rng, 512, tasks)

    def logits(piece: np.ndarray) -> np.ndarray:
        hidden = [h[i[piece]] for h, i in zip(rows.hidden, rows.ids, strict=True)]
        return _gelu(np.concatenate([*hidden, rows.numbers_NX[piece]], axis=1) @ first) @ last

    return logits, 1.5


def _segments(rng: np.random.Generator, rows: _Rows, tasks: int) -> tuple[Logits, float]:
    """200 kinds of rows, which two columns of ids tell together; each weighs the numbers anew."""
    kinds = rows.kinds(rng, 1, 20) * 10 + rows.kinds(rng, 3, 10)
    weights_SXT = _normal(rng, 200, NUMBERS, tasks) / NUMBERS**0.5
    effects_NT = 0.5 * rows.effects(rng, tasks)

    def logits(piece: np.ndarray) -> np.ndarray:
        own = np.einsum("nx,nxt->nt", rows.numbers_NX[piece], weights_SXT[kinds[piece]])
        return own + effects_NT[piece]

    return logits, 2.0


def _conflict(rng: np.random.Generator, rows: _Rows, tasks: int) -> tuple[Logits, float]:
    """Groups of four tasks; each group weighs the numbers of each kind of row in its own way."""
    groups = max(tasks // _OF_GROUP, 1)
    kinds = rows.kinds(rng, 1, 20) * 10 + rows.kinds(rng, 3, 10)
    shared_SXG = _normal(rng, 200, NUMBERS, groups) / NUMBERS**0.5
    weights_SXT = np.repeat(shared_SXG, _OF_GROUP, axis=2)[..., :tasks]
    weights_SXT += 0.3 * _normal(rng, 200, NUMBERS, tasks) / NUMBERS**0.5
    effects_NT = 0.5 * rows.effects(rng, tasks)

    def logits(piece: np.ndarray) -> np.ndarray:
        own = np.einsum("nx,nxt->nt", rows.numbers_NX[piece], weights_SXT[kinds[piece]])
        return own + effects_NT[piece]

    return logits, 2.0


_WORLDS: Mapping[str, Callable[[np.random.Generator, _Rows, int], tuple[Logits, float]]] = {
    "smooth": _smooth,
    "segments": _segments,
    "conflict": _conflict,
}


def _zipf(rng: np.random.Generator, size: int, rows: int) -> np.ndarray:
    weights = 1 / np.arange(1, size + 1) ** _ZIPF
    ends = np.cumsum(weights / weights.sum())
    return np.searchsorted(ends, rng.random(rows)).clip(0, size - 1)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-1.702 * x))

"""A log of twelve labels whose true probabilities are known, and how alike they are is a number."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

TASKS = tuple(f"task{number:02d}" for number in range(1, 13))
TRAIN_SHARE = 0.75  # of the rows; a tenth of it validates, the rest tests
SIZES: Mapping[str, int] = {
    "campaign": 120, "site": 150, "city": 60, "hour": 24, "format": 8, "device": 6
}  # fmt: skip
_PAIRS = (("campaign", "site"), ("campaign", "city"), ("site", "device"), ("hour", "format"))
_HIDDEN = 3  # numbers that the ids of a pair meet in
_RATES = np.linspace(-2.0, 0.5, len(TASKS))  # logits of the labels' rates
_SPREAD = 1.5  # standard deviation of a logit


@dataclass(frozen=True)
class World:
    """A log, and each task's true probability of each of its rows."""

    log: pa.Table
    truth: Mapping[str, np.ndarray]


def draw_world(seed: int, correlation: float, rows: int) -> World:
    """Draws it; the logits of two tasks have a correlation of `correlation`."""
    rng = np.random.default_rng(seed)
    ids = {name: rng.integers(size, size=rows) for name, size in SIZES.items()}
    numbers = {name: rng.normal(size=rows) for name in ("price", "age")}
    shared = _signal(rng, ids, numbers)
    truth, columns = {}, {name: pa.array(_names(name, own)) for name, own in ids.items()}
    for task, rate in zip(TASKS, _RATES, strict=True):
        own = _signal(rng, ids, numbers)
        own -= np.mean(own * shared) * shared
        mixed = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own / own.std()
        truth[task] = 1 / (1 + np.exp(-(rate + _SPREAD * mixed)))
        columns[task] = pa.array((rng.random(rows) < truth[task]).astype(np.int8))
    return World(pa.table({**columns, **numbers}), truth)


def _signal(
    rng: np.random.Generator, ids: Mapping[str, np.ndarray], numbers: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Effects of single columns, of pairs that meet in hidden numbers, and bumps over numbers."""
    parts = [rng.normal(size=SIZES[name])[own] for name, own in ids.items()]
    for a, b in _PAIRS:
        of_a, of_b = (rng.normal(size=(SIZES[name], _HIDDEN))[ids[name]] for name in (a, b))
        parts.append((of_a * of_b).sum(1))
    parts += [np.sin(2 * x + rng.uniform(0, 6)) for x in numbers.values()]
    total = sum((part - part.mean()) / part.std() for part in parts)
    assert isinstance(total, np.ndarray)
    return (total - total.mean()) / total.std()


def _names(name: str, numbers: np.ndarray) -> np.ndarray:
    return np.array([f"{name}{i}" for i in range(SIZES[name])])[numbers]

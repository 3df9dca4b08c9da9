"""A sample of the rows, with columns as codes: what every measurement is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_tasks import GuessedTask
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.arrow import plain
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import codes_of

_LOOKED_AT = 150_000  # rows on which columns are tried against a label
FOLDS = 4
_NARROW = 1 << 21  # whole numbers of a range up to here are numbered without sorting
_EXACT = 2.0**53
_FAR = 5.0  # deviations; a regression's labels are cut here, so that a few do not decide


@dataclass(frozen=True)
class Coded:
    """A column in the sampled rows.

    Attributes:
        codes_S: int64 [S], the number of each row's value; `size` where missing.
        values_V: The distinct values, ascending; None where they have no order.
        size: V.
    """

    codes_S: np.ndarray
    values_V: np.ndarray | None
    size: int

    @property
    def cells(self) -> int:
        """Number of codes, with that of missing values."""
        return self.size + 1


@dataclass(frozen=True)
class Target:
    """A label in those of the sampled rows where it is observed.

    Attributes:
        task: Its task's name.
        is_event: Whether labels are 0 and 1.
        index_L: int64 [L], which of the sampled rows.
        raw_L: float64 [L], the labels.
        labels_L: The same with mean 0 and deviation 1.
    """

    task: str
    is_event: bool
    index_L: np.ndarray
    raw_L: np.ndarray
    labels_L: np.ndarray


@dataclass(frozen=True)
class Sample:
    """The rows that are looked at, and the labels there."""

    rows_S: np.ndarray
    targets: list[Target]

    @property
    def folds_S(self) -> np.ndarray:
        """int64 [S]: the part of the sample that each row belongs to."""
        return folds_of(self.rows_S)


def folds_of(keys_S: np.ndarray) -> np.ndarray:
    """Returns the fold of each key, the same for the same key."""
    hashed_S = mix64(keys_S.astype(np.uint64), seed=1)
    return (hashed_S % np.uint64(FOLDS)).astype(np.int64)


def draw(tasks: Sequence[GuessedTask]) -> Sample:
    """Draws the rows to look at: of each task about as many, the same where they can be."""
    drawn = [sample_rows(np.flatnonzero(task.observed_N)) for task in tasks]
    rows_S = np.unique(np.concatenate(drawn))
    targets = []
    for task in tasks:
        index_L = np.flatnonzero(task.observed_N[rows_S])
        raw_L = task.values_N[rows_S[index_L]]
        deviation = raw_L.std() or 1.0
        labels_L = np.clip((raw_L - raw_L.mean()) / deviation, -np.inf, np.inf)
        if not task.is_event:
            labels_L = np.clip(labels_L, -_FAR, _FAR)
            labels_L = (labels_L - labels_L.mean()) / (labels_L.std() or 1.0)
        targets.append(Target(task.task.name, task.is_event, index_L, raw_L, labels_L))
    return Sample(rows_S, targets)


def sample_rows(rows: np.ndarray) -> np.ndarray:
    """Samples about _LOOKED_AT of the rows, the same ones every time, in order."""
    if len(rows) <= _LOOKED_AT:
        return rows
    return rows[mix64(rows) < np.uint64(2**64 // len(rows) * _LOOKED_AT)]


def code(profile: ColumnProfile, column: pa.ChunkedArray, rows_S: np.ndarray) -> Coded | None:
    """Numbers a column's values in the sampled rows; None for lists and what nobody reads.

    Example:
        >>> from mmoe.datasets.infer.profile import profile_column
        >>> column = pa.chunked_array([[7.0, None, 3.0, 7.0]])
        >>> code(profile_column("x", column), column, np.arange(4)).codes_S
        array([1, 2, 0, 1])
    """
    numbers_N = profile.numbers_N
    if profile.nature in ("list", "vector", "other"):
        return None
    whole = len(column) == len(rows_S)
    if numbers_N is not None:
        numbers_S = numbers_N if whole else numbers_N[rows_S]
        if profile.nature == "real" or not np.nanmax(np.abs(numbers_S), initial=0.0) >= _EXACT:
            return _by_order(numbers_S)
    codes_S, size = codes_of(plain(column if whole else column.take(pa.array(rows_S))))
    return Coded(np.where(codes_S < 0, size, codes_S), None, size)


def _by_order(numbers_S: np.ndarray) -> Coded:
    missing_S = np.isnan(numbers_S)
    present = numbers_S[~missing_S] if missing_S.any() else numbers_S
    values_V, codes = _distinct(present)
    if len(present) == len(numbers_S):
        return Coded(codes, values_V, len(values_V))
    codes_S = np.full(len(numbers_S), len(values_V), np.int64)
    codes_S[~missing_S] = codes
    return Coded(codes_S, values_V, len(values_V))


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values, ascending, and the number of each one's own."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if not 0 < high - low < _NARROW or not (values == np.floor(values)).all():
        return np.unique(values, return_inverse=True)
    offsets = (values - low).astype(np.int64)
    there = np.bincount(offsets, minlength=int(high - low) + 1) > 0
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[offsets]

"""A sample of the rows, with columns as codes; and which of them follow from others."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.guess_tasks import GuessedTask
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.arrow import plain
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import codes_of

_LOOKED_AT = 150_000  # rows on which columns are tried against a label
FOLDS = 4
_TEST = 0.1  # of the rows: the test part of a split by time, and as many for validation
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

    @property
    def unseen(self) -> float:
        """Share of the rows with a value that no other row has: one held out would be unseen."""
        rows_V = np.bincount(self.codes_S, minlength=self.cells)[: self.size]
        return float((rows_V == 1).sum() / max(rows_V.sum(), 1))


@dataclass(frozen=True)
class Target:
    """A label in those of the sampled rows where it is observed."""

    task: str  # its task's name
    is_event: bool  # whether labels are 0 and 1
    index_L: np.ndarray  # int64 [L], which of the sampled rows
    raw_L: np.ndarray  # float64 [L], the labels
    labels_L: np.ndarray  # the same with mean 0 and deviation 1

    def take(self, some_L: np.ndarray) -> "Target":
        """Returns some of the rows."""
        parts = (x[some_L] for x in (self.index_L, self.raw_L, self.labels_L))
        return Target(self.task, self.is_event, *parts)


@dataclass(frozen=True)
class Folds:
    """Parts of the sample that are held out from each other."""

    parts_S: np.ndarray  # int64 [S], from 0 to FOLDS − 1
    # Whether they follow one another in time: each is predicted by earlier ones alone
    forward: bool = False


@dataclass(frozen=True)
class Sample:
    """The rows that are looked at, and the labels there."""

    rows_S: np.ndarray
    targets: list[Target]
    times_S: np.ndarray | None = None  # when each row was, where the split is made by time

    @property
    def folds_S(self) -> np.ndarray:
        """int64 [S]: the part of the sample that each row belongs to, drawn at random."""
        return folds_of(self.rows_S)

    @cached_property
    def folds(self) -> Folds:
        """Parts by which a choice is judged: forwards under a split by time, else at random."""
        if self.times_S is None:
            return Folds(self.folds_S)
        return Folds((FOLDS * self._places(self.times_S)).astype(np.int64), forward=True)

    @cached_property
    def future(self) -> "Future":
        """The rows that a split by time trains on, and those that it tests."""
        assert self.times_S is not None
        places_S = self._places(self.times_S)
        test_S, training_S = places_S >= 1 - _TEST, places_S < 1 - 2 * _TEST
        targets = [target.take((test_S | training_S)[target.index_L]) for target in self.targets]
        kept = [target for target in targets if len(target.index_L)]
        return Future(replace(self, targets=kept), training_S, test_S)

    @staticmethod
    def _places(times_S: np.ndarray) -> np.ndarray:
        """Share of the rows that are earlier, the same for the same time: float64 [S]."""
        return np.searchsorted(np.sort(times_S), times_S) / max(len(times_S), 1)


@dataclass(frozen=True)
class Future:
    """Parts of the sample as a split by time makes them, but for validation."""

    sample: Sample  # with the labels of both parts
    training_S: np.ndarray  # bool [S]
    test_S: np.ndarray  # bool [S]

    @property
    def folds(self) -> Folds:
        """Test rows that training rows predict."""
        return Folds(self.test_S.astype(np.int64), forward=True)

    def unseen(self, coded: Coded) -> tuple[float, float]:
        """Returns the shares of test rows with new values, and with values beyond all known."""
        test = coded.codes_S[self.test_S & (coded.codes_S < coded.size)]
        counts_V = np.bincount(coded.codes_S[self.training_S], minlength=coded.cells)
        known_V = counts_V[: coded.size] > 0
        if not len(test) or not known_V.any():
            return 0.0, 0.0
        seen = np.flatnonzero(known_V)
        beyond = (test < seen[0]) | (test > seen[-1])
        return float((~known_V[test]).mean()), float(beyond.mean())


def folds_of(keys_S: np.ndarray) -> np.ndarray:
    """Returns the fold of each key, the same for the same key."""
    hashed_S = mix64(keys_S.astype(np.uint64), seed=1)
    return (hashed_S % np.uint64(FOLDS)).astype(np.int64)


def draw(tasks: Sequence[GuessedTask], times_N: np.ndarray | None = None) -> Sample:
    """Draws the rows to look at: about as many for each task, shared between tasks if possible.

    Args:
        tasks: Their labels.
        times_N: When each row was, in any unit that sorts; None where no split by time is made.
    """
    drawn = [sample_rows(np.flatnonzero(task.observed_N)) for task in tasks]
    rows_S = np.unique(np.concatenate(drawn))
    targets = []
    for task in tasks:
        index_L = np.flatnonzero(task.observed_N[rows_S])
        raw_L = task.values_N[rows_S[index_L]]
        labels_L = (raw_L - raw_L.mean()) / (raw_L.std() or 1.0)
        if not task.is_event:
            labels_L = np.clip(labels_L, -_FAR, _FAR)
            labels_L = (labels_L - labels_L.mean()) / (labels_L.std() or 1.0)
        targets.append(Target(task.task.name, task.is_event, index_L, raw_L, labels_L))
    return Sample(rows_S, targets, None if times_N is None else times_N[rows_S])


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


_RELATED = 50_000  # rows
_COMPARED = 150_000_000  # values, of all pairs of columns; of very many columns fewer rows are seen
_LEAST = 2000  # rows
_OWNERS = 1000  # columns that others may follow from: those of most values
_GLANCE, _LIKELY = 100, 0.7  # pairs of rows, of which so many agree where all do
_FOLLOWS = 0.9  # of the agreement that chance leaves to be had
_CONSTANT = 0.98  # of two rows that agree by chance: such a column tells nothing
_KEY = 20  # values of an owner, at least
_REPEATED = 0.2  # of the rows, at least, have another one of the same value


@dataclass(frozen=True)
class Relations:
    """Relations between columns: what follows from what."""

    # Column → the coarsest one that it follows from: a price from its item, an age from its user.
    # Rows of one owner are no different evidence of such a column.
    owner: dict[str, str] = field(default_factory=dict)
    # Columns that others follow from, which themselves follow from none: ids, for a quantity
    # decides of nothing else but what is a function of it
    keys: set[str] = field(default_factory=set)


def relate(columns: Mapping[str, Coded]) -> Relations:
    """Finds what follows from what in the sampled rows."""
    found = Relations()
    names = list(columns)
    if not names or len(columns[names[0]].codes_S) < 20:
        return found
    rows = max(min(_RELATED, _COMPARED // len(names) ** 2), _LEAST)
    codes_RC = np.stack([columns[name].codes_S[:rows].astype(np.int32) for name in names], axis=1)
    # How often two rows have the same value
    shares = [np.bincount(codes_R) / len(codes_R) for codes_R in codes_RC.T]
    chance_C = np.array([float((share_V**2).sum()) for share_V in shares])
    follows: dict[str, list[str]] = {name: [] for name in names}
    sizes = [columns[name].size for name in names]
    owners = sorted((n for n, size in enumerate(sizes) if size >= _KEY), key=lambda n: -sizes[n])
    for index in sorted(owners[:_OWNERS]):
        order, same = _pairs(codes_RC[:, index])
        if same.sum() < _REPEATED * len(order):
            continue
        for other in _followers(codes_RC, chance_C, order[:-1][same], order[1:][same]):
            if other != index:
                follows[names[other]].append(names[index])
    followers: dict[str, list[str]] = {name: [] for name in names}
    for name, of_it in follows.items():
        for owner in of_it:
            followers[owner].append(name)
    for name in names:
        _settle(name, columns, follows[name], followers[name], found)
    return found


def _followers(
    codes_RC: np.ndarray, chance_C: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Columns that are the same in such pairs of rows: some pairs tell most that are not."""
    step = -(-len(left) // _GLANCE)
    share_C = (codes_RC[left[::step]] == codes_RC[right[::step]]).mean(axis=0)
    likely = np.flatnonzero(
        (share_C - chance_C >= _LIKELY * (1 - chance_C)) & (chance_C < _CONSTANT)
    )
    own_RL, chance_L = codes_RC[:, likely], chance_C[likely]
    share_L = (own_RL[left] == own_RL[right]).mean(axis=0)
    return likely[share_L - chance_L >= _FOLLOWS * (1 - chance_L)]


def _pairs(codes_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows in order of value, and which of them have the value of the next."""
    order = np.argsort(codes_S, kind="stable")
    ordered = codes_S[order]
    return order, ordered[1:] == ordered[:-1]


def _settle(
    name: str,
    columns: Mapping[str, Coded],
    owners: list[str],
    followers: list[str],
    found: Relations,
) -> None:
    size = columns[name].size
    # As many values and each from the other: one to one, and neither owns the other
    owners = [owner for owner in owners if columns[owner].size > 1.05 * size]
    if owners:
        found.owner[name] = min(owners, key=lambda owner: columns[owner].size)
    if owners or size < _KEY:
        return
    mine = [other for other in followers if columns[other].size < size]
    if any(
        columns[other].size >= 2 and not _function(columns[name], columns[other]) for other in mine
    ):
        found.keys.add(name)


def _function(column: Coded, other: Coded) -> bool:
    """Whether a column that follows is a step function of numbers, as an age group."""
    if column.values_V is None:
        return False
    codes_S, others_S = column.codes_S[:_RELATED], other.codes_S[:_RELATED]
    first_V = np.full(column.cells, -1)
    first_V[codes_S] = others_S
    steps_V = first_V[first_V >= 0]
    if len(steps_V) < 2:
        return True
    changes = float((steps_V[1:] != steps_V[:-1]).mean())
    by_chance = 1 - float(((np.bincount(steps_V) / len(steps_V)) ** 2).sum())
    if changes <= 0.7 * by_chance:  # 0 of 0 where all have one value
        return True
    return bool(abs(np.corrcoef(np.arange(len(steps_V)), steps_V)[0, 1]) > 0.5)


def copies_of(columns: Mapping[str, Coded]) -> dict[str, str]:
    """Finds columns that are one to one with an earlier one in every sampled row.

    Numbers that hardly repeat are copies where they order the rows alike; with ids of as many
    values that would be chance.
    """
    found: dict[str, str] = {}
    firsts: dict[Hashable, str] = {}
    for name, column in columns.items():
        key = _one_to_one_key(column)
        if key is not None and (earlier := firsts.setdefault(key, name)) != name:
            found[name] = earlier
    return found


def _one_to_one_key(column: Coded) -> Hashable | None:
    """The same for columns that are one to one (`one_to_one`); None: for no other."""
    codes_S, rows = column.codes_S, len(column.codes_S)
    if column.size < 2 or rows < 20:
        return None
    missing_S = codes_S == column.size
    if column.size > rows / 2:
        if column.values_V is None:
            return None
        reverse_S = np.where(missing_S, column.size, column.size - 1 - codes_S)
        return column.size, min(_digest(codes_S), _digest(reverse_S))
    first_V = np.full(column.cells, rows)
    first_V[codes_S[::-1]] = np.arange(rows)[::-1]
    rank_V = np.empty_like(first_V)
    rank_V[np.argsort(first_V, kind="stable")] = np.arange(column.cells)
    return column.size, int(missing_S.sum()), _digest(rank_V[codes_S])


def _digest(codes_S: np.ndarray) -> bytes:
    return blake2b(codes_S.astype(np.int64).tobytes(), digest_size=16).digest()


def same_order(left: Coded, right: Coded) -> bool:
    """Returns whether two columns of numbers order the rows alike, or the other way round."""
    if left.values_V is None or right.values_V is None or left.size != right.size:
        return False
    if np.array_equal(left.codes_S, right.codes_S):
        return True
    reverse_S = np.where(right.codes_S == right.size, right.size, right.size - 1 - right.codes_S)
    return np.array_equal(left.codes_S, reverse_S)


def one_to_one(left: Coded, right: Coded) -> bool:
    """Returns whether each value of one goes with one of the other, in rows enough to tell."""
    if left.size != right.size:  # most pairs: no digest is made of them
        return False
    key = _one_to_one_key(left)
    return key is not None and key == _one_to_one_key(right)

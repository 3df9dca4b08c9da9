"""Rows that come more than once: how many, in which splits, and whether chance explains it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import column_part, row_hashes

_KEPT = 1 << 17  # rows of the sample by hash
_HALVINGS = 40  # of it; what is then left is one row, again and again
_CELLS, _FEWEST = 1 << 21, 5_000  # of rows drawn at random, whose columns are compared one by one
_HEAD, _KEYS = 8_192, 6  # rows by which columns of the sample's hash are chosen, and how many
_COLUMNS = 6  # that are left out by twos, to see how many rows agree in all others
_TIMES = 3.0  # as many repeat as chance gives, or more, where how often they come tells nothing
_LEAST = 0.005  # of the rows are copies; fewer are not looked at
_ROWS = 20  # that repeat; fewer say nothing
_SURE = 3.0  # standard errors
_MOST_TIMES = 8
_SEED = 2  # of the rows that are looked at, apart from those of splits and alarms
TRAIN, VALIDATION, TEST = range(3)


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Counts of repeated rows over all splits."""

    rows: int  # how many there are
    copies: float  # share of them that are a copy of a row before
    unusual: bool  # whether more repeat than of rows drawn at random
    validation: float  # share of the validation rows that training has as well
    test: float  # likewise of the test rows
    test_rows_S: np.ndarray  # numbers of the test rows that were sampled by their hashes, int64 [S]
    copied_S: np.ndarray  # which of them training has as well, bool [S]


class RepeatCounter:
    """Counts rows that repeat while they are read, in bounded memory.

    Rows are sampled by the value of a hash: of a row and its copy both are in, or neither. The hash
    is of a few columns with many values, so that the others are hashed in the sample alone.

    Args:
        total: Rows there are in all.
        columns: By which rows are the same.
    """

    def __init__(self, total: int, columns: Iterable[str]) -> None:
        self.columns, self.total = sorted(columns), total
        glance = int(np.clip(_CELLS // max(len(self.columns), 1), _FEWEST, _KEPT))
        self.share = min(1.0, glance / max(total, 1))
        self.halvings = 0  # of the sample by hash
        self._keys: list[str] = []
        self._next = [0, 0, 0]
        self._kept: list[tuple[np.ndarray, ...]] = []
        self._glances: list[np.ndarray] = []

    def add(self, split: int, table: pa.Table) -> None:
        """Takes the next rows of a split."""
        if not table.num_rows:
            return
        self._keys = self._keys or widest_columns(table, self.columns)
        row_N = np.arange(table.num_rows, dtype=np.int64)
        number_N = (row_N + sum(self._next)).astype(np.uint64)
        glance_N = mix64(number_N, _SEED) <= np.uint64(self.share * (2**64 - 2048))
        key_N = mix64(row_hashes(table, self._keys), _SEED)
        kept_N = key_N <= self._most
        mine = np.flatnonzero(glance_N | kept_N)
        few = table if len(mine) == table.num_rows else table.take(pa.array(mine))
        parts_CM = np.stack([column_part(few[name], c) for c, name in enumerate(self.columns)])
        self._glances.append(parts_CM[:, glance_N[mine]])
        kept_M, hash_M = kept_N[mine], parts_CM.sum(axis=0, dtype=np.uint64)
        split_N = np.full(table.num_rows, split, np.int8)
        kept = (key_N, split_N, row_N + self._next[split])
        self._kept.append((hash_M[kept_M], *(part[mine][kept_M] for part in kept)))
        self._next[split] += table.num_rows
        # Halves the sample until it is small enough; hashes are spread evenly
        while sum(len(one[0]) for one in self._kept) > _KEPT and self.halvings < _HALVINGS:
            self.halvings += 1
            self._kept = [tuple(part[one[1] <= self._most] for part in one) for one in self._kept]

    def finish(self) -> Repeats:
        """Returns what was found."""
        parts = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        hash_S, _, split_S, row_S = parts
        _, place_S, times_K = np.unique(hash_S, return_inverse=True, return_counts=True)
        trained_K = np.bincount(place_S[split_S == TRAIN], minlength=len(times_K)) > 0
        copied_S = trained_K[place_S]
        shares = [float(copied_S[split_S == n].mean()) if (split_S == n).any() else 0.0
                  for n in (VALIDATION, TEST)]  # fmt: skip
        copies = 1 - len(times_K) / max(len(hash_S), 1)
        return Repeats(
            rows=sum(self._next),
            copies=copies,
            unusual=max(copies, *shares) >= _LEAST and self._unusual(times_K),
            validation=shares[0],
            test=shares[1],
            test_rows_S=row_S[split_S == TEST],
            copied_S=copied_S[split_S == TEST],
        )

    @property
    def _most(self) -> np.uint64:
        """The largest hash of the sample."""
        return np.uint64(2 ** (64 - self.halvings) - 1)

    def _unusual(self, times_K: np.ndarray) -> bool:
        """Whether chance does not explain how often rows come, `times_K`."""
        repeating = int((times_K > 1).sum())
        if repeating <= _ROWS:
            return False
        parts_CG = np.concatenate(self._glances, axis=1)
        spread = []  # minus the entropy of each column
        for part_G in parts_CG:
            share_K = np.unique(part_G, return_counts=True)[1] / max(len(part_G), 1)
            spread.append(float((share_K * np.log(share_K)).sum()))
        chosen = np.argsort(spread, kind="stable")[:_COLUMNS].tolist()
        again = _delivered_again(times_K)
        if not again:
            # Are two rows that agree in all columns but two, whichever, the same in these too?
            all_G = parts_CG.sum(axis=0, dtype=np.uint64)
            same = _pairs(all_G)
            if not all(
                same > 0.5 * _pairs(all_G - parts_CG[u] - parts_CG[v])
                for u, v in combinations(chosen, 2)
            ):
                return False
        pairs = self.share**2  # of two rows both are looked at
        times = 1.0 if again else _TIMES
        by_chance = (times * _by_chance(parts_CG, chosen) + _SURE) / pairs
        return repeating * 2**self.halvings > by_chance + _ROWS


def widest_columns(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """Returns the columns with most values in the first rows, a few."""
    head = table.slice(0, _HEAD)
    values = {name: len(np.unique(column_part(head[name], 0))) for name in columns}
    return sorted(columns, key=lambda name: -values[name])[:_KEYS]


def _by_chance(parts_CG: np.ndarray, chosen: Sequence[int]) -> float:
    """Estimates how many rows repeat by chance.

    Of pairs of different rows that agree in all columns but u and v, some agree in u, some in v,
    the others in neither: `agree in u` · `agree in v` / `in neither` are then the same by chance,
    which is what shuffling u against v among rows of the same other columns would give. The columns
    are tried by twos; the most that any two of them expect counts.

    Args:
        parts_CG: Parts of the hashes of G rows, by column.
        chosen: The columns to try.
    """
    all_G = parts_CG.sum(axis=0, dtype=np.uint64)
    all_D, first = np.unique(all_G, return_index=True)
    found = 0.0
    for u, v in combinations(chosen, 2):
        u_D, v_D = parts_CG[u, first], parts_CG[v, first]
        with_u, with_v = _pairs(all_D - v_D), _pairs(all_D - u_D)
        neither = _pairs(all_D - u_D - v_D) - with_u - with_v
        found = max(found, with_u * with_v / (neither + 1))
    return found


def _delivered_again(times_K: np.ndarray) -> bool:
    """Whether rows come so often as no drawing of rows makes them come.

    Rows drawn at random come k times with Σ λ^k e^-λ / k!, whatever their rates λ. So k! · (rows
    that come k times) is convex in k in logarithms (Cauchy and Schwarz): many that come twice ask
    for some that come three times.
    """
    counts = np.bincount(np.minimum(times_K, _MOST_TIMES + 1), minlength=_MOST_TIMES + 2)
    for k in range(2, _MOST_TIMES):
        about = [counts[n] + _SURE * np.sqrt(counts[n]) + _SURE for n in (k - 1, k + 1)]
        most = factorial(k - 1) * about[0] * factorial(k + 1) * about[1]
        if counts[k] > _ROWS and (factorial(k) * counts[k]) ** 2 > most:
            return True
    return False


def later_copies(hashes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Finds rows that come before already, in the order given: bool, for each array of hashes.

    Example:
        >>> later_copies([np.array([7, 8, 7], np.uint64), np.array([9, 8], np.uint64)])
        [array([False, False,  True]), array([False,  True])]
    """
    all_N = np.concatenate(hashes)
    again_N = np.ones(len(all_N), bool)
    again_N[np.unique(all_N, return_index=True)[1]] = False
    ends = np.cumsum([len(one) for one in hashes])[:-1]
    return np.split(again_N, ends)


def hashes_of(table: pa.Table) -> np.ndarray:
    """Hashes rows by all of the user's columns, uint64 [N]; hidden row numbers do not count."""
    names = visible_columns(table)
    return row_hashes(table, names)


def _pairs(hash_N: np.ndarray) -> float:
    """Pairs of rows with the same hash."""
    times_K = np.unique(hash_N, return_counts=True)[1].astype(np.float64)
    return float((times_K * (times_K - 1)).sum() / 2)

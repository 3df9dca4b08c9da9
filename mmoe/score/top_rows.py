"""`TopRows`: the best rows of each key, of any number of rows, in memory that these alone take."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import pc, plain

RANK = "rank"
# Rows that wait at least until the best of each key are looked for among them
_ROWS_WAITING = 500_000


@dataclass(frozen=True)
class Top:
    """Rows of each key that are kept.

    Attributes:
        count: How many, at most.
        per: Column of the key, such as `user_id`.
        by: Column of the output; the highest are the best.

    Raises:
        ValueError: `count` is below 1.
    """

    count: int
    per: str
    by: str

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"--top {self.count}: expected at least 1 row a key")


class TopRows:
    """Collects the best rows of each key.

    Ties go to the row that came first; a score that is missing is the lowest. Rows without a key
    are those of one more key.

    Args:
        top: Which are kept.

    Example:
        >>> best = TopRows(Top(1, per="user", by="value"))
        >>> best.add(pa.table({"user": ["b", "a", "b"], "value": [0.1, 0.2, 0.3]}))
        >>> best.rows().to_pydict()
        {'user': ['b', 'a'], 'value': [0.3, 0.2], 'rank': [1, 1]}
    """

    def __init__(self, top: Top) -> None:
        self.top = top
        # With numbers of rows: where the key of each came first
        self._tables: list[tuple[pa.Table, np.ndarray]] = []
        self._seen = self._waiting = self._kept = 0

    def add(self, table: pa.Table) -> None:
        """Takes more rows."""
        views = [i for i, kind in enumerate(table.schema.types) if kind == pa.binary_view()]
        for i in views:  # of which Arrow cannot take rows
            table = table.set_column(i, table.column_names[i], plain(table.column(i)))
        self._tables.append((table, np.arange(self._seen, self._seen + table.num_rows)))
        self._seen += table.num_rows
        self._waiting += table.num_rows
        if self._waiting > max(_ROWS_WAITING, self._kept):
            self._shrink()

    def rows(self) -> pa.Table:
        """Returns them: keys in the order in which they came, the best of each first; `rank`."""
        table, first_N, ranks_N = self._best()
        sort = np.lexsort((ranks_N, first_N))
        ranks = pa.array(ranks_N[sort] + 1, pa.int32())
        return table.take(pa.array(sort)).append_column(RANK, ranks)

    def _shrink(self) -> None:
        table, first_N, _ = self._best()
        self._tables, self._waiting, self._kept = [(table, first_N)], 0, table.num_rows

    def _best(self) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """The best rows as they came, where the key of each came first, and their ranks from 0."""
        table = pa.concat_tables([table for table, _ in self._tables]).unify_dictionaries()
        first_N = np.concatenate([first for _, first in self._tables])
        keys_N = _codes(table[self.top.per])
        firsts_K = np.full(keys_N.max(initial=-1) + 1, np.iinfo(np.int64).max)
        np.minimum.at(firsts_K, keys_N, first_N)
        scores_N = pc.fill_null(pc.cast(table[self.top.by], pa.float64()), -np.inf).to_numpy()
        scores_N = np.where(np.isnan(scores_N), -np.inf, scores_N)
        order_N = np.lexsort((-scores_N, keys_N))  # stable: ties as they came
        sorted_N = keys_N[order_N]
        starts_S = np.flatnonzero(np.diff(sorted_N, prepend=-1))
        counts_S = np.diff(np.r_[starts_S, len(sorted_N)])
        ranks_N = np.empty(len(sorted_N), np.int64)
        ranks_N[order_N] = np.arange(len(sorted_N)) - np.repeat(starts_S, counts_S)
        best_N = np.flatnonzero(ranks_N < self.top.count)
        return table.take(pa.array(best_N)), firsts_K[keys_N[best_N]], ranks_N[best_N]


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value, that is missing too, int64 [N]."""
    values = plain(column)
    if not values.num_chunks:
        return np.zeros(0, np.int64)
    coded = pa.concat_arrays(values.chunks).dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy().astype(np.int64)

"""`KeyIndex`: where each of many keys stands, by a table that is made once and kept."""

from threading import Lock
from typing import cast

import numpy as np
import pandas as pd
import pyarrow as pa

from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.hashing import hash_one, hash_text
from mmoe.datasets.values.plain import is_text

_ROWS = 1 << 16  # hashed at a time: the work of hashing text is many times its size
_FEW_KEYS = 2048  # Arrow's table of so many is made before a call for another one has ended


class KeyIndex:
    """Index of keys of one kind: integers, floats or text.

    Arrow makes its hash table anew in every call. That is no loss where there are few keys, or a
    call brings as many values; for fewer values a table is made in the first such call and kept.
    Numbers are found by themselves, text by 64-bit hashes, and each text found is compared with its
    key. Any number of threads may ask at once.

    Args:
        keys: K distinct keys, none of them null.

    Example:
        >>> index = KeyIndex(pa.array([30, 10, 20]))
        >>> index.places(pa.chunked_array([[10, None], [40, 30]])).tolist()
        [1, -1, -1, 0]
    """

    def __init__(self, keys: pa.Array) -> None:
        self.keys = keys
        self._lock = Lock()
        self._table: pd.Index | None = None
        self._places: np.ndarray | None = None  # of the table's entries; None: entry i is key i

    def __reduce__(self) -> tuple[type["KeyIndex"], tuple[pa.Array]]:
        """Copies and pickles make a table of their own, when they need one."""
        return KeyIndex, (self.keys,)

    def places(self, values: pa.ChunkedArray) -> np.ndarray:
        """Finds where in `keys` each value stands, int64 [N], −1: null or none of them."""
        if len(self.keys) <= max(len(values), _FEW_KEYS):
            return self._by_arrow(values)
        if is_text(values.type):
            return self._by_hash(values)
        places_N = self._kept().get_indexer(pc.fill_null(values, 0).to_numpy())
        return np.where(pc.is_null(values).to_numpy(), -1, places_N)

    def place(self, value: int | str) -> int:
        """Finds where one value stands, −1: none of them; a call of Arrow's takes longer.

        Example:
            >>> index = KeyIndex(pa.array(["b", "a"], pa.large_string()))
            >>> index.place("a"), index.place("c")
            (1, -1)
        """
        table, code = self._kept(), hash_one(value) if isinstance(value, str) else value
        try:
            place = cast("int", table.get_loc(code))  # of one entry: they are unique
        except KeyError:
            return -1
        place = place if self._places is None else int(self._places[place])
        if isinstance(value, str) and self.keys[place].as_py() != value:  # of the same hash
            return int(self._by_arrow(pa.chunked_array([pa.array([value], self.keys.type)]))[0])
        return place

    def _by_arrow(self, values: pa.ChunkedArray) -> np.ndarray:
        found = pc.index_in(values, self.keys, skip_nulls=True)
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    def _by_hash(self, values: pa.ChunkedArray) -> np.ndarray:
        places_N = self._kept().get_indexer(hash_text(values))
        if self._places is not None:
            places_N = np.where(places_N < 0, -1, self._places[places_N])
        found_N = (places_N >= 0) & pc.is_valid(values).to_numpy()
        there = values.filter(pa.array(found_N))
        same_F = pc.equal(self.keys.take(pa.array(places_N[found_N])), there).to_numpy()
        places_N[~found_N] = -1
        if not same_F.all():  # another text of the same hash
            other_F = np.flatnonzero(found_N)[~same_F]
            places_N[other_F] = self._by_arrow(there.filter(pa.array(~same_F)))
        return places_N

    def _kept(self) -> pd.Index:
        with self._lock:
            if self._table is None:
                self._places, self._table = self._make()
            return self._table

    def _make(self) -> tuple[np.ndarray | None, pd.Index]:
        """The table, and the places of its entries where some keys share one."""
        text = is_text(self.keys.type)
        codes_K = _hashes(self.keys) if text else self.keys.to_numpy()
        table, places = pd.Index(codes_K), None
        if not table.is_unique:
            first_K = ~table.duplicated()
            table, places = table[first_K], np.flatnonzero(first_K)
        table.get_indexer(codes_K[:1])  # pandas hashes the entries in the first call
        return places, table


def _hashes(keys: pa.Array) -> np.ndarray:
    parts = [hash_text(keys[start : start + _ROWS]) for start in range(0, len(keys), _ROWS)]
    return np.concatenate(parts)

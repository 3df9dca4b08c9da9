"""Ids to rows of an embedding table: a vocabulary, a hash, or raw ids that get rows later."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.features.fit_ids import CountFit, Counts, count_keys
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.key_index import KeyIndex
from mmoe.datasets.values.keys import (
    ARROW_TYPES,
    KeyKind,
    hash_keys,
    missing_mask,
    raw_ids,
    to_keys,
)

MISSING = 0  # the row of cells without an id
UNSEEN = 1  # the row of ids that training did not have, or had too seldom
FIRST_KNOWN = 2


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Rows for the ids of training, the most frequent first; equal counts in key order.

    Attributes:
        kind: What the ids are, over all features that share the table.
        keys: Distinct ids in the order of their rows, row 2 first.
        counts: int64, how often training had each.
    """

    kind: KeyKind
    keys: pa.Array
    counts: np.ndarray

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + len(self.keys)

    @classmethod
    def fit(
        cls, columns: Sequence[pa.ChunkedArray], labels: Sequence[str], min_count: int
    ) -> "Vocabulary":
        """Counts the ids of all `columns` together.

        Args:
            columns: One for each feature that shares the table; training rows only.
            labels: What each column is called in an error.
            min_count: Ids seen less often have no row of their own.

        Example:
            >>> column = pa.chunked_array([["b", "a", "b", None, "c", "c"]])
            >>> Vocabulary.fit([column], ["word"], min_count=2).keys.to_pylist()
            ['b', 'c']
        """
        fits = [CountFit(label) for label in labels]
        for fit, column in zip(fits, columns, strict=True):
            fit.add(column)
        return cls.of([fit.finish() for fit in fits], min_count)

    @classmethod
    def of(cls, columns: Sequence[Counts], min_count: int) -> "Vocabulary":
        """Makes one of the counts of each column that shares the table."""
        kind, counts = count_keys(columns)
        counts = counts.filter(pc.greater_equal(counts["count"], min_count))
        counts = counts.sort_by([("count", "descending"), ("key", "ascending")])
        return cls(
            kind=kind,
            keys=counts["key"].combine_chunks().cast(ARROW_TYPES[kind]),
            counts=counts["count"].to_numpy(),
        )

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows, int32 [N]: 0 where missing, 1 where unknown, 2 and up for known ids."""
        keys = to_keys(column, self.kind, label)
        places_N = self._index.places(keys)
        ids_N = np.where(places_N < 0, UNSEEN, places_N + FIRST_KNOWN).astype(np.int32)
        if keys.null_count:
            ids_N[missing_mask(column, self.kind)] = MISSING
        return ids_N

    @property
    def _index(self) -> KeyIndex:
        """Made once, by whichever thread comes first."""
        return vars(self).setdefault("_made_index", KeyIndex(self.keys))


@dataclass(frozen=True, kw_only=True)
class HashRule:
    """Rows by hash: every id is hashed into `size` rows; no id is stored.

    Row 1 stays for values that are no id of this kind (text, where training had integers).
    """

    kind: KeyKind
    size: int

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + self.size

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows, int32 [N]: 0 missing, 1 no id of this kind, else 2 + hash mod size."""
        keys = to_keys(column, self.kind, label)
        ids_N = (hash_keys(keys) % np.uint64(self.size)).astype(np.int32)
        ids_N += FIRST_KNOWN
        return _marked(ids_N, keys, column, self.kind)


@dataclass(frozen=True, kw_only=True)
class ManagedRule:
    """Raw ids: the embeddings give `size` of them a row while training goes on."""

    kind: KeyKind
    size: int

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + self.size

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns int64 [N]: 0 missing, 1 no id of this kind, else the raw id, 2 and up."""
        keys = to_keys(column, self.kind, label)
        return _marked(raw_ids(keys, FIRST_KNOWN), keys, column, self.kind)


def _marked(
    ids_N: np.ndarray, keys: pa.ChunkedArray, column: pa.ChunkedArray, kind: KeyKind
) -> np.ndarray:
    """The ids, in place: 1 where a value is no id of this kind, 0 where it is missing."""
    if keys.null_count:
        ids_N[pc.is_null(keys).to_numpy()] = UNSEEN
        ids_N[missing_mask(column, kind)] = MISSING
    return ids_N


IdMap = Vocabulary | HashRule | ManagedRule

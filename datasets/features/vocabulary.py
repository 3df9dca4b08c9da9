"""`Vocabulary`: the ids of training, each with a row of its own."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from mmoe.config.json_files import Stored
from mmoe.config.tables import VocabularyEncoding
from mmoe.datasets.features.fit_ids import CountFit, Counts, count_keys
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING, UNSEEN, IdMap
from mmoe.datasets.features.vocabulary_size import refuse_too_many
from mmoe.datasets.values.arrow import may_use_threads, pc
from mmoe.datasets.values.keys import (
    ARROW_TYPES,
    KeyIndex,
    KeyKind,
    missing_mask,
    own_key,
    to_keys,
    widest,
)


class _Entry(Stored):
    """Of encoder.json; the keys lie in a file beside."""

    encoding: Literal["vocabulary"]
    kind: KeyKind
    file: Annotated[str, Field(pattern=r"^[^/\\]+\.parquet$")]


@dataclass(frozen=True, kw_only=True)
class Vocabulary(IdMap):
    """Rows for the ids of training, the most frequent first; equal counts in key order.

    Attributes:
        kind: What the ids are, over all features that share the table.
        keys: Distinct ids in the order of their rows, row 2 first.
        counts: int64, how often training had each.
    """

    encoding = "vocabulary"
    entry = _Entry
    counted = True

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

    @classmethod
    def learnt(cls, found: Sequence[Counts], encoding: VocabularyEncoding) -> "Vocabulary":
        """Makes one of counted ids; it may not outgrow the table."""
        vocabulary = cls.of(found, encoding.min_count)
        refuse_too_many(len(vocabulary.keys), encoding, found[0].label, vocabulary.counts)
        return vocabulary

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows, int32 [N]: 0 where missing, 1 where unknown, 2 and up for known ids."""
        keys = to_keys(column, self.kind, label)
        places_N = self._index.places(keys)
        ids_N = np.where(places_N < 0, UNSEEN, places_N + FIRST_KNOWN).astype(np.int32)
        if keys.null_count:
            ids_N[missing_mask(column, self.kind)] = MISSING
        return ids_N

    def row_of(self, value: object, words: Collection[str]) -> int | None:
        """Returns the row of a cell that is its own key."""
        key = own_key(value, self.kind, words)
        if key is None:
            return None
        place = self._index.place(key)
        return UNSEEN if place < 0 else place + FIRST_KNOWN

    @property
    def _index(self) -> KeyIndex:
        """Made once; of threads that make it at the same time, the first one's is kept."""
        made = vars(self).get("_made_index")
        return vars(self).setdefault("_made_index", KeyIndex(self.keys)) if made is None else made

    def write(self, folder: Path, stem: str) -> dict[str, Any]:
        """Returns the name of the Parquet file that holds the keys."""
        file = f"{stem}.parquet"
        temporary = (folder / file).with_suffix(".tmp")
        columns = {"key": self.keys, "count": pa.array(self.counts, pa.int64())}
        pq.write_table(pa.table(columns), temporary)
        temporary.replace(folder / file)
        return {"kind": self.kind, "file": file}

    @classmethod
    def read(cls, entry: Any, folder: Path) -> "Vocabulary":
        """Reads the file."""
        # Not with pq.read_table, which takes threads whatever it is told
        with pq.ParquetFile(folder / entry["file"]) as file:
            table = file.read(use_threads=may_use_threads())
        return cls(
            kind=entry["kind"],
            keys=table["key"].combine_chunks().cast(ARROW_TYPES[entry["kind"]]),
            counts=table["count"].to_numpy().astype(np.int64),
        )

    def marks(self, table: str) -> Iterator[bytes | memoryview]:
        """Yields some of its keys, and all counts."""
        yield f"{table} {self.kind} {self.keys[:1000].to_pylist()}".encode()
        yield np.ascontiguousarray(self.counts).data

    def _extended(
        self, earlier: "Vocabulary", kind: KeyKind, encoding: VocabularyEncoding, label: str
    ) -> "Vocabulary":
        """Earlier keys, then those of today that are not among them; both as the wider kind."""
        old_keys, new_keys = (one.keys_as(kind, label) for one in (earlier, self))
        place_N = pc.index_in(new_keys, old_keys)
        is_new_N = place_N.is_null().to_numpy(zero_copy_only=False)
        counts = earlier.counts.copy()
        known = place_N.drop_null().to_numpy()
        counts[known] += self.counts[~is_new_N]
        keys = pa.concat_arrays([old_keys, new_keys.filter(pa.array(is_new_N))])
        longer = f"{label}, with the ids of earlier days,"
        otherwise = "a higher min_count for today's ids, or train without --warm-start"
        refuse_too_many(len(keys), encoding, longer, otherwise=otherwise)
        counts = np.concatenate([counts, self.counts[is_new_N]])
        return Vocabulary(kind=kind, keys=keys, counts=counts)

    def without(self, other: "Vocabulary", label: str) -> "Vocabulary":
        """Returns the ids that another one does not know, in their order.

        Example:
            >>> known, found = (
            ...     Vocabulary.fit([pa.chunked_array([ids])], ["item"], min_count=1)
            ...     for ids in (["a", "b"], ["c", "c", "b", "d"]))
            >>> found.without(known, "item").keys.to_pylist()
            ['c', 'd']
        """
        kind = widest([self.kind, other.kind])
        known_N = pc.is_in(self.keys_as(kind, label), other.keys_as(kind, label))
        new_N = pc.invert(known_N)
        counts = self.counts[new_N.to_numpy(zero_copy_only=False)]
        return Vocabulary(kind=self.kind, keys=self.keys.filter(new_N), counts=counts)

    def keys_as(self, kind: KeyKind, label: str) -> pa.Array:
        """Returns the keys as those of a kind that holds them all."""
        if self.kind == kind:
            return self.keys
        keys = to_keys(pa.chunked_array([self.keys]), kind, label)
        return keys.combine_chunks().cast(ARROW_TYPES[kind])

    def rank(self) -> np.ndarray:
        """Returns each key's place in key order (numbers keep it); NaN for missing and unseen."""
        rank = np.full(self.num_rows, np.nan)
        order = pc.array_sort_indices(self.keys).to_numpy()
        rank[FIRST_KNOWN + order] = np.arange(len(order))
        return rank

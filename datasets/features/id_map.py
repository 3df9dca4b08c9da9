"""`IdMap`: what turns ids into rows of a table: a vocabulary, a hash, raw ids; and their counts."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from mmoe.config import Count, Stored
from mmoe.config.data import MISSING_WORDS
from mmoe.config.tables import HashEncoding, ManagedEncoding, VocabularyEncoding
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, may_use_threads, pc
from mmoe.datasets.values.hashing import hash_rows, raw_ids
from mmoe.datasets.values.keys import (
    ARROW_TYPES,
    KeyIndex,
    KeyKind,
    key_kind,
    missing_mask,
    own_key,
    refuse_nested,
    refuse_rounding,
    to_keys,
    widest,
)
from mmoe.datasets.values.text import TextKind

MISSING = 0  # the row of cells without an id
UNSEEN = 1  # the row of ids that training did not have, or had too seldom
FIRST_KNOWN = 2
_PENDING = 1 << 18  # rows of counts that wait to be added up


@dataclass(frozen=True)
class Counts:
    """Distinct values of a column, as the file stores them, and how often each was seen."""

    values: pa.ChunkedArray
    counts: pa.ChunkedArray
    label: str  # what the column is called in an error


class CountedRows:
    """Adds up tables of distinct rows and their counts; memory grows with the distinct ones alone.

    Args:
        names: The columns that tell rows apart; one more, `count`, says how often each was seen.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.tables: list[pa.Table] = []
        self.pending = self.settled = 0

    def add(self, counted: pa.Table) -> None:
        """Adds more rows."""
        self.tables.append(counted)
        self.pending += counted.num_rows
        if self.pending > max(_PENDING, self.settled):
            self._merge()

    def finish(self) -> pa.Table:
        """Returns the counts of all rows."""
        self._merge()
        return self.tables[0]

    def _merge(self) -> None:
        if len(self.tables) > 1:
            table = pa.concat_tables(self.tables, promote_options="permissive")
            self.tables = [add_up(table, self.names).combine_chunks()]
        self.pending, self.settled = 0, self.tables[0].num_rows


class CountFit:
    """Counts the values of one column; memory grows with the distinct ones alone.

    Args:
        label: What the column is called in an error.
        settle: Text was cut out of lists: give it the type that all of it looks like.
        words: Those that mean a missing value there.
    """

    def __init__(
        self, label: str, *, settle: bool = False, words: Sequence[str] = MISSING_WORDS
    ) -> None:
        self.label, self.settle, self.words = label, settle, words
        self.rows = CountedRows(["value"])
        self.ends: dict[str, tuple[float, float]] = {}  # of lists: section → lowest and highest

    def add(self, column: pa.ChunkedArray, times_N: np.ndarray | None = None) -> None:
        """Counts more rows.

        Args:
            column: N rows.
            times_N: How often each counts, int64; None: once.

        Raises:
            ValueError: The column holds lists.
        """
        refuse_nested(column, self.label)
        if times_N is not None:
            is_there = pc.invert(pc.is_null(column, nan_is_null=True))
            values = countable(column.filter(is_there), self.label)
            times = pa.array(times_N).filter(is_there.combine_chunks())
            self.rows.add(add_up(pa.table({"value": values, "count": times}), ["value"]))
            return
        present = column.drop_null()
        if pa.types.is_floating(column.type):
            present = present.filter(pc.invert(pc.is_nan(present)))
        counted = pc.value_counts(countable(present, self.label))
        self.rows.add(pa.Table.from_arrays(counted.flatten(), names=["value", "count"]))

    def finish(self) -> Counts:
        """Returns the counts of all rows."""
        table = self.rows.finish()
        values = table["value"]
        if self.settle and is_text(values.type):
            values = text.settle(values, self.words)
        return Counts(values, table["count"], self.label)


class KindFit:
    """Finds which kind of key one column holds; remembers no value."""

    def __init__(
        self, label: str, *, settle: bool = False, words: Sequence[str] = MISSING_WORDS
    ) -> None:
        self.label, self.settle = label, settle
        self.ends: dict[str, tuple[float, float]] = {}  # of lists: section → lowest and highest
        self.kinds: set[KeyKind] = set()
        self.text = TextKind(words)
        self.any_text = False

    def add(self, column: pa.ChunkedArray, times_N: np.ndarray | None = None) -> None:
        """Looks at more rows, however often each counts."""
        if self.settle and is_text(column.type):
            self.text.add(column)
            self.any_text = True
        else:
            self.kinds.add(key_kind(column, self.label))

    def finish(self) -> KeyKind:
        """Returns int, float or text."""
        if self.any_text:
            kind = self.text.type
            real = pa.types.is_floating(kind) and not self.text.whole
            self.kinds.add("text" if is_text(kind) else "float" if real else "int")
        return widest(self.kinds)


def count_keys(columns: Sequence[Counts]) -> tuple[KeyKind, pa.Table]:
    """Joins counted columns: their common kind, and a table of key and count."""
    kind = widest(key_kind(column.values, column.label) for column in columns)
    tables = []
    for column in columns:
        refuse_rounding(column.values, kind, column.label)
        keys = to_keys(column.values, kind, column.label)
        table = pa.table({"key": keys.cast(ARROW_TYPES[kind]), "count": column.counts})
        tables.append(table.filter(pc.is_valid(table["key"])))
    return kind, add_up(pa.concat_tables(tables), ["key"])


def add_up(counted: pa.Table, names: list[str]) -> pa.Table:
    """Adds up the counts of equal rows in the columns `names`, none of them null."""
    if len(names) > 1:
        table = counted.group_by(names).aggregate([("count", "sum")])
        return table.rename_columns({"count_sum": "count"}).select([*names, "count"])
    # What Arrow does for one column alone takes a quarter of the time for text
    coded = counted[names[0]].combine_chunks().dictionary_encode()
    sums = np.zeros(len(coded.dictionary), np.int64)
    np.add.at(sums, coded.indices.to_numpy(), counted["count"].to_numpy())
    return pa.table({names[0]: coded.dictionary, "count": sums})


def countable(column: pa.ChunkedArray, label: str) -> pa.ChunkedArray:
    """Casts cells, none of them missing, to a type that Arrow counts."""
    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind):  # the narrow ones are not counted
        return column.cast(pa.decimal256(76, max(kind.scale, 0)))
    if pa.types.is_integer(kind) or is_text(kind) or pa.types.is_boolean(kind):
        return column
    return to_keys(column, key_kind(column, label), label)  # datetimes, days, bytes: text


class IdMap(ABC):
    """Map from ids to rows; each encoding has its own, which `ENCODINGS` names.

    Attributes:
        kind: What the ids are, over all features that share the table.
        encoding: Name of its encoding.
        entry: What `write` returns, and the name of the encoding: a type that pydantic checks.
        counted: Is it made of the counts of ids (or of their kinds alone)?
    """

    kind: KeyKind
    encoding: ClassVar[str]
    entry: ClassVar[type[Stored]]
    counted: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def learnt(cls, found: Sequence[Any], encoding: Any) -> Self:
        """Makes one of what each feature that shares the table has found.

        Args:
            found: `Counts` where it is counted, else kinds of ids.
            encoding: The section of the config.

        Raises:
            ValueError: There are more ids than the table may have.
        """

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows of the embedding table."""

    @abstractmethod
    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows [N]: 0 where missing, 1 where unknown, 2 and up for other ids."""

    def row_of(self, value: object, words: Collection[str]) -> int | None:
        """Returns the row of one cell where that is quick; None: `lookup` has to find it.

        Args:
            value: Of the cell.
            words: Those that mean a missing value.
        """
        return None

    def write(self, folder: Path, stem: str) -> dict[str, Any]:
        """Returns it as plain JSON; what is large goes into a file of this stem."""
        return dict(vars(self))

    @classmethod
    def read(cls, entry: Any, folder: Path) -> Self:
        """Reads what `write` wrote."""
        return cls(**{f.name: entry[f.name] for f in fields(cast(Any, cls)) if f.name in entry})

    def marks(self, table: str) -> Iterator[bytes | memoryview]:
        """Yields what tells it from another one, cheaply."""
        yield f"{table} {self}".encode()

    def extended(self, earlier: "IdMap", encoding: Any, label: str) -> "IdMap":
        """Returns ids with known ones as in `earlier`, and today's new ones as well.

        Args:
            earlier: Of the run that is continued.
            encoding: Today's section of the config.
            label: What the ids are called in an error.

        Raises:
            ValueError: Ids that are hashed or managed are of another kind now, the table has
                another encoding, or a vocabulary outgrows its max_rows.

        Example:
            >>> tuesday, monday = (
            ...     Vocabulary(kind="text", keys=pa.array(ids), counts=np.ones(len(ids), int))
            ...     for ids in (["c", "a", "d"], ["b", "a"]))
            >>> tuesday.extended(monday, VocabularyEncoding(), "item").keys.to_pylist()
            ['b', 'a', 'c', 'd']
        """
        if type(self) is not type(earlier):
            raise ValueError(
                f"{label} has another encoding than in the run that is continued; keep that "
                "encoding, or give the feature another name"
            )
        return self._extended(earlier, widest([self.kind, earlier.kind]), encoding, label)

    @abstractmethod
    def _extended(self, earlier: Any, kind: KeyKind, encoding: Any, label: str) -> "IdMap":
        """Extends an earlier map of the same class; `kind` holds the ids of both."""

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns what `lookup` gave as rows of a table."""
        return ids

    def rank(self) -> np.ndarray | None:
        """Returns for each row the place of its id in the ids' order; None where rows have none."""
        return None


# Of the rows; with more held-out rows of unseen ids, an embedding learns training rows by heart
_MOST_UNSEEN = 0.5
_RARE = 20  # rows below which such ids share one: `ROWS_PER_ID` of mmoe.datasets.infer


def least_seen(encoding: VocabularyEncoding, counts: np.ndarray) -> int:
    """Returns how often training has to see an id for a row of its own.

    With `min_count: auto` 1, or 20 where most rows have an id of their own: a row held out has an
    unseen id as often as that.

    Args:
        encoding: `min_count`.
        counts: How often training has seen each id, int64.

    Example:
        >>> encoding = VocabularyEncoding(min_count="auto")
        >>> [least_seen(encoding, np.array(counts)) for counts in ([3, 1, 1], [2, 1, 1, 1])]
        [1, 20]

    Source: Good, "The population frequencies of species" (Biometrika 40, 1953).
    """
    if encoding.min_count != "auto":
        return encoding.min_count
    return _RARE if (counts == 1).sum() > _MOST_UNSEEN * counts.sum() else 1


LARGEST = 2**31 - 8  # ids are int32, and two rows are taken


def refuse_too_many(
    num_ids: int,
    encoding: VocabularyEncoding,
    label: str,
    counts: np.ndarray | None = None,
    otherwise: str = "encoding: hash",
) -> None:
    """Refuses more ids than `max_rows` (or int32) allows.

    Args:
        num_ids: Ids that would have a row of their own.
        encoding: `max_rows` and `min_count`.
        label: The column, as error messages call it.
        counts: How often each was seen, most frequent first; finds the `min_count` that helps.
        otherwise: The last way out.

    Raises:
        ValueError: They are too many; says how many, and what to change.

    Example:
        >>> encoding = VocabularyEncoding(max_rows=2)
        >>> refuse_too_many(3, encoding, "log.csv: column 'user'", np.array([9, 4, 1]))
        Traceback (most recent call last):
        ValueError: log.csv: column 'user' has 3 ids that were seen at least 1 time(s), but max_rows
        is 2; set max_rows: 3 or more, min_count: 2 (keeps 2 ids), or encoding: hash
    """
    limit = LARGEST if encoding.max_rows is None else encoding.max_rows
    if num_ids <= limit:
        return
    seen, help_ = "", ""
    if counts is not None:
        least = int(counts[limit]) + 1  # above the first id that has no row
        kept = int((counts >= least).sum())
        help_ = f" min_count: {least} (keeps {kept:,} ids)," if kept else ""
        seen = f" that were seen at least {encoding.least_seen} time(s)"
    largest = "the largest table" if encoding.max_rows is None else "max_rows"
    raise ValueError(
        f"{label} has {num_ids:,} ids{seen}, but {largest} is {limit:,}; set"
        f"{'' if encoding.max_rows is None else f' max_rows: {num_ids:,} or more,'}{help_} or "
        f"{otherwise}"
    )


class _VocabularyEntry(Stored):
    """Entry of encoder.json; the keys lie in a file beside."""

    encoding: Literal["vocabulary"]
    kind: KeyKind
    file: Annotated[str, Field(pattern=r"^[^/\\]+\.parquet$")]


@dataclass(frozen=True, kw_only=True)
class Vocabulary(IdMap):
    """Rows for the ids of training, the most frequent first; equal counts in key order."""

    encoding = "vocabulary"
    entry = _VocabularyEntry
    counted = True

    kind: KeyKind  # what the ids are, over all features that share the table
    keys: pa.Array  # distinct ids in the order of their rows, row 2 first
    counts: np.ndarray  # int64, how often training had each

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + len(self.keys)

    @classmethod
    def of(cls, columns: Sequence[Counts], encoding: VocabularyEncoding) -> "Vocabulary":
        """Makes one of the counts of each column that shares the table."""
        kind, counts = count_keys(columns)
        least = least_seen(encoding, counts["count"].to_numpy())
        counts = counts.filter(pc.greater_equal(counts["count"], least))
        counts = counts.sort_by([("count", "descending"), ("key", "ascending")])
        return cls(
            kind=kind,
            keys=counts["key"].combine_chunks().cast(ARROW_TYPES[kind]),
            counts=counts["count"].to_numpy(),
        )

    @classmethod
    def learnt(cls, found: Sequence[Counts], encoding: VocabularyEncoding) -> "Vocabulary":
        """Makes one of counted ids; it may not outgrow the table."""
        vocabulary = cls.of(found, encoding)
        refuse_too_many(len(vocabulary.keys), encoding, found[0].label, vocabulary.counts)
        return vocabulary

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns rows, int32 [N]: 0 where missing, 1 where unknown, 2 and up for known ids."""
        keys = to_keys(column, self.kind, label)
        index_N = self._index.indices(keys)
        ids_N = np.where(index_N < 0, UNSEEN, index_N + FIRST_KNOWN).astype(np.int32)
        if keys.null_count:
            ids_N[missing_mask(column, self.kind)] = MISSING
        return ids_N

    def row_of(self, value: object, words: Collection[str]) -> int | None:
        """Returns the row of a cell that is its own key."""
        key = own_key(value, self.kind, words)
        if key is None:
            return None
        index = self._index.index(key)
        return UNSEEN if index < 0 else index + FIRST_KNOWN

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
        index_N = pc.index_in(new_keys, old_keys)
        is_new_N = index_N.is_null().to_numpy(zero_copy_only=False)
        counts = earlier.counts.copy()
        known = index_N.drop_null().to_numpy()
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
            ...     Vocabulary(kind="text", keys=pa.array(ids), counts=np.ones(len(ids), int))
            ...     for ids in (["a", "b"], ["c", "b", "d"]))
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


class _SizedEntry(Stored):
    """Entry of encoder.json."""

    encoding: Literal["hash", "managed"]
    kind: KeyKind
    size: Annotated[Count, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class _SizedRule(IdMap):
    """A rule that stores no id: their kind and the number of rows say it all."""

    entry = _SizedEntry

    kind: KeyKind
    size: int

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table."""
        return FIRST_KNOWN + self.size

    @abstractmethod
    def ids_of(self, keys: pa.ChunkedArray) -> np.ndarray:
        """Returns what stands for keys of this kind: 2 and up [N]."""

    def lookup(self, column: pa.ChunkedArray, label: str) -> np.ndarray:
        """Returns [N]: 0 missing, 1 no id of this kind, else what `ids_of` says."""
        keys = to_keys(column, self.kind, label)
        ids_N = self.ids_of(keys)
        if keys.null_count:
            ids_N[pc.is_null(keys).to_numpy()] = UNSEEN
            ids_N[missing_mask(column, self.kind)] = MISSING
        return ids_N

    def _extended(self, earlier: Self, kind: KeyKind, encoding: Any, label: str) -> Self:
        """The earlier rule: neither keeps ids, so known ones keep their rows."""
        if kind != earlier.kind:
            raise ValueError(
                f"{label} holds {self.kind} ids, but {earlier.kind} ids in the run that is "
                f"continued, and they hash differently; write the column as {earlier.kind}, or "
                "train without --warm-start"
            )
        return earlier


class HashRule(_SizedRule):
    """Rows by hash: every id is hashed into `size` rows; no id is stored.

    Row 1 stays for values that are no id of this kind (text, where training had integers).
    """

    encoding = "hash"

    @classmethod
    def learnt(cls, found: Sequence[KeyKind], encoding: HashEncoding) -> "HashRule":
        """Makes one of `hash_size` rows."""
        return cls(kind=widest(found), size=encoding.hash_size)

    def ids_of(self, keys: pa.ChunkedArray) -> np.ndarray:
        """Returns rows, int32 [N]: 2 + hash mod size."""
        return hash_rows(keys, self.size, FIRST_KNOWN)


class ManagedRule(_SizedRule):
    """Raw ids: the embeddings give `size` of them a row while training goes on."""

    encoding = "managed"

    @classmethod
    def learnt(cls, found: Sequence[KeyKind], encoding: ManagedEncoding) -> "ManagedRule":
        """Makes one of `rows` ids that own a row."""
        return cls(kind=widest(found), size=encoding.managed.rows)

    def ids_of(self, keys: pa.ChunkedArray) -> np.ndarray:
        """Returns raw ids, int64 [N]."""
        return raw_ids(keys, FIRST_KNOWN)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns raw ids as rows by their remainder: a baseline has no owners to ask."""
        return np.where(ids < FIRST_KNOWN, ids, FIRST_KNOWN + (ids - FIRST_KNOWN) % self.size)

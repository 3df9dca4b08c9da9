"""Record of what training held, so that weights it never touched stay out of scores.

A feature that says one thing in every training row, or nothing, is encoded as that whatever it
holds later. Of the others numbers far outside training's range are clipped (`limits_of`), and parts
of datetimes and times of events that training never had share the row of unseen ids (`only_seen`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import Count, Stored, TableSpec
from mmoe.datasets.features.codec import Codec, Coded, FeatureT, Finite, Rules, Section
from mmoe.datasets.features.id_map import MISSING, UNSEEN
from mmoe.datasets.values.arrow import is_text, one_chunk, pc, plain
from mmoe.datasets.values.text import empty_to_null

SEEN_IDS, SEEN_WEIGHTS, SEEN_LENGTHS = "seen_ids", "seen_weights", "seen_lengths"
CONSTANTS, HELD_COLUMNS = "constants", "held_columns"


_Two = Field(min_length=2, max_length=2)
# Ids of parts of datetimes and times of events; the lowest and the highest weight in lists; lengths
# of the shortest and the longest list of those that are summed; of each column of a cross that
# holds one id, or none, that id
SECTIONS = (
    Section(SEEN_IDS, list[Count]),
    Section(SEEN_WEIGHTS, Annotated[list[Finite], _Two], tells_apart=False),
    Section(SEEN_LENGTHS, Annotated[list[Count], _Two], tells_apart=False),
    Section(HELD_COLUMNS, dict[str, int | Finite | str | None]),
)


class SeenCodec(Codec[FeatureT]):
    """Base of codecs whose tables have a row for each bucket; training rows have some of them."""

    @property
    @abstractmethod
    def buckets(self) -> dict[str, int]:
        """Its tables, and how many rows each has."""

    @abstractmethod
    def bucket_ids(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Returns the rows of each table that are looked up, whether training had them or not."""

    def tables(self, rules: Rules) -> list[TableSpec]:
        """Returns the tables of its buckets."""
        return [TableSpec(name=n, num_rows=rows, dim=self.dim) for n, rows in self.buckets.items()]

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> list[np.ndarray]:
        """Returns for each table which of its rows training has, bool."""
        return [np.zeros(num_rows, bool) for num_rows in self.buckets.values()]

    def add(self, fit: list[np.ndarray], table: pa.Table, origin: str) -> None:
        """Learns which buckets more training rows have."""
        for seen_R, ids in zip(fit, self.bucket_ids(table, origin), strict=True):
            seen_R[ids] = True

    def finish(self, fits: Sequence[list[np.ndarray]], rules: Rules) -> None:
        """Keeps the buckets that training rows had."""
        for name, seen_R in zip(self.buckets, fits[0], strict=True):
            rules[SEEN_IDS][name] = tuple(np.flatnonzero(seen_R).tolist())

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Adds the buckets of an earlier run."""
        for name in self.buckets:
            known = earlier[SEEN_IDS].get(name, ())
            rules[SEEN_IDS][name] = tuple(sorted({*known, *rules[SEEN_IDS][name]}))


def extend_lists(rules: Rules, earlier: Rules, known: Iterable[str]) -> None:
    """Adds the weights and lengths of lists of an earlier run with these features."""
    for section in (SEEN_WEIGHTS, SEEN_LENGTHS):
        for name in rules[section].keys() & set(known):
            before = earlier[section].get(name)
            if before is None:
                del rules[section][name]
            else:
                ends = (*before, *rules[section][name])
                rules[section][name] = (min(ends), max(ends))


def only_seen(ids: np.ndarray, seen: Sequence[int]) -> np.ndarray:
    """Returns ids with those that training never had as unseen; all as the one id that it had.

    Args:
        ids: Of a table without a vocabulary.
        seen: Of training, `MISSING` among them.

    Example:
        >>> [only_seen(np.array([0, 2, 9]), seen).tolist() for seen in ((2, 3), (2,))]
        [[0, 2, 1], [2, 2, 2]]
    """
    if len(seen) == 1:
        return np.full_like(ids, seen[0])
    own_R = np.full(max(*seen, ids.max(initial=0)) + 1, UNSEEN, ids.dtype)
    known = [MISSING, *seen]
    own_R[known] = known
    return own_R[ids]


class _StoredCoded(Stored):
    """A `Coded` of one row; a list's ids and, one as long where they have them, its weights."""

    dense: list[list[Finite]]
    ids: list[int]
    lists: list[list[int]]
    weights: list[list[Finite] | None]


@dataclass(frozen=True)
class Constant:
    """A feature that says one thing in every training row, or nothing."""

    coded: tuple[Coded, ...]  # that row, encoded by each of its codecs
    # Its cells, while they are known: an encoder that is extended encodes them anew
    row: pa.Table | None = None

    def __eq__(self, other: object) -> bool:
        """Returns whether both stand for the same row."""
        return isinstance(other, Constant) and [*map(_stored, self.coded)] == [
            *map(_stored, other.coded)
        ]


class Constants(Section):
    """Features that say one thing in every training row."""

    name = CONSTANTS
    entry = list[_StoredCoded]
    tells_apart = False  # vocabularies tell encoders of other ids apart

    def write(self, rule: Constant, folder: Path, stem: str) -> Any:
        """Returns the encoded row, codec by codec."""
        return [*map(_stored, rule.coded)]

    def read(self, entry: Any, folder: Path) -> Constant:
        """Reads what `write` wrote."""
        return Constant(tuple(_read(one) for one in entry))


class _OneCell:
    """Whether a column holds one value, chunk by chunk."""

    def __init__(self) -> None:
        self.first: pa.ChunkedArray | None = None
        self.changed = False

    def add(self, column: pa.ChunkedArray) -> None:
        """Looks at more rows; once it has changed at none."""
        if self.changed or not len(column):
            return
        cells = plain(column)  # what is missing as null
        if is_text(cells.type):
            cells = empty_to_null(cells)
        elif pa.types.is_floating(cells.type):
            cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
        first = self.first = cells[:1] if self.first is None else self.first
        if cells.type != first.type or not cells[-1:].equals(first):
            self.changed = True
        else:
            repeated = one_chunk(first).take(pa.array(np.zeros(len(cells), np.int64)))
            self.changed = not one_chunk(cells).equals(repeated)


class ConstantsFit:
    """Finds columns that hold one value in all training rows, chunk by chunk.

    Args:
        codecs: Of the run; those that know the range of their numbers find it themselves.
    """

    def __init__(self, codecs: Iterable[Codec[Any]]) -> None:
        self.cells: dict[str, dict[str, _OneCell]] = {
            codec.feature.name: {column: _OneCell() for column in codec.feature.source_columns}
            for codec in codecs
            if not codec.knows_range
        }

    def add(self, table: pa.Table) -> None:
        """Looks at more training rows."""
        for cells in self.cells.values():
            for column, cell in cells.items():
                if len(table.schema.get_all_field_indices(column)) == 1:
                    cell.add(table[column])

    def finish(self, codecs: Sequence[Codec[Any]], rules: Rules, origin: str) -> None:
        """Puts the features that never changed into `rules`, encoded as the rules say."""
        rows = {}
        for codec in codecs:
            cells = self.cells.get(codec.feature.name, {})
            one = {c: cell.first for c, cell in cells.items() if cell.first and not cell.changed}
            if one and len(one) == len(cells):
                rows[codec.feature.name] = pa.table(one)
            codec.hold(one, rules)
        rules[CONSTANTS] = constants_of(rows, codecs, rules, origin)


def constants_of(
    rows: Mapping[str, pa.Table], codecs: Sequence[Codec[Any]], rules: Rules, origin: str
) -> dict[str, Constant]:
    """Encodes the one row of each of these features."""
    found = {}
    for name, row in rows.items():
        mine = [codec for codec in codecs if codec.feature.name == name]
        found[name] = Constant(tuple(codec.encode(row, rules, origin) for codec in mine), row)
    return found


def extend_constants(
    rules: Rules, earlier: Rules, codecs: Sequence[Codec[Any]], origin: str, known: Iterable[str]
) -> None:
    """Leaves those features constant that hold today what they always held.

    Args:
        rules: Today's, extended in all else.
        earlier: Of the run that is continued.
        codecs: Today's.
        origin: What the user calls the data.
        known: Names of the features that the earlier run had.
    """
    rows = {n: one.row for n, one in rules[CONSTANTS].items() if one.row is not None}
    known = set(known)
    for name in rules[HELD_COLUMNS].keys() & known:
        before = earlier[HELD_COLUMNS].get(name, {}).items()
        held = rules[HELD_COLUMNS][name].items()
        rules[HELD_COLUMNS][name] = {c: key for c, key in held if (c, key) in before}
    today = constants_of(rows, codecs, rules, origin)
    rules[CONSTANTS] = {
        name: one
        for name, one in today.items()
        if name not in known or earlier[CONSTANTS].get(name) == one
    }


def held_constant(coded: Coded, one: Coded, num_rows: int) -> Coded:
    """Returns rows as the one row of training, and which of them hold something else."""
    other_N = np.zeros(num_rows, bool)
    for column_N, value in zip(coded.dense, one.dense, strict=True):
        differs = column_N != value
        other_N |= differs if differs.ndim == 1 else differs.any(axis=1)
    for ids_N, value in zip(coded.ids, one.ids, strict=True):
        other_N |= (ids_N != value[0]) & (ids_N != MISSING)
    lists = []
    for (ids_V, offsets, _), (own_K, _, weights_K) in zip(coded.lists, one.lists, strict=True):
        other_N |= _other_lists(ids_V, offsets, own_K)
        weights_V = None if weights_K is None else np.tile(weights_K, num_rows)
        places = np.arange(num_rows + 1, dtype=np.int64) * len(own_K)
        lists.append((np.tile(own_K, num_rows), places, weights_V))
    return Coded(
        dense=[np.repeat(value, num_rows, axis=0) for value in one.dense],
        ids=[np.repeat(value, num_rows) for value in one.ids],
        lists=lists,
        outside_N=other_N if coded.outside_N is None else other_N | coded.outside_N,
    )


def _other_lists(ids_V: np.ndarray, offsets: np.ndarray, own_K: np.ndarray) -> np.ndarray:
    """Marks the other lists that hold an id."""
    lengths_N = np.diff(offsets)
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    place_V = np.arange(len(ids_V)) - offsets[:-1][row_V]
    wanted_V = np.append(own_K, -1)[np.minimum(place_V, len(own_K))]
    wrong_N = np.bincount(row_V[ids_V != wanted_V], minlength=len(lengths_N)) > 0
    has_id_N = np.bincount(row_V[ids_V != MISSING], minlength=len(lengths_N)) > 0
    return (wrong_N | (lengths_N != len(own_K))) & has_id_N


def _stored(coded: Coded) -> dict[str, Any]:
    return {
        "dense": [np.atleast_1d(value[0]).tolist() for value in coded.dense],
        "ids": [int(value[0]) for value in coded.ids],
        "lists": [ids_K.tolist() for ids_K, _, _ in coded.lists],
        "weights": [None if w_K is None else w_K.tolist() for _, _, w_K in coded.lists],
    }


def _read(entry: Mapping[str, Any]) -> Coded:
    """Numbers of a column alone were [1], those of several together [1, k]."""

    def as_ids(ids: list[int], of: list[int]) -> np.ndarray:
        return np.array(ids, np.int32 if max((*of, 0)) < 2**31 else np.int64)

    dense = [np.array(row, np.float32)[None] for row in entry["dense"]]
    lists = []
    for ids, weights in zip(entry["lists"], entry["weights"], strict=True):
        weights_K = None if weights is None else np.array(weights, np.float32)
        lists.append((as_ids(ids, ids), np.array([0, len(ids)], np.int64), weights_K))
    return Coded(
        dense=[row[0] if row.shape[1] == 1 else row for row in dense],
        ids=[as_ids([value], entry["ids"]) for value in entry["ids"]],
        lists=lists,
    )

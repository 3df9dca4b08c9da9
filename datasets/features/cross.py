"""Crosses: ids of several columns together as one id."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import CrossFeature, RunConfig
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, Rules, Section
from mmoe.datasets.features.id_map import (
    FIRST_KNOWN,
    UNSEEN,
    CountedRows,
    Counts,
    KindFit,
    countable,
)
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.seen import HELD_COLUMNS
from mmoe.datasets.rows.locations import find_column
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.hashing import hash_keys, mix64
from mmoe.datasets.values.keys import KeyKind, key_kind, missing_mask, to_keys, widest


@dataclass(frozen=True)
class CrossColumns:
    """Columns of a cross, N rows each, and what each is called in an error."""

    columns: list[pa.ChunkedArray]
    labels: list[str]

    def kinds(self) -> list[KeyKind]:
        """Returns the kind of ids that each column holds."""
        return [key_kind(c, label) for c, label in zip(self.columns, self.labels, strict=True)]


def _cross_columns(table: pa.Table, feature: CrossFeature, origin: str) -> CrossColumns:
    """Reads the columns of a cross out of a table.

    Raises:
        ValueError: A column is missing, or holds lists.
    """
    columns, labels = [], []
    for name in feature.columns:
        column = find_column(table, name, origin, f"feature {feature.name!r}")
        label = f"{origin}: column {name!r} (of feature {feature.name!r})"
        if pa.types.is_nested(column.type):
            raise ValueError(f"{label} holds {column.type}, but a cross takes one id a row")
        columns.append(column)
        labels.append(label)
    return CrossColumns(columns, labels)


def cross_keys(cross: CrossColumns, kinds: Sequence[KeyKind]) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Mixes the columns' ids into a 64-bit key a row, the same on every machine.

    h_0 = mix64(number of columns), h_i = mix64(h_{i−1} + hash of the i-th id); two rows with other
    ids have one key with probability 2⁻⁶⁴.

    Args:
        cross: N rows.
        kinds: What each column's ids are, from training.

    Returns:
        int64 [N], null where the id of a column is missing; and bool [N], where an id is none of
        its kind (text, where training had integers), so training cannot have had it.

    Example:
        >>> columns = [pa.chunked_array([[1, 1, 2]]), pa.chunked_array([["a", None, "a"]])]
        >>> keys, _ = cross_keys(CrossColumns(columns, ["user", "item"]), ["int", "text"])
        >>> len(set(keys.to_pylist())), keys[1].as_py()
        (3, None)
    """
    num_rows = len(cross.columns[0])
    mixed_N = mix64(np.full(num_rows, len(kinds), np.uint64))
    missing_N, alien_N = np.zeros(num_rows, bool), np.zeros(num_rows, bool)
    for column, kind, label in zip(cross.columns, kinds, cross.labels, strict=True):
        keys = to_keys(column, kind, label)
        mixed_N = mix64(mixed_N + hash_keys(keys))
        if keys.null_count:
            null_N = pc.is_null(keys).to_numpy()
            gone_N = null_N & missing_mask(column, kind)
            missing_N |= gone_N
            alien_N |= null_N & ~gone_N
    keys = pa.array(mixed_N.view(np.int64), mask=missing_N)
    return pa.chunked_array([keys]), alien_N & ~missing_N


class _CrossCountFit:
    """Counts the ids of a cross as its files store them; memory grows with the distinct ones."""

    def __init__(self, label: str) -> None:
        self.label = label  # what the cross is called in an error
        self.rows: CountedRows | None = None
        self.labels: list[str] = []

    def add(self, cross: CrossColumns) -> None:
        """Counts more rows."""
        names = [str(position) for position in range(len(cross.columns))]
        self.rows, self.labels = self.rows or CountedRows(names), cross.labels
        cross = _complete(cross)
        columns = [
            countable(c, label) for c, label in zip(cross.columns, cross.labels, strict=True)
        ]
        counted = pa.table(columns, names=names).group_by(names).aggregate([([], "count_all")])
        self.rows.add(counted.rename_columns({"count_all": "count"}))

    def finish(self) -> tuple[CrossColumns, pa.ChunkedArray, str]:
        """Returns the distinct ids, how often each was seen, and what the cross is called."""
        assert self.rows is not None, "there were training rows"
        table = self.rows.finish()
        columns = [table[name] for name in self.rows.names]
        return CrossColumns(columns, self.labels), table["count"], self.label


class _CrossKindFit:
    """Finds what kind of ids each column of a cross holds; remembers no value."""

    def __init__(self) -> None:
        self.fits: list[KindFit] = []

    def add(self, cross: CrossColumns) -> None:
        """Looks at more rows."""
        self.fits = self.fits or [KindFit(label) for label in cross.labels]
        for fit, column in zip(self.fits, _complete(cross).columns, strict=True):
            fit.add(column)

    def finish(self) -> list[KeyKind]:
        """Returns the kind of each column."""
        return [fit.finish() for fit in self.fits]


def _widest_columns(found: Sequence[Sequence[KeyKind]]) -> tuple[KeyKind, ...]:
    """First with first, second with second."""
    return tuple(widest(kinds) for kinds in zip(*found, strict=True))


def _complete(cross: CrossColumns) -> CrossColumns:
    """The rows in which no column is null or NaN."""
    missing = [pc.is_null(column, nan_is_null=True) for column in cross.columns]
    if not any(pc.any(one, min_count=0).as_py() for one in missing):
        return cross
    present_N = ~np.any([one.to_numpy() for one in missing], axis=0)
    columns = [column.filter(pa.array(present_N)) for column in cross.columns]
    return CrossColumns(columns, cross.labels)


class _CrossKinds(Section):
    """Section of encoder.json: table of crosses → kind of ids of each of their columns."""

    name = "crosses"
    entry = list[KeyKind]

    def marks(self, rules: dict[str, Any]) -> Iterator[bytes]:
        """Yields the kinds, also that there are none: old checkpoints say so."""
        yield repr(rules).encode()


class CrossCodec(IdCodec[CrossFeature]):
    """Codec of columns of ids that are mixed into one id a row."""

    by_cell = True
    sections = (*IdCodec.sections, _CrossKinds())

    def __init__(self, feature: CrossFeature, config: RunConfig) -> None:
        super().__init__(feature, config)
        self.content = f"crosses of {len(feature.columns)} columns"

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Rules of its table's ids, and of what its columns hold."""
        return [*super().keys, ("crosses", self.table)]

    def label(self, origin: str) -> str:
        """Names of its columns, for errors."""
        names = " × ".join(map(repr, self.feature.columns))
        return f"{origin}: cross {names} (of {self.used_by})"

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> Any:
        """Returns what counts ids, or finds the kind of each column."""
        return _CrossCountFit(self.label(origin)) if self.counted else _CrossKindFit()

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from more training rows."""
        fit.add(_cross_columns(table, self.feature, origin))

    def finish(self, fits: Sequence[Any], rules: Rules) -> None:
        """Makes one table's ids of all the crosses that share it: their keys are integers."""
        found = [fit.finish() for fit in fits]
        if self.counted:
            kinds = _widest_columns([cross.kinds() for cross, _, _ in found])
            counted = [Counts(cross_keys(c, kinds)[0], n, label) for c, n, label in found]
            learnt = self.learnt(counted)
        else:
            kinds, learnt = _widest_columns(found), self.learnt(["int"])
        rules["tables"][self.table], rules["crosses"][self.table] = learnt, kinds

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids, one column; unseen where an id is of another kind than trained."""
        cross, outside_N = self._held(_cross_columns(table, self.feature, origin), rules)
        keys, alien_N = cross_keys(cross, rules["crosses"][self.table])
        ids_N = self.ids(rules).lookup(keys, cross.labels[0])
        ids_N[alien_N] = UNSEEN
        return Coded(ids=[ids_N], outside_N=outside_N)

    def hold(self, cells: Mapping[str, pa.ChunkedArray], rules: Rules) -> None:
        """Keeps the ids of columns that have one, or none."""
        kinds = zip(self.feature.columns, rules["crosses"][self.table], strict=True)
        rules[HELD_COLUMNS][self.feature.name] = {
            column: to_keys(cells[column], kind, self.used_by)[0].as_py()
            for column, kind in kinds
            if column in cells
        }

    def _held(self, cross: CrossColumns, rules: Rules) -> tuple[CrossColumns, np.ndarray | None]:
        """Columns that had one id in training as that id; and which rows have another one."""
        held = rules[HELD_COLUMNS].get(self.feature.name)
        if not held:
            return cross, None
        columns, outside_N = list(cross.columns), np.zeros(len(cross.columns[0]), bool)
        kinds = dict(zip(self.feature.columns, rules["crosses"][self.table], strict=True))
        for place, column in enumerate(self.feature.columns):
            if column in held:
                keys = to_keys(columns[place], kinds[column], cross.labels[place])
                one = pa.scalar(held[column], keys.type)
                there_N = ~missing_mask(columns[place], kinds[column])
                same_N = pc.fill_null(pc.equal(keys, one), False).to_numpy()
                outside_N |= there_N & ~same_N
                columns[place] = pa.chunked_array([pa.repeat(one, len(keys))])
        return replace(cross, columns=columns), outside_N

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns its ids; keys are mixed, so their order says nothing."""
        [ids_N] = self.encode(table, rules, origin).ids
        id_map = self.ids(rules)
        return [LookedUp.single(id_map.rows(ids_N), id_map.num_rows)]

    def extend(self, rules: Rules, earlier: Rules, origin: str) -> None:
        """Extends ids as of any table; columns have to hold what they held."""
        today = self.ids(rules)
        super().extend(rules, earlier, origin)
        before = earlier["crosses"].get(self.table)
        if before is None:
            return
        # Rules that store no key read today's narrower ids as the earlier, wider ones; keys of a
        # vocabulary are mixed already
        counted = today.counted and today.num_rows > FIRST_KNOWN
        kinds = zip(rules["crosses"][self.table], before, self.feature.columns, strict=True)
        for now, then, column in kinds:
            if (now if counted else widest([now, then])) != then:
                raise ValueError(
                    f"{origin}: column {column!r} (of {self.used_by}) holds {now} ids, but "
                    f"{then} ids in the run that is continued, and a cross mixes them "
                    f"differently; write the column as {then}, give the feature another name, "
                    "or train without --warm-start"
                )
        rules["crosses"][self.table] = before

    def extended_label(self, origin: str) -> str:
        """Names of its columns, as the refusal of a warm start says them."""
        return f"{origin}: cross of {' × '.join(self.feature.columns)} ({self.used_by})"

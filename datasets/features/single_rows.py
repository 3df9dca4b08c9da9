"""`SingleRows`: encodes rows one by one, by their cells."""

import math
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.codec import Codec, Coded, Rules, joined, missing
from mmoe.datasets.features.datetime import DatetimeCodec
from mmoe.datasets.features.domains import encode_domains
from mmoe.datasets.features.ids import CategoricalCodec
from mmoe.datasets.features.numeric import NumericCodec, NumericRules
from mmoe.datasets.features.seen import CONSTANTS
from mmoe.datasets.labels.targets import row_links
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.rows.frames import array_of, arrow_column
from mmoe.datasets.rows.projection import required_columns, with_missing
from mmoe.datasets.values.datetimes import plain_moment

_MOST_CELLS = 1 << 14  # kept, some 1 kB each
_NO_COLUMNS = pa.table({})

Cell = tuple[Hashable, Any]
"""What a column of one row is, and its value: equal cells are equal arrays of Arrow's."""

OneRow = Mapping[str, Any]
"""The columns of one row by name, each with one value: arrays or lists."""

_OF_PYTHON = (str, int, float, bool, type(None))


class SingleRows:
    """Encodes single rows, which are to be scored, as an encoder does, and mostly without a table.

    A call of Arrow's takes 10 us, and a row needs some hundred of them. So the numbers of all
    features are scaled at once, and codes of other cells are kept; where one is new, it becomes a
    table with others that are.

    Args:
        config: Of a run whose rows have no requests.
        rules: What training rows taught.
        codecs: Of its features.
        encode_one: Encodes rows of a table by one of them.

    Attributes:
        names: Of the columns that rows have to have.
    """

    def __init__(
        self,
        config: RunConfig,
        rules: Rules,
        codecs: Sequence[Codec[Any]],
        encode_one: Callable[[Codec[Any], pa.Table, str], Coded],
    ) -> None:
        self.config, self.rules, self.codecs, self.encode_one = config, rules, codecs, encode_one
        self.names = frozenset(required_columns(config, labels=False))
        self.words = config.data.missing_words or ()
        unread = config.unread_when_scoring
        self.fixed = {
            place: missing(codec, rules, 1)
            for place, codec in enumerate(codecs)
            if codec.feature.name in unread
        }
        # Of each codec; none where its code does not follow from cells alone
        self.columns = [codec.feature.source_columns if codec.by_cell else [] for codec in codecs]
        self.by_cell = self.names & {*chain(*self.columns)}
        domains = config.model.domains
        self.beside = {column for task in config.tasks for column in task.inputs}
        self.beside |= set() if domains is None else {domains.column}
        self.numbers = _NumberCells(
            {place: codec for place, codec in enumerate(codecs) if type(codec) is NumericCodec},
            rules,
        )
        self.known: dict[Hashable, Coded] = {}

    def encode(self, row: OneRow, origin: str) -> EncodedFeatures | None:
        """Encodes a row with the columns `names`; None: it is refused, as a table says better."""
        cells = {name: cell_of(row[name]) for name in self.by_cell}
        found = {**self.fixed, **self.numbers(cells)}
        new: dict[int, Hashable] = {}
        for place, codec in enumerate(self.codecs):
            if place in found:
                continue
            key = _key(place, self.columns[place], cells)
            coded = None if key is None else self.known.get(key)
            if coded is None and key is not None and (own := self._plainly(codec, cells, origin)):
                coded = self._kept(key, own)
            if coded is None:
                new[place] = key
            else:
                found[place] = coded
        try:
            table = self._table(row, new, origin)
            for place, key in new.items():
                coded = self.encode_one(self.codecs[place], table, origin)
                found[place] = coded if key is None else self._kept(key, coded)
            links = row_links(self.config, self.rules, table, origin)
            domains_N = encode_domains(self.config, self.rules, table, origin)
        except ValueError:
            return None
        coded = [found[place] for place in range(len(found))]
        return joined(self.codecs, coded, 1, links=links, domains_N=domains_N)

    def _plainly(
        self, codec: Codec[Any], cells: Mapping[str, Cell | None], origin: str
    ) -> Coded | None:
        """The code of an id that is its own key in its table, or of text that is a plain moment."""
        feature = codec.feature
        cell = cells[feature.source_columns[0]]
        if cell is None or feature.name in self.rules.get(CONSTANTS, {}):
            return None
        if type(codec) is CategoricalCodec:
            row = codec.ids(self.rules).row_of(cell[1], self.words)
            return None if row is None else Coded(ids=[np.array([row], np.int32)])
        if type(codec) is not DatetimeCodec or cell[1] in self.words:
            return None
        moment = plain_moment(cell[1], codec.feature)
        if moment is None:
            return None
        table = pa.table({feature.source_column: moment})
        try:
            return self.encode_one(codec, table, origin)
        except ValueError:  # a day without hours
            return None

    def _table(self, row: OneRow, places: Mapping[int, Any], origin: str) -> pa.Table:
        """Picks columns of a table: those of these codecs, and those that no feature reads."""
        features = [self.codecs[place].feature for place in places]
        names = self.beside.union(*(feature.source_columns for feature in features))
        if not names:
            return _NO_COLUMNS
        return with_missing(_table_of(row, names, origin), self.config, origin)

    def _kept(self, key: Hashable, coded: Coded) -> Coded:
        if len(self.known) >= _MOST_CELLS:
            self.known.clear()
        self.known[key] = coded
        return coded


def _key(place: int, columns: Sequence[str], cells: Mapping[str, Cell | None]) -> Hashable:
    """Returns what a codec's code follows from; None: not from cells alone."""
    key: list[Hashable] = [place]
    for cell in map(cells.__getitem__, columns):
        if cell is None:
            return None
        kind, value = cell
        key += kind, value.hex() if isinstance(value, float) else value  # 0.0 equals -0.0
    return tuple(key) if columns else None


class _NumberCells:
    """Encodes the numbers of a row at once.

    Args:
        codecs: By their places among all codecs.
        rules: What training rows taught.
    """

    def __init__(self, codecs: Mapping[int, NumericCodec], rules: Rules) -> None:
        self.codecs = {
            place: codec
            for place, codec in codecs.items()
            if not codec.feature.text_columns and not codec.feature.missing_values
        }
        self.rules = [rules["numeric"][codec.feature.name] for codec in self.codecs.values()]
        self.together = NumericRules(self.rules)

    def __call__(self, cells: Mapping[str, Cell | None]) -> dict[int, Coded]:
        """Encodes those that are numbers of Python's, by their codecs' places.

        Args:
            cells: Of the features' columns; None: it is something else.
        """
        columns = [codec.feature.source_column for codec in self.codecs.values()]
        values = [_number(cells.get(column)) for column in columns]
        numbers_F = np.array([math.nan if value is None else value for value in values])
        scaled_F, outside_F = self.together.scale(numbers_F), self.together.outside(numbers_F)
        found = {}
        for f, (place, codec) in enumerate(self.codecs.items()):
            if values[f] is not None:
                parts = (numbers_F[f : f + 1], scaled_F[f : f + 1], outside_F[f : f + 1])
                found[place] = codec.coded(self.rules[f], *parts)
        return found


def _number(cell: Cell | None) -> float | None:
    """A finite number, or NaN; None where Arrow has to read it."""
    value = None if cell is None else cell[1]
    if type(value) is float and not math.isinf(value):
        return value
    return float(value) if type(value) is int and abs(value) < 2**63 else None


def one_row(data: Any, names: Set[str]) -> OneRow | None:
    """Returns some columns of the only row; None where there is another number, or a column less.

    Args:
        data: As for `as_table`.
        names: Of the columns.

    Example:
        >>> one_row({"age": [20], "city": ["Oslo"]}, {"age"})
        {'age': [20]}
        >>> one_row({"age": [20, 30]}, {"age"}) is None
        True
    """
    pandas = sys.modules.get("pandas")
    if isinstance(data, Mapping):
        kinds = list | np.ndarray | pa.Array | pa.ChunkedArray
        lists = all(
            isinstance(name, str) and isinstance(values, kinds) and len(values) == 1
            for name, values in data.items()
        )
        return {name: data[name] for name in names} if lists and names <= data.keys() else None
    is_frame = pandas is not None and isinstance(data, pandas.DataFrame)
    if not (is_frame or isinstance(data, pa.Table)) or len(data) != 1:
        return None
    there = data.columns.tolist() if is_frame else data.schema.names
    places = {name: place for place, name in enumerate(there)}
    if len(places) < len(there) or not names <= places.keys():
        return None
    read = array_of if is_frame else pa.Table.column
    return {name: read(data, places[name]) for name in names}


def cell_of(values: Any) -> Cell | None:
    """Returns the cell of a column of one row; None of one whose values are no plain ones.

    Example:
        >>> cell_of(pa.array([7])), cell_of(["a"])
        ((DataType(int64), 7), (<class 'str'>, 'a'))
    """
    if type(values) is np.ndarray:
        kind = values.dtype
        if values.shape == (1,) and kind.kind in "biuf" and kind.isnative:
            return kind, values.item()
        values = values.tolist() if kind.kind == "O" else []
    if isinstance(values, list):
        kind = type(values[0]) if values else None
        return (kind, values[0]) if kind in _OF_PYTHON else None
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        convert = getattr(values, "__arrow_array__", None)
        if convert is None:
            return None
        values = convert()
    kind = values.type
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        return None
    try:
        return kind, values[0].as_py()
    except (ValueError, OverflowError):  # a datetime that Python has not
        return None


def _table_of(row: OneRow, names: Collection[str], origin: str) -> pa.Table:
    """Makes a table of some columns of a row.

    Raises:
        ValueError: A value is of no type that Arrow has.
    """
    columns = [
        row[name]
        if isinstance(row[name], pa.ChunkedArray)
        else arrow_column(name, row[name], origin)
        for name in names
    ]
    return pa.Table.from_arrays(columns, list(names))

"""`SingleRows`: encodes rows one by one, by their cells."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.codec import Codec, Coded, Rules, joined, missing
from mmoe.datasets.features.datetime import DatetimeCodec
from mmoe.datasets.features.domains import encode_domains
from mmoe.datasets.features.ids import CategoricalCodec
from mmoe.datasets.features.numeric import NumberCells, NumericCodec
from mmoe.datasets.features.seen import CONSTANTS
from mmoe.datasets.labels.targets import row_links
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.rows.frames import Cell, OneRow, cell_of, table_of
from mmoe.datasets.rows.projection import required_columns, with_missing
from mmoe.datasets.values.datetimes import plain_moment

_MOST_CELLS = 1 << 14  # kept, some 1 kB each
_NO_COLUMNS = pa.table({})


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
        self.numbers = NumberCells(
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
        """Picks what is read of a table: columns of these codecs, and what no feature reads."""
        features = [self.codecs[place].feature for place in places]
        names = self.beside.union(*(feature.source_columns for feature in features))
        if not names:
            return _NO_COLUMNS
        return with_missing(table_of(row, names, origin), self.config, origin)

    def _kept(self, key: Hashable, coded: Coded) -> Coded:
        if len(self.known) >= _MOST_CELLS:
            self.known.clear()
        self.known[key] = coded
        return coded


def _key(place: int, columns: Sequence[str], cells: Mapping[str, Cell | None]) -> Hashable:
    """Returns what a codec's code follows from; None: not from cells alone."""
    found = [_exact(cells[name]) for name in columns]
    return None if not found or None in found else (place, *found)


def _exact(cell: Cell | None) -> Hashable:
    """Returns a number's bits, since 0.0 equals -0.0."""
    return cell if cell is None or not isinstance(cell[1], float) else (cell[0], cell[1].hex())

"""Requests: whose rows are candidates, what these share, and which features are of requests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import Feature, Level, RequestsConfig, RunConfig
from mmoe.config.data import NOTHING_SHARED
from mmoe.datasets.rows.locations import (
    REQUEST_COLUMN,
    ROW_COLUMN,
    TIMES_COLUMN,
    cell_place,
    find_column,
    first_true,
    is_of_request,
    place,
)
from mmoe.datasets.values.arrow import is_list, pc
from mmoe.datasets.values.hashing import hash_keys, mix64
from mmoe.datasets.values.keys import (
    KeyKind,
    codes_of,
    first_rows,
    first_seen,
    missing_mask,
    refuse_nested,
    to_keys,
)


def same_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Compares two columns of one type, bool [N]: missing ones are the same, lists by their items.

    Example:
        >>> lists = pa.chunked_array([pa.array([[1, None], None, [2]])])
        >>> same_values(lists, pa.chunked_array([pa.array([[1, None], [], [3]])]))
        array([ True, False, False])
    """
    kind = left.type
    if pa.types.is_null(kind):
        return np.ones(len(left), bool)
    missing = pc.and_(pc.is_null(left), pc.is_null(right))
    if is_list(kind):
        return _same_lists(left, right) | missing.to_numpy(zero_copy_only=False)
    if pa.types.is_struct(kind):
        alike = pc.equal(pc.is_null(left), pc.is_null(right)).to_numpy(zero_copy_only=False)
        for number in range(kind.num_fields):
            parts = (pc.struct_field(column, [number]) for column in (left, right))
            alike &= same_values(*parts)
        return alike
    equal = pc.fill_null(pc.equal(left, right), False)
    if pa.types.is_floating(kind):
        both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(equal, pc.fill_null(both_nan, False))
    return pc.or_(equal, missing).to_numpy(zero_copy_only=False)


def _same_lists(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Compares lists of rows that have both."""
    lengths = [pc.list_value_length(column) for column in (left, right)]
    alike = pc.fill_null(pc.equal(*lengths), False).to_numpy(zero_copy_only=False).copy()
    rows = pa.array(np.flatnonzero(alike))
    items = [pc.list_flatten(column.take(rows)) for column in (left, right)]
    if len(items[0]):
        owners_V = np.repeat(np.flatnonzero(alike), lengths[0].take(rows).to_numpy())
        alike[owners_V[~same_values(*items)]] = False
    return alike


def same_neighbours(array: pa.Array) -> np.ndarray:
    """Compares each value of a column with the one before, bool [N − 1].

    Example:
        >>> same_neighbours(pa.array([[1, 2], [1, 2], [1], None, None]))
        array([ True, False, False,  True])
    """
    left, right = array.slice(1), array.slice(0, max(len(array) - 1, 0))
    return same_values(pa.chunked_array([left]), pa.chunked_array([right]))


LEVELS = "levels"  # section of encoder.json
_ROWS = 1 << 16  # compared at a time
_USED_BY = "data.requests.column"


@dataclass(frozen=True, kw_only=True)
class RowRequests:
    """Request of each of N rows, one of M."""

    # int64, place of each row's request, by the order in which rows first name them
    request_N: np.ndarray
    first_M: np.ndarray  # int64, the first row of each request
    keys_M: np.ndarray  # uint64, which requests they are, in any table of the data
    column: str | None  # what names them; None: a row of the files is one

    @property
    def keys_N(self) -> np.ndarray:
        """Returns each row's request, uint64."""
        return self.keys_M[self.request_N]

    def first_rows(
        self, table: pa.Table, uses: Mapping[str, str], origin: str, *, checked: bool = False
    ) -> pa.Table:
        """Returns the first row of each request, of columns that all its rows share.

        Args:
            table: The N rows.
            uses: The columns, each with a feature that reads it.
            origin: Starts error messages.
            checked: They are known to be the same.

        Raises:
            ValueError: A column differs within a request, or is not there.
        """
        columns = {
            name: table[name]
            if is_of_request(table, name)
            else find_column(table, name, origin, f"feature {feature!r}")
            for name, feature in uses.items()
        }
        if not checked and len(self.first_M) < len(self.request_N):
            for name, column in columns.items():
                if is_of_request(table, name):
                    continue  # beside the candidates: there is one for all
                row = self.differing(column)
                if row is None:
                    continue
                first, named = int(self.first_M[self.request_N[row]]), ""
                if self.column is not None:
                    key = find_column(table, self.column, origin, _USED_BY)[row].as_py()
                    named = f" {key!r}"
                cells = (repr(column[index].as_py()) for index in (first, row))
                seen, other = (c if len(c) <= 60 else f"{c[:57]}..." for c in cells)
                raise ValueError(
                    f"{place(table, origin, row)}: column {name!r} (of feature {uses[name]!r}, "
                    f"level request) is {other}, but {seen} in {place(table, origin, first)} of "
                    f"the same request{named}; say level: row in the feature, or mend the log"
                )
        hidden = [name for name in (ROW_COLUMN, REQUEST_COLUMN) if name in table.column_names]
        kept = pa.table(
            {**columns, **{name: table[name] for name in hidden}}, metadata=table.schema.metadata
        )
        if not kept.num_columns:
            return pa.table({ROW_COLUMN: self.first_M})  # so many rows, of which nothing is read
        is_first_N = np.zeros(len(self.request_N), bool)
        is_first_N[self.first_M] = True
        return kept.filter(pa.array(is_first_N))

    def differing(self, column: pa.ChunkedArray) -> int | None:
        """Returns a row whose value is another one than that of its request's first; None: none.

        Args:
            column: Of the N rows.
        """
        follows_N = np.zeros(len(self.request_N), bool)  # the row before is of the same request
        follows_N[1:] = self.request_N[1:] == self.request_N[:-1]
        start = 0
        for chunk in column.chunks:
            rows = slice(start, start + len(chunk))
            start += len(chunk)
            follows_N[rows.start : rows.start + 1] = False  # it is in another chunk
            alike = same_neighbours(chunk)
            wrong = np.flatnonzero(follows_N[rows][1:] & ~alike)
            if len(wrong):
                return rows.start + 1 + int(wrong[0])
        return self._differing_apart(column, np.flatnonzero(~follows_N))

    def _differing_apart(self, column: pa.ChunkedArray, rows: np.ndarray) -> int | None:
        """Likewise of rows that do not follow another one of their request."""
        first_N = self.first_M[self.request_N[rows]]
        rows, first_N = rows[first_N != rows], first_N[first_N != rows]
        for start in range(0, len(rows), _ROWS):
            own, first = rows[start : start + _ROWS], first_N[start : start + _ROWS]
            # Of what lies between alone: Arrow joins all chunks that it takes rows from
            least = int(first.min())
            near = column.slice(least, int(own.max()) + 1 - least)
            alike = same_values(*(near.take(pa.array(n - least)) for n in (own, first)))
            if not alike.all():
                return int(own[int(np.argmin(alike))])
        return None


def find_requests(requests: RequestsConfig, table: pa.Table, origin: str) -> RowRequests:
    """Finds the requests of a table's rows.

    Args:
        requests: What names them.
        table: N rows.
        origin: What the user calls the data; starts error messages.

    Raises:
        ValueError: A row has no request, or the column holds no ids.

    Example:
        >>> by_query = RequestsConfig(column="query")
        >>> found = find_requests(by_query, pa.table({"query": ["b", "b", "a", "b"]}), "log")
        >>> found.request_N.tolist(), found.first_M.tolist()
        ([0, 0, 1, 0], [0, 2])
    """
    if requests.column is None:  # by the numbers of the rows that candidates came from
        numbers_N = np.arange(table.num_rows)  # of rows in memory that came one by one
        if REQUEST_COLUMN in table.column_names:
            numbers_N = table[REQUEST_COLUMN].to_numpy()
        distinct_M, request_N = first_seen(numbers_N)
        first_M = first_rows(request_N, len(distinct_M))
        keys_M = mix64(distinct_M.astype(np.uint64))
        return RowRequests(request_N=request_N, first_M=first_M, keys_M=keys_M, column=None)
    column = find_column(table, requests.column, origin, _USED_BY)
    label = f"{origin}: column {requests.column!r} (of {_USED_BY})"
    refuse_nested(column, label)
    if column.type == pa.uint64():
        column = column.cast(pa.int64(), safe=False)  # other numbers, but each its own
    kind: KeyKind = "int" if pa.types.is_integer(column.type) else "text"
    missing_N = missing_mask(column, kind)
    if (row := first_true(missing_N)) is not None:
        raise ValueError(
            f"{cell_place(table, origin, row, requests.column, _USED_BY)} is empty, but each row "
            "is a candidate of some request; give it an id of its own, or drop the row"
        )
    request_N, count = codes_of(column)
    first_M = first_rows(request_N, count)
    keys_M = hash_keys(to_keys(column.take(pa.array(first_M)), kind, label))
    return RowRequests(request_N=request_N, first_M=first_M, keys_M=keys_M, column=requests.column)


class LevelsFit:
    """Finds the level of each feature: as its key says, else by where its columns are.

    Args:
        config: Features and `data.requests`.
        origin: What the user calls the data; starts error messages.
    """

    def __init__(self, config: RunConfig, origin: str) -> None:
        self.features, self.requests = config.features, config.data.requests
        self.origin, self.rows = origin, 0
        self.found: dict[str, Level] = {}
        self.repeats = self.requests is None or self.requests.column is None

    def add(self, table: pa.Table, *, check: bool) -> pa.Table | None:
        """Looks at which columns are of requests, the same in every table, and at their ids.

        Args:
            table: Training rows.
            check: Do as `check` does too.

        Returns:
            A row for each request, of the columns that features of requests read, with how many
            rows it stands for (`times_of`); None without requests.

        Raises:
            ValueError: A feature of requests has a column that candidates have, or a row no
                request.
        """
        self.rows += table.num_rows
        if (found := self._requests(table)) is None:
            return None
        self.repeats |= len(found.first_M) < len(found.request_N)
        first = found.first_rows(table, columns_read(self._shared), self.origin, checked=not check)
        times_M = np.bincount(found.request_N, minlength=len(found.first_M))
        return first.append_column(TIMES_COLUMN, pa.array(times_M))

    def check(self, table: pa.Table) -> None:
        """Refuses rows whose features of requests would be refused when they are encoded."""
        if (found := self._requests(table)) is not None:
            found.first_rows(table, columns_read(self._shared), self.origin)

    def finish(self) -> dict[str, Level]:
        """Returns the levels; none without `data.requests`.

        Raises:
            ValueError: No two rows are of one request.
        """
        if not self.repeats and self.requests is not None and self.rows > 1:
            raise ValueError(
                f"{self.origin}: column {self.requests.column!r} (of data.requests.column) never "
                f"repeats among {self.rows:,} training rows, so nothing is shared; name the column "
                "that says which rows were candidates of one request, or remove data.requests"
            )
        return self.found

    @property
    def _shared(self) -> list[Feature]:
        return [feature for feature in self.features if self.found[feature.name] == "request"]

    def _requests(self, table: pa.Table) -> RowRequests | None:
        self._find(table)
        return None if self.requests is None else find_requests(self.requests, table, self.origin)

    def _find(self, table: pa.Table) -> None:
        if self.requests is None or self.found:
            return
        shared = None
        if self.requests.candidates is not None:  # columns of nested rows that a request has once
            shared = {name for name in table.column_names if is_of_request(table, name)}
        found: dict[str, Level] = {
            feature.name: _level(feature, shared, self.origin) for feature in self.features
        }
        if "request" not in found.values():
            raise ValueError(f"{self.origin}: {NOTHING_SHARED}")
        self.found = found


def columns_read(features: Iterable[Feature]) -> dict[str, str]:
    """Returns the columns that features read, each with the name of the first of them."""
    uses: dict[str, str] = {}
    for feature in features:
        for column in feature.source_columns:
            uses.setdefault(column, feature.name)
    return uses


def _level(feature: Feature, shared: set[str] | None, origin: str) -> Level:
    """Its level; where candidates are nested, `shared` are the columns beside them."""
    if shared is None:
        return feature.asked_level or "row"
    own = [column for column in feature.source_columns if column not in shared]
    if feature.asked_level == "request" and own:
        raise ValueError(
            f"{origin}: feature {feature.name!r}: level is request, but column {own[0]!r} is of "
            "the candidates (data.requests.candidates); remove level, or move the column beside "
            "them"
        )
    return feature.asked_level or ("row" if own else "request")

"""Levels: which features are of a request, and which of each of its candidates."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from mmoe.config import Feature, Level, RunConfig
from mmoe.config.data import NOTHING_SHARED
from mmoe.datasets.features.codec import Codec
from mmoe.datasets.rows.locations import is_of_request
from mmoe.datasets.rows.requests import RowRequests, find_requests

LEVELS = "levels"


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
        return found.counted_rows(table, columns_read(self._shared), self.origin, checked=not check)

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


def at_level(codecs: Iterable[Codec[Any]], levels: dict[str, Level], level: Level) -> list[Any]:
    """Returns the codecs of one level; without levels all are of rows."""
    return [codec for codec in codecs if levels.get(codec.feature.name, "row") == level]


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

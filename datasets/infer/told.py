"""Options of `mmoe init`, which count for more than anything measured."""

import csv
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.config.data import check_column_names, check_delimiter, check_encoding
from mmoe.datasets.files.csv_files import read_header, refuse_no_header
from mmoe.datasets.files.data_file import CsvForm
from mmoe.datasets.files.resolve import AsRead, kind_of, resolve_files
from mmoe.datasets.infer.profile import ColumnProfile, of_numbers
from mmoe.datasets.labels.expressions import columns_of
from mmoe.datasets.rows.locations import missing_column, visible_columns
from mmoe.datasets.rows.sources import as_csv
from mmoe.datasets.values.columns import to_numbers


@dataclass(frozen=True)
class Told:
    """What a person knows better: of columns, and of the rows to be scored."""

    categorical: Sequence[str] = ()  # they are ids
    numeric: Sequence[str] = ()  # they are numbers
    drop: Sequence[str] = ()  # they are left out
    # auto: by time where there is one; random: rows to be scored are of the time of training
    split: Literal["auto", "random"] = "auto"

    @classmethod
    def of_options(
        cls,
        columns: Collection[str],
        categorical: Sequence[str] | None,
        numeric: Sequence[str] | None,
        drop: Sequence[str] | None,
    ) -> "Told":
        """Reads options that may name several columns with commas between; names may hold some.

        Example:
            >>> Told.of_options(["a", "b", "c, d"], ["a,b", "c, d"], None, None).categorical
            ['a', 'b', 'c, d']
        """
        ids, numbers, none = (
            _names(columns, option or ()) for option in (categorical, numeric, drop)
        )
        return cls(categorical=ids, numeric=numbers, drop=none)

    def without(self, column: str, table: pa.Table, origin: str) -> "Told":
        """Returns the same, with a column that names requests, and is no input.

        Raises:
            ValueError: It is not there, or is said to be one.
        """
        if column not in visible_columns(table):
            raise ValueError(missing_column(column, visible_columns(table), origin, "--request"))
        if column in (*self.categorical, *self.numeric, *self.drop):
            raise ValueError(f"--request {column}: another option names it too; leave it out there")
        return replace(self, drop=[*self.drop, column])

    @cached_property
    def kept(self) -> set[str]:
        """Columns that are inputs, whatever speaks against it."""
        return {*self.categorical, *self.numeric}

    def unread(self, labels: Collection[str]) -> set[str]:
        """Returns columns to drop that no label is made of: nothing need be known of them."""
        read = set(labels)
        for label in labels:
            with suppress(ValueError):  # its name is no expression, or it is refused later
                read.update(columns_of(label))
        return set(self.drop) - read

    def check(self, table: pa.Table, labels: Collection[str], origin: str) -> None:
        """Refuses columns that are not there, are labels, or are said to be two things.

        Raises:
            ValueError: As said; the message names the option and the column.
        """
        seen: dict[str, str] = {}
        there = dict.fromkeys(visible_columns(table))
        for option in ("categorical", "numeric", "drop"):
            for column in getattr(self, option):
                if column not in there:
                    raise ValueError(missing_column(column, there, origin, f"--{option}"))
                if column in labels and option != "drop":
                    raise ValueError(
                        f"--{option} {column}: a label is made of this column, so it is no input; "
                        "remove the option"
                    )
                if seen.get(column, option) != option:
                    raise ValueError(
                        f"--{option} {column}: it is under --{seen[column]} as well; say one of "
                        "the two"
                    )
                seen[column] = option

    def apply(
        self, table: pa.Table, profiles: Sequence[ColumnProfile], origin: str
    ) -> list[ColumnProfile]:
        """Returns the columns without those to drop; those told to be numbers are parsed.

        Raises:
            ValueError: Numbers are none, or ids cannot be; the message names column and row.
        """
        drop = set(self.drop)
        return [self._one(table, one, origin) for one in profiles if one.name not in drop]

    def _one(self, table: pa.Table, profile: ColumnProfile, origin: str) -> ColumnProfile:
        if profile.name in self.categorical and profile.nature in ("list", "vector", "other"):
            raise ValueError(
                f"--categorical {profile.name}: it holds {table[profile.name].type}, expected one "
                "id a row; remove the option"
            )
        read = profile.numbers_N is not None and profile.nature in ("integer", "real")
        if profile.name not in self.numeric or read:
            return profile
        numbers_N = to_numbers(table, profile.name, origin, f"--numeric {profile.name}")
        return of_numbers(profile.name, numbers_N)


def _names(columns: Collection[str], values: Sequence[str]) -> list[str]:
    found = [
        name
        for value in values
        for name in ([value] if value in columns else map(str.strip, value.split(",")))
    ]
    return [name for name in dict.fromkeys(found) if name]


_T = TypeVar("_T")


def rows_to_look_at(
    data: str,
    columns: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
) -> str | AsRead:
    """Returns the data, and how it is written where the person said so.

    Args:
        data: A file, a folder or a glob.
        columns: Names with commas between them, quoted as in CSV where they hold one.
        delimiter: As the key `data.delimiter`.
        encoding: As the key.
        header: As the key.

    Raises:
        ValueError: What is told does not fit the data, or names are missing where it has none.
    """
    names = None
    if columns is not None:
        names = tuple(name.strip() for name in next(csv.reader([columns]), []))
        _checked("--columns", columns, check_column_names, list(names))
    if delimiter is not None:
        delimiter = _checked("--delimiter", delimiter, check_delimiter, delimiter)
    if encoding is not None:
        _checked("--encoding", encoding, check_encoding, encoding)
    form = CsvForm(names, delimiter, encoding, header)
    told = ("--columns", "--delimiter", "--encoding", "--header" if header else "--no-header")
    given = (names, delimiter, encoding, header)
    key = next((k for k, value in zip(told, given, strict=True) if value is not None), None)
    rows = data if key is None else as_csv(data, form, key)
    first = resolve_files(rows)[0]
    if header is None and kind_of(first) == "csv":
        refuse_no_header(first)
    return rows


def with_csv_keys(config: RunConfig, rows: str | AsRead) -> RunConfig:
    """Returns a config that reads these rows as they were looked at.

    Of a file without a header names that count its columns are written: rows that lack one are
    refused then, not shifted.
    """
    if isinstance(rows, str) or rows.form is None:
        return config
    form = rows.form
    told = {"delimiter": form.delimiter, "encoding": form.encoding, "header": form.header}
    names = form.names
    if names is None and form.header is False:
        first = next(file for file in resolve_files(rows) if kind_of(file) == "csv")
        names, told["header"] = read_header(first).names, None
    told["column_names"] = None if names is None else list(names)
    return config.model_copy(update={"data": config.data.model_copy(update=told)})


def _checked(option: str, given: str, check: Callable[[_T], _T], value: _T) -> _T:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{option} {given}: {error}") from None

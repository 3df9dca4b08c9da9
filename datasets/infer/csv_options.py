"""Options of `mmoe init` that say how CSV files are written, and the config that says the same."""

import csv
from collections.abc import Callable
from typing import TypeVar

from mmoe.config import RunConfig
from mmoe.config.data import check_column_names, check_delimiter, check_encoding
from mmoe.datasets.files.csv_header import read_header, refuse_no_header
from mmoe.datasets.files.data_file import CsvForm
from mmoe.datasets.files.resolve import AsCsv, kind_of, resolve_files
from mmoe.datasets.rows.sources import as_csv

_T = TypeVar("_T")


def rows_to_look_at(
    data: str,
    columns: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
) -> str | AsCsv:
    """Returns the data, and how it is written where that is told.

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


def with_csv_keys(config: RunConfig, rows: str | AsCsv) -> RunConfig:
    """Returns a config that reads these rows as they were looked at.

    Of a file without a header names that count its columns are written: rows that lack one are
    refused then, not shifted.
    """
    if not isinstance(rows, AsCsv):
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

"""`mmoe init --columns`: a first config for CSV files that have no header line."""

import csv

from mmoe.config import RunConfig
from mmoe.config.data import check_column_names
from mmoe.datasets.files.csv_header import refuse_no_header
from mmoe.datasets.files.resolve import Headerless, kind_of, resolve_files
from mmoe.datasets.rows.sources import headerless

_KEY = "--columns"


def rows_to_look_at(data: str, columns: str | None) -> str | Headerless:
    """Returns the data, its columns named where names are given.

    Args:
        data: A file, a folder or a glob.
        columns: Names with commas between them, quoted as in CSV where they hold one.

    Raises:
        ValueError: The names do not fit the data, or are missing where it has none.
    """
    if columns is None:
        first = resolve_files(data)[0]
        if kind_of(first) == "csv":
            refuse_no_header(first)
        return data
    names = [name.strip() for name in next(csv.reader([columns]), [])]
    try:
        check_column_names(names)
    except ValueError as error:
        raise ValueError(f"{_KEY} {columns}: {error}") from None
    return headerless(data, names, _KEY)


def with_column_names(config: RunConfig, rows: str | Headerless) -> RunConfig:
    """Returns a config that reads these rows as they were looked at."""
    if not isinstance(rows, Headerless):
        return config
    data = config.data.model_copy(update={"column_names": list(rows.names)})
    return config.model_copy(update={"data": data})

"""CSV files on pyarrow: every column is read as text and typed afterwards by what it holds.

Arrow's own type inference is not used: it turns 00501 into 501 and ids beyond 64 bits into rounded
floats, and while streaming it fixes a column's type by the first block.
"""

import csv
import io
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

from mmoe.datasets.files.csv_header import Header, dialect, read_header
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.text_files import one_line, open_text
from mmoe.datasets.rows.locations import MissingColumnError, refuse_repeated
from mmoe.datasets.values.arrow import may_use_threads, out_of_memory, pc

_BLOCK_BYTES = 8 << 20  # a row must fit into one block


def csv_columns(path: DataFile) -> list[str]:
    """Reads the header's names; of equal ones the second becomes NAME.1, as in pandas."""
    return read_header(path).names


def csv_schema(path: DataFile) -> pa.Schema:
    """Returns the columns, all of them text."""
    return pa.schema([(name, pa.large_string()) for name in csv_columns(path)])


def read_csv(path: DataFile, columns: list[str] | None) -> pa.Table:
    """Reads the whole file, all columns large_string; empty cells are null.

    Raises:
        ValueError: The file is empty, truncated, no UTF-8, ragged, or lacks a column.
    """
    header = read_header(path)
    options = _options(path, header, columns)
    if header.is_all:
        names = header.names if columns is None else columns
        return pa.table({name: pa.array([], pa.large_string()) for name in names})
    try:
        table = pacsv.read_csv(open_text(path), **options)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(path, header, error) from None
    return _trim(table)


def iter_csv(path: DataFile, columns: list[str] | None, rows: int = 0) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, block by block, however many rows are asked for.

    Args:
        path: The file.
        columns: Only these, in this order; None = all.
        rows: Not looked at.
    """
    header = read_header(path)
    options = _options(path, header, columns)
    if header.is_all:
        return
    try:
        reader = pacsv.open_csv(open_text(path), **options)
        for batch in reader:
            yield _trim(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(path, header, error) from None


def _options(path: DataFile, header: Header, columns: list[str] | None) -> dict:
    """What Arrow is told."""
    there = set(header.names)
    for column in columns or ():
        if column not in there:
            raise MissingColumnError(column, header.names, str(path))
    refuse_repeated(header.names if columns is None else columns, header.written, str(path))
    return {
        "read_options": pacsv.ReadOptions(
            column_names=header.names,
            skip_rows=header.blank_lines,
            skip_rows_after_names=0 if header.is_row else 1,
            block_size=_BLOCK_BYTES,
            use_threads=may_use_threads(),
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=header.delimiter,
            quote_char='"' if path.csv.has_quotes else False,
            newlines_in_values=path.csv.has_quotes,
            # Of one column it is a row whose cell is empty
            ignore_empty_lines=len(header.names) > 1,
        ),
        "convert_options": pacsv.ConvertOptions(
            column_types={name: pa.large_string() for name in header.names},
            include_columns=list(columns) if columns is not None else None,
            null_values=[""],
            strings_can_be_null=True,
        ),
    }


def _trim(table: pa.Table) -> pa.Table:
    """Blanks around values go (`a, b`), as they do around names."""
    if not table.num_columns:
        return table
    # At once: a table that changes one column copies the list of all others
    trimmed = [pc.ascii_trim_whitespace(column) for column in table.columns]
    return pa.Table.from_arrays(trimmed, names=table.column_names)


def _explain(path: DataFile, header: Header, error: Exception) -> Exception:
    """Arrow's message, or the row itself where a row has too many or too few cells."""
    if short := out_of_memory(error, str(path)):
        return short
    # Arrow has one class for all that is wrong in a CSV file, and words; it knows the row on one
    # thread only, and counts the header
    reason = re.sub(r"\bRow #\d+: ", "", one_line(error))
    if "Expected" in reason and "columns" in reason:
        width = len(header.names)
        found = _ragged_row(path, header)
        if found is not None:
            row, cells = found
            above = "first row" if header.is_row else "header"
            return ValueError(
                f"{path}: row {row} has {cells} cells, expected {width} as in the {above}; mend "
                "the row, or quote cells that hold the delimiter"
            )
    if "UTF8" in reason or "utf-8" in reason.lower():
        return ValueError(
            f"{path}: is not UTF-8 text ({reason}); say its encoding (data.encoding: latin-1, of "
            "mmoe init --encoding latin-1), or convert it, such as with iconv"
        )
    if "straddl" in reason:
        return ValueError(
            f"{path}: has a row of more than {_BLOCK_BYTES:,} bytes; if that is no cell of yours, "
            "a quote is opened and never closed: close it"
        )
    return ValueError(f"{path}: cannot be read as CSV ({reason}); mend or copy the file again")


def _ragged_row(path: DataFile, header: Header) -> tuple[int, int] | None:
    """Number (from 1, without the header) and cells of the first row of another width."""
    width = len(header.names)
    with open_text(path) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        rows = csv.reader(lines, **{**dialect(path, header.delimiter), "skipinitialspace": False})
        try:
            if not header.is_row:
                next(row for row in rows if len(row) > 1 or (row and row[0].strip()))
            counted = (row for row in rows if row or width == 1)
            for number, row in enumerate(counted, start=1):
                if row and len(row) != width:
                    return number, len(row)
        except (csv.Error, StopIteration):
            return None
    return None

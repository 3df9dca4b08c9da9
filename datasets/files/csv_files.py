"""CSV files on pyarrow: every column is read as text and typed afterwards by what it holds.

Arrow's own type inference is not used: it turns 00501 into 501 and ids beyond 64 bits into rounded
floats, and while streaming it fixes a column's type by the first block.
"""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv

from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.rows.locations import MissingColumnError, distinct_names
from mmoe.datasets.values.arrow import may_use_threads, out_of_memory, pc

_BLOCK_BYTES = 8 << 20  # a row must fit into one block
_HEADER_BYTES = 1 << 20
_DELIMITERS = (",", "\t", ";", "|")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class _Header:
    names: list[str]
    delimiter: str
    blank_lines: int  # above the header


def csv_columns(path: DataFile) -> list[str]:
    """Reads the header's names; of equal ones the second becomes NAME.1, as in pandas."""
    return _read_header(path).names


def read_csv(path: DataFile, columns: list[str] | None) -> pa.Table:
    """Reads the whole file, all columns large_string; empty cells are null.

    Raises:
        ValueError: The file is empty, truncated, no UTF-8, ragged, or lacks a column.
    """
    header = _read_header(path)
    try:
        table = pacsv.read_csv(_open(path), **_options(path, header, columns))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(path, header, error) from None
    return _trim(table)


def iter_csv(path: DataFile, columns: list[str] | None) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, block by block."""
    header = _read_header(path)
    try:
        reader = pacsv.open_csv(_open(path), **_options(path, header, columns))
        for batch in reader:
            yield _trim(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(path, header, error) from None


def _open(path: DataFile) -> pa.NativeFile:
    if not is_address(str(path)):
        return pa.input_stream(str(path), compression="detect")
    codec = next((c for end, c in _CODECS.items() if path.name.lower().endswith(end)), None)
    return pa.input_stream(path.open(), compression=codec)


def _read_header(path: DataFile) -> _Header:
    """Looks at the start of the file; further where the header does not end there."""
    num_bytes = _HEADER_BYTES
    while True:
        header, is_whole = _header_within(path, num_bytes)
        if is_whole:
            return header
        num_bytes *= 2
        if num_bytes > _BLOCK_BYTES:
            raise ValueError(
                f"{path}: the header line is longer than {_BLOCK_BYTES >> 20} MiB, expected the "
                f"names of the columns (it begins with {header.names[0][:60]!r}); if it is one "
                "quoted cell, mend its quotes"
            )


def _header_within(path: DataFile, num_bytes: int) -> tuple[_Header, bool]:
    """The header as the first bytes have it, and whether it ends among them."""
    try:
        with _open(path) as stream:
            start = stream.read(num_bytes)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read ({_one_line(error)}); copy it again") from None
    if not start.strip():
        raise ValueError(f"{path}: is empty; expected a header line and rows")
    if start.startswith(_UTF16) or b"\0" in start[:100]:
        raise ValueError(
            f"{path}: is not UTF-8 text (it looks like UTF-16); convert it, such as with "
            "iconv -f UTF-16 -t UTF-8"
        )
    # A character cut by the end of the block is no reason to refuse the file.
    text = start.decode("utf-8-sig", errors="replace")
    lines = _LINE_END.split(text)
    blank_lines = next(number for number, line in enumerate(lines) if line.strip())
    first_line, *others = lines[blank_lines:]
    _refuse_preamble(path, first_line, next((line for line in others if line.strip()), ""))
    delimiter = max(_DELIMITERS, key=lambda d: (first_line.count(d), -_DELIMITERS.index(d)))
    if delimiter == "|" and any(d in first_line for d in _DELIMITERS[:3]):
        delimiter = max(_DELIMITERS[:3], key=first_line.count)
    left = io.StringIO(text, newline="")
    rows = csv.reader(left, delimiter=delimiter, skipinitialspace=True)
    try:
        row = next(row for row in rows if row and (len(row) > 1 or row[0].strip()))
    except (csv.Error, StopIteration) as error:
        raise ValueError(
            f"{path}: the header line cannot be read ({_one_line(error) or 'no name in it'}); "
            "mend its quotes"
        ) from None
    header = _Header(distinct_names([name.strip() for name in row]), delimiter, blank_lines)
    return header, len(start) < num_bytes or left.tell() < len(text)


def _refuse_preamble(path: DataFile, first: str, second: str) -> None:
    """A line above the header would be taken for it, and every row called ragged."""
    cells = max(second.count(delimiter) for delimiter in _DELIMITERS)
    if re.fullmatch(r'"?sep=.?"?', first.strip(), re.IGNORECASE):
        what = "is a note to spreadsheets"
    elif first.startswith("#") and cells and not any(d in first for d in _DELIMITERS):
        what = "is a comment"
    else:
        return
    raise ValueError(
        f"{path}: the first line, {first.strip()[:60]!r}, {what}, expected the column names; "
        "remove the line"
    )


def _options(path: DataFile, header: _Header, columns: list[str] | None) -> dict:
    for column in columns or ():
        if column not in header.names:
            raise MissingColumnError(column, header.names, str(path))
    return {
        "read_options": pacsv.ReadOptions(
            column_names=header.names,
            skip_rows=header.blank_lines,
            skip_rows_after_names=1,
            block_size=_BLOCK_BYTES,
            use_threads=may_use_threads(),
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=header.delimiter,
            newlines_in_values=True,
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


def _explain(path: DataFile, header: _Header, error: Exception) -> Exception:
    """Arrow's message, or the row itself where a row has too many or too few cells."""
    if short := out_of_memory(error, str(path)):
        return short
    # Arrow has one class for all that is wrong in a CSV file, and words; it knows the row on one
    # thread only, and counts the header
    reason = re.sub(r"\bRow #\d+: ", "", _one_line(error))
    if "Expected" in reason and "columns" in reason:
        width = len(header.names)
        found = _ragged_row(path, width, header.delimiter)
        if found is not None:
            row, cells = found
            return ValueError(
                f"{path}: row {row} has {cells} cells, expected {width} as in the header; mend the "
                "row, or quote cells that hold the delimiter"
            )
    if "UTF8" in reason or "utf-8" in reason.lower():
        return ValueError(f"{path}: is not UTF-8 text ({reason}); convert it, such as with iconv")
    return ValueError(f"{path}: cannot be read as CSV ({reason}); mend or copy the file again")


def _ragged_row(path: DataFile, width: int, delimiter: str) -> tuple[int, int] | None:
    """Number (from 1, without the header) and cells of the first row of another width."""
    with _open(path) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        rows = csv.reader(lines, delimiter=delimiter)
        try:
            next(row for row in rows if len(row) > 1 or (row and row[0].strip()))  # the header
            counted = (row for row in rows if row or width == 1)
            for number, row in enumerate(counted, start=1):
                if row and len(row) != width:
                    return number, len(row)
        except (csv.Error, StopIteration):
            return None
    return None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."

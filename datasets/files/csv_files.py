"""CSV files on pyarrow: every column is read as text and typed afterwards by what it holds.

Arrow's own type inference is not used: it turns 00501 into 501 and ids beyond 64 bits into rounded
floats, and while streaming it fixes a column's type by the first block.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.text_files import delimiter_read, one_line, open_text, read_start, text_of
from mmoe.datasets.rows.locations import (
    delimiter_hint,
    distinct_names,
    is_number,
    refuse_missing,
    refuse_repeated,
)
from mmoe.datasets.values.arrow import may_use_threads, out_of_memory, pc
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.text import is_missing

HEADER_BYTES = 1 << 20
MOST_HEADER_BYTES = 8 << 20
_DELIMITERS = (",", "\t", ";", "|")
_LINE_END = re.compile(r"\r\n|\r|\n")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
_ROWS_COMPARED = 1000  # with the first line, to tell whether that is one of them
_SHOWN = 3  # of its cells, in the message


@dataclass(frozen=True)
class Header:
    """Content of the first line."""

    names: list[str]  # of the columns
    delimiter: str  # between cells
    blank_lines: int  # above it
    is_row: bool  # it is a row itself: the names were given
    is_all: bool = False  # the file ends with it, without an end of line; Arrow would refuse that
    written: tuple[str, ...] = ()  # the names as the header has them, maybe equal


def read_header(path: DataFile) -> Header:
    """Looks at the start of the file; further where the header does not end there.

    Raises:
        ValueError: There is none, or it has another number of cells than there are names.
    """
    num_bytes = HEADER_BYTES
    while True:
        header, is_whole = _header_within(path, num_bytes)
        if is_whole:
            return header
        num_bytes *= 2
        if num_bytes > MOST_HEADER_BYTES:
            raise ValueError(
                f"{path}: the header line is longer than {MOST_HEADER_BYTES >> 20} MiB, expected "
                f"the names of the columns (it begins with {header.names[0][:60]!r}); if it is one "
                "quoted cell, mend its quotes"
            )


def refuse_no_header(path: DataFile) -> None:
    """Refuses a file whose first line looks like the rows below it.

    So it looks where a name is a number above numbers, a date above dates, or a value that comes
    again in its column, and none is a word above numbers. 0, 1, 2, … are names that pandas gives.

    Raises:
        ValueError: Says how to name the columns; or most lines have other numbers of cells.
    """
    if path.csv.names is not None or path.csv.header:
        return
    header = read_header(path)
    text = read_start(path, HEADER_BYTES).decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""), **dialect(path, header.delimiter))
    try:
        rows = [row for row in islice(lines, _ROWS_COMPARED) if any(cell.strip() for cell in row)]
    except csv.Error:  # of a cell cut in two; what is wrong otherwise is said by who reads it all
        return
    first, *rest = [[cell.strip() for cell in row] for row in rows]
    others = [row for row in rest if len(row) == len(first)]
    if 2 * len(others) < len(rest):
        lengths = ", ".join(str(len(row)) for row in (first, *rest[:_SHOWN]))
        raise ValueError(
            f"{path}: its lines have {lengths}, … cells, expected a cell for each column in every "
            "line; write a list of any length into one cell (a|b|c), or rows as JSON lines"
        )
    if not _is_row(first, others):
        return
    cells = ", ".join(map(repr, first[:_SHOWN])) + ", …" * (len(first) > _SHOWN)
    plural = "s" * (len(first) > 1)
    raise ValueError(
        f"{path}: the first line looks like a row, not like names ({cells}), so the file has no "
        f"header; name its {len(first)} column{plural}: --columns a,b,c (in a config "
        "data.column_names: [a, b, c]), or add a header line; if it is one, say --header"
    )


def _is_row(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    numbered = [[str(n + start) for n in range(len(first))] for start in (0, 1)]
    if not others or list(first) in numbered:
        return False
    votes = [
        _vote(name, [row[place] for row in others if not is_missing(row[place])])
        for place, name in enumerate(first)
        if not is_missing(name)
    ]
    return min(votes, default=0) >= 0 and max(votes, default=0) > 0


def _vote(name: str, values: list[str]) -> int:
    """1: a value as those below it, -1: a name above them, 0: either."""
    if not values:
        return 0
    for looks in (is_number, _DATE.fullmatch):
        if all(map(looks, values)):
            return 1 if looks(name) else -1
    return 1 if name in values else 0


def _header_within(path: DataFile, num_bytes: int) -> tuple[Header, bool]:
    """The header as the first bytes have it, and whether it ends among them."""
    start = read_start(path, num_bytes)
    if not start.strip():
        raise ValueError(f"{path}: is empty; expected a header line and rows")
    # A character cut by the end of the block is no reason to refuse the file.
    text = start.decode("utf-8-sig", errors="replace")
    lines = _LINE_END.split(text)
    blank_lines = next(number for number, line in enumerate(lines) if line.strip())
    first_line, *others = lines[blank_lines:]
    _refuse_preamble(path, first_line, next((line for line in others if line.strip()), ""))
    delimiter = delimiter_read(path.csv) or _likeliest_delimiter(first_line)
    left = io.StringIO(text, newline="")
    rows = csv.reader(left, **dialect(path, delimiter))
    try:
        row = next(row for row in rows if row and (len(row) > 1 or row[0].strip()))
    except (csv.Error, StopIteration) as error:
        raise ValueError(
            f"{path}: the header line cannot be read ({one_line(error) or 'no name in it'}); "
            "mend its quotes"
        ) from None
    written = tuple(name.strip() for name in row)
    names, is_row = _names(path, written)
    to_end = left.tell() == len(text)
    is_all = to_end and not is_row and not text.endswith(("\n", "\r"))
    renamed = path.csv.header and path.csv.names is not None
    written = () if is_row or renamed else written
    header = Header(names, delimiter, blank_lines, is_row, is_all, written)
    return header, len(start) < num_bytes or not to_end


def _likeliest_delimiter(first_line: str) -> str:
    delimiter = max(_DELIMITERS, key=lambda d: (first_line.count(d), -_DELIMITERS.index(d)))
    if delimiter == "|" and any(d in first_line for d in _DELIMITERS[:3]):
        delimiter = max(_DELIMITERS[:3], key=first_line.count)
    return delimiter


def dialect(path: DataFile, delimiter: str) -> dict[str, Any]:
    """Returns what Python's reader of CSV is told."""
    quoting = csv.QUOTE_MINIMAL if path.csv.has_quotes else csv.QUOTE_NONE
    return {"delimiter": delimiter, "skipinitialspace": delimiter != " ", "quoting": quoting}


def _names(path: DataFile, first: Sequence[str]) -> tuple[list[str], bool]:
    """The columns' names, and whether the first line is a row.

    Where given names alone stand in it, in whatever order, it is a header unless it is told to be
    none: files of one log may differ in that, and rows to be scored lack labels.
    """
    given, has_header = path.csv.names, path.csv.header
    if given is None and has_header is False:
        return [f"column_{number}" for number in range(1, len(first) + 1)], True
    if given is None or (has_header is None and not Counter(first) - Counter(given)):
        return distinct_names([*first]), False
    if len(first) != len(given):
        hint = delimiter_hint(first[0]) if len(first) == 1 else ""
        short = " (a file that lacks some of them needs a header line)" * (len(first) > 1)
        raise ValueError(
            f"{path}: the first line has {len(first)} cells, but names were given for {len(given)} "
            f"({', '.join(given[:_SHOWN])}{', …' * (len(given) > _SHOWN)}); name every column, in "
            f"order{short}{hint}"
        )
    return list(given), not has_header


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


_BLOCK_BYTES = 8 << 20  # a row must fit into one block


def csv_schema(path: DataFile) -> pa.Schema:
    """Returns the columns, all of them text; of equal names the second becomes NAME.1."""
    return pa.schema([(name, pa.large_string()) for name in read_header(path).names])


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
    yield from _blocks(path, columns, lambda: open_text(path))


def _blocks(
    path: DataFile, columns: list[str] | None, opened: Callable[[], pa.NativeFile]
) -> Iterator[pa.Table]:
    header = read_header(path)
    options = _options(path, header, columns)
    if header.is_all:
        return
    try:
        for batch in pacsv.open_csv(opened(), **options):
            yield _trim(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(path, header, error) from None


def _options(
    path: DataFile, header: Header, columns: list[str] | None, block_bytes: int = 0
) -> dict[str, Any]:
    """Returns Arrow's options for the whole file, or for so many bytes of its rows."""
    refuse_missing(columns or (), header.names, str(path))
    refuse_repeated(header.names if columns is None else columns, header.written, str(path))
    return {
        "read_options": pacsv.ReadOptions(
            column_names=header.names,
            skip_rows=0 if block_bytes else header.blank_lines,
            skip_rows_after_names=0 if block_bytes or header.is_row else 1,
            block_size=block_bytes or _BLOCK_BYTES,
            use_threads=not block_bytes and may_use_threads(),
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


_QUOTE, _NEWLINE = ord('"'), ord("\n")


class UncutError(ValueError):
    """A block of a CSV file in which it is not sure where rows begin."""


def bytes_per_row(file: DataFile) -> float:
    """Returns about how long its lines are, by the first of them."""
    [start] = file.ranges([(0, min(file.size(), 1 << 18))])
    return len(start) / max(start.count(b"\n"), 1)


def iter_blocks(
    file: DataFile, columns: list[str], block_bytes: int, blocks: int
) -> Iterator[tuple[pa.Table, int]]:
    """Yields the whole rows of blocks spread over a plain CSV file, and the bytes they take.

    A block begins anywhere, maybe inside a quoted cell. Both are tried; where each row must have
    the header's cells, and there must be as many rows as ends of lines outside quotes, one of them
    fits at most. (Unless a quoted cell is longer than a block and looks like rows of this file.)

    Args:
        file: Not compressed.
        columns: Only these.
        block_bytes: Of each block.
        blocks: How many: one from each part of the file, at a place that is always the same.

    Raises:
        UncutError: It is not sure where a block's rows begin.
    """
    header, size = read_header(file), file.size()
    part = size / blocks
    room = max(int(part) - block_bytes, 0)
    jumps = mix64(np.arange(blocks, dtype=np.uint64), size) % np.uint64(room + 1)
    for number, jump in enumerate(jumps.tolist()):
        start = int(number * part) + jump
        [block] = file.ranges([(start, min(start + block_bytes, size))])
        tried = (_rows(file, block, quoted, header, columns) for quoted in (False, True))
        found = [one for one in tried if one]
        if len(found) != 1:
            raise UncutError(f"{file}: bytes {start} and on cannot be cut into rows")
        yield found[0]


def iter_start(file: DataFile, columns: list[str]) -> Iterator[tuple[pa.Table, float]]:
    """Yields the rows of a CSV file from its start, and the share of the file's bytes read so far.

    Raises:
        ValueError: As `read_csv`.
    """
    size = file.size()
    with file.open() as raw:
        for table in _blocks(file, columns, lambda: text_of(file, raw)):
            yield table, max(raw.tell() / size, 1e-9)


def _rows(
    file: DataFile, block: bytes, quoted: bool, header: Header, columns: list[str]
) -> tuple[pa.Table, int] | None:
    """The rows from the first end of a line to the last one, where the block begins in a quoted
    cell or not; None where it does not.
    """
    bytes_N = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((bytes_N == _QUOTE) | (bytes_N == _NEWLINE))
    is_end = bytes_N[marks] == _NEWLINE
    inside = (np.cumsum(~is_end) + quoted) % 2 == 1
    ends = marks[is_end & ~inside]
    if len(ends) < 2:
        return None
    rows = block[ends[0] + 1 : ends[-1] + 1]
    options = _options(file, header, columns, len(rows) + 1)
    try:
        table = pacsv.read_csv(pa.BufferReader(rows), **options)
    except pa.ArrowException:
        return None
    if len(header.names) > 1:  # blank lines are no rows there
        lengths = np.diff(ends)
        blank = (lengths == 1) | ((lengths == 2) & (bytes_N[ends[1:] - 1] == ord("\r")))
        expected = len(lengths) - int(blank.sum())
    else:
        expected = len(ends) - 1
    return (_trim(table), len(rows)) if table.num_rows == expected else None

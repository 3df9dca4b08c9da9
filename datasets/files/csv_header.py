"""The first line of a CSV file: the columns' names, or a row where the names are given."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.text_files import delimiter_read, one_line, read_start
from mmoe.datasets.rows.locations import delimiter_hint, distinct_names, is_number
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
    """What the first line says.

    Attributes:
        names: Of the columns.
        delimiter: Between cells.
        blank_lines: Above it.
        is_row: It is a row itself: the names were given.
        is_all: The file ends with it, without an end of line; Arrow would refuse that.
        written: The names as the header has them, maybe equal.
    """

    names: list[str]
    delimiter: str
    blank_lines: int
    is_row: bool
    is_all: bool = False
    written: tuple[str, ...] = ()


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

"""Where rows of a CSV file begin, found without parsing its cells: by quotes and ends of lines."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from mmoe.datasets.files.csv_header import MOST_HEADER_BYTES, Header, read_header
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.row_span import Cut, RowSpan, bounds_of
from mmoe.datasets.files.text_files import is_packed

_BLOCK_BYTES = 1 << 20  # as a core's cache holds
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


def cut_csv(file: DataFile, every: int) -> Cut:
    """Cuts a file at each multiple of `every` rows; reads its bytes once, from end to end.

    Rows are those that `iter_csv` reads. A compressed file is not cut: its bytes are found by
    decompressing all before them.

    Raises:
        ValueError: The file has no header, or cannot be read.
    """
    if is_packed(file):
        why = "is not UTF-8, or has a long delimiter" if file.csv.is_rewritten else "is compressed"
        return Cut(file, why_whole=why)
    header = read_header(file)
    with file.open() as stream:
        begin = _first_byte(stream, header)
        stream.seek(begin)
        scan = _Scan(begin, header)
        starts, rows = scan.starts(stream, every)
    bounds = bounds_of(rows, every)
    ends = [*starts[1 : len(bounds)], scan.at]
    spans = [
        RowSpan(*rows, pieces=((start, end),))
        for rows, start, end in zip(bounds, starts, ends, strict=False)
    ]
    return Cut(file, spans)


def _first_byte(stream: Any, header: Header) -> int:
    """Where the header begins, or the first row: behind a byte order mark and blank lines."""
    start = stream.read(MOST_HEADER_BYTES if header.blank_lines else len(_BOM))
    begin = len(_BOM) if start.startswith(_BOM) else 0
    for _ in range(header.blank_lines):
        end = _LINE_END.search(start, begin)
        assert end is not None, "the header is behind it"
        begin = end.end()
    return begin


class _Scan:
    """Goes through a file block by block.

    A quote opens a cell where the cell begins, and nowhere else; within such a cell two of them
    are one that belongs to it. So a run of quotes of even length changes nothing, one of odd length
    at the beginning of a cell changes the side, and any other one leads out of quotes.
    """

    def __init__(self, begin: int, header: Header) -> None:
        self.at = begin  # bytes that have been looked at
        self.line = begin  # first byte of the line that has not ended yet
        self.quoted = False
        self.before = _NEWLINE  # the last byte that has been looked at
        self.delimiter = ord(header.delimiter)
        # Of one column it is a row whose cell is empty
        self.ignores_blank = len(header.names) > 1
        self.names = 0 if header.is_row else 1  # lines to come that are no rows

    def starts(self, stream: Any, every: int) -> tuple[list[int], int]:
        """First bytes of each `every`-th row, and how many rows there are."""
        starts, rows = [self.at], 0
        for block in _blocks(stream):
            ends_R = self._row_ends(block)
            if self.names and len(ends_R):
                starts = [int(ends_R[0]) + 1]
                ends_R, self.names = ends_R[1:], 0
            # The end of row n - 1 is where row n begins
            starts += (ends_R[every - 1 - rows % every :: every] + 1).tolist()
            rows += len(ends_R)
        if self.line < self.at and not self.names:  # the last one has no end of line
            rows += 1
        return starts, rows

    def _row_ends(self, block: bytes) -> np.ndarray:
        """Last bytes of the rows that end in a block, counted from the beginning of the file."""
        bytes_N = np.frombuffer(block, np.uint8)
        ends_L = self._outside_quotes(block, bytes_N, _line_ends(block, bytes_N))
        found_L = ends_L + self.at
        begins_L = np.append(self.line, found_L[:-1] + 1)[: len(found_L)]
        if len(found_L):
            self.line = int(found_L[-1]) + 1
        self.at += len(block)
        self.before = block[-1]
        if not self.ignores_blank:
            return found_L
        returns_L = (ends_L > 0) & (bytes_N[ends_L - 1] == _RETURN) & (bytes_N[ends_L] == _NEWLINE)
        return found_L[found_L - begins_L > returns_L]

    def _outside_quotes(self, block: bytes, bytes_N: np.ndarray, ends_L: np.ndarray) -> np.ndarray:
        """Those ends of lines that are not in quotes; which side of them the block leaves off."""
        if b'"' not in block:
            return ends_L[:0] if self.quoted else ends_L
        is_quote_N = bytes_N == _QUOTE
        begins_N = self._begins_behind(bytes_N) | is_quote_N
        begins_N = np.append(self._begins_behind(self.before), begins_N[:-1])
        quoted_N = _by_parity(is_quote_N, begins_N, self.quoted)
        if quoted_N is not None:
            self.quoted = bool(quoted_N[-1])
            return ends_L[~quoted_N[ends_L]]
        runs_Q = _odd_runs(bytes_N)
        sides = np.append(self.quoted, _sides(begins_N[runs_Q], self.quoted))
        self.quoted = bool(sides[-1])
        return ends_L[~sides[np.searchsorted(runs_Q, ends_L)]]

    def _begins_behind(self, byte: Any) -> Any:
        """Whether a cell begins behind a byte, or each of them."""
        return (byte == self.delimiter) | (byte == _NEWLINE) | (byte == _RETURN)


def _blocks(stream: Any) -> Iterator[bytes]:
    """Blocks of which none but the last one ends within a run of quotes, or before a newline."""
    rest = b""
    while data := stream.read(_BLOCK_BYTES):
        data = rest + data
        block = data.rstrip(b'"\r')
        rest = data[len(block) :]
        if block:
            yield block
    if rest:
        yield rest


def _line_ends(block: bytes, bytes_N: np.ndarray) -> np.ndarray:
    """Last bytes of lines, whether in quotes or not: newlines, and returns without one."""
    ends_L = np.flatnonzero(bytes_N == _NEWLINE)
    if b"\r" not in block:
        return ends_L
    returns_R = np.flatnonzero(bytes_N == _RETURN)
    following_R = bytes_N[np.minimum(returns_R + 1, len(bytes_N) - 1)]
    alone_R = returns_R[following_R != _NEWLINE]
    return np.sort(np.concatenate([ends_L, alone_R])) if len(alone_R) else ends_L


def _by_parity(is_quote_N: np.ndarray, begins_N: np.ndarray, quoted: bool) -> np.ndarray | None:
    """Whether each byte is in quotes if each quote changes sides; None where one does not.

    They do where each one that opens stands where a cell begins, or behind the one that closed:
    then the two are one that belongs to the cell. `begins_N` is true of these places.
    """
    quoted_N = np.bitwise_xor.accumulate(is_quote_N.view(np.uint8)).view(bool)
    if quoted:
        quoted_N = ~quoted_N
    return None if np.any(is_quote_N & quoted_N & ~begins_N) else quoted_N


def _odd_runs(bytes_N: np.ndarray) -> np.ndarray:
    """First quotes of runs of odd length."""
    quotes_Q = np.flatnonzero(bytes_N == _QUOTE)
    firsts_R = np.flatnonzero(np.diff(quotes_Q, prepend=-2) > 1)
    lengths_R = np.diff(firsts_R, append=len(quotes_Q))
    return quotes_Q[firsts_R[lengths_R % 2 == 1]]


def _sides(opens_Q: np.ndarray, quoted: bool) -> np.ndarray:
    """Whether what follows each odd run of quotes is in quotes, if what comes before all is."""
    changes_Q = np.cumsum(opens_Q) + quoted
    at_last_out_Q = np.maximum.accumulate(np.where(opens_Q, 0, changes_Q))
    return (changes_Q - at_last_out_Q) % 2 == 1

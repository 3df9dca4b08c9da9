"""`RowSpan`: some rows of one file, and where they lie in it, so that others need not be parsed."""

import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from mmoe.datasets.files.data_file import DataFile


@dataclass(frozen=True)
class RowSpan:
    """Rows [first, stop) of one file; of requests, where rows are their candidates.

    Attributes:
        first: Number of the first one, from 0.
        stop: Number of the one behind the last.
        pieces: Bytes [start, end) of the file that hold them, in order: of CSV and JSON lines
            these rows alone, of an Arrow stream also its schema and its dictionaries.
        line: Number, from 1, of the line that the bytes begin with; JSON lines alone.
        batches: Record batches [first, stop) of an Arrow file that hold them.
        skipped: Rows of the first record batch that belong to the span before.

    Example:
        >>> RowSpan(0, 4096).bounds
        (0, 4096)
    """

    first: int
    stop: int
    pieces: tuple[tuple[int, int], ...] = ()
    line: int = 1
    batches: tuple[int, int] | None = None
    skipped: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """Numbers of the first row, and of the one behind the last."""
        return self.first, self.stop

    @property
    def rows(self) -> int:
        """How many rows they are."""
        return self.stop - self.first


class Cut(NamedTuple):
    """How a file is cut.

    Attributes:
        file: The file, which knows what was found of it.
        spans: Of all of its rows, in order; none where it is not cut.
        why_whole: Why it cannot be; empty where it can.
    """

    file: DataFile
    spans: Sequence[RowSpan] = ()
    why_whole: str = ""


def bounds_of(rows: int, every: int) -> list[tuple[int, int]]:
    """Returns the first row of each span, and the one behind its last.

    Example:
        >>> bounds_of(10, 4)
        [(0, 4), (4, 8), (8, 10)]
    """
    return [(first, min(first + every, rows)) for first in range(0, rows, every)]


def was_changed(file: DataFile) -> ValueError:
    """Returns the refusal of a file that is not what it was when it was cut."""
    return ValueError(
        f"{file}: was written to while it was read; read it again when it is complete"
    )


def open_pieces(file: DataFile, pieces: Sequence[tuple[int, int]], head: bytes = b"") -> Any:
    """Opens some pieces of a file, one behind another, as one file of bytes.

    Args:
        file: Not compressed.
        pieces: Bytes [start, end) of it, in order.
        head: Comes before them.
    """
    return io.BufferedReader(_Pieces(file.open(), pieces, head), 1 << 20)


class _Pieces(io.RawIOBase):
    def __init__(self, stream: Any, pieces: Sequence[tuple[int, int]], head: bytes) -> None:
        self._stream, self._pieces, self._head = stream, pieces, head
        sizes = (end - start for start, end in pieces)
        self._bounds = list(accumulate(sizes, initial=len(head)))  # where each one begins
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._bounds[-1]}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)
        data = self._next(len(room))
        room[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _next(self, most: int) -> bytes:
        """Some bytes, of one piece; none at the end."""
        if self._at < len(self._head):
            return self._head[self._at : self._at + most]
        if self._at >= self._bounds[-1]:
            return b""
        place = bisect_right(self._bounds, self._at) - 1
        inside = self._at - self._bounds[place]
        start, end = self._pieces[place]
        self._stream.seek(start + inside)
        return self._stream.read(min(most, end - start - inside))

    def close(self) -> None:
        self._stream.close()
        super().close()

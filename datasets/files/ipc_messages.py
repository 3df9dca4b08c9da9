"""Where record batches of an Arrow file or stream lie, and how many rows each has.

Arrow itself says so only of batches that it has read. Their messages say it in some bytes before
what the columns hold; these are tables of FlatBuffers, of which three numbers are looked up here.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

from mmoe.datasets.files.data_file import DataFile, is_address
from mmoe.datasets.files.row_span import Cut, RowSpan, bounds_of

_MAGIC = b"ARROW1"
_GOES_ON = 0xFFFFFFFF  # before the size of a message, but for versions before 0.15
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_AT_ONCE = 16  # requests to a store
_START = 4096  # bytes of a message that are read at first
_LONGEST = 1 << 28  # of what comes before the columns

Read = Callable[[int, int], bytes]


class Message(NamedTuple):
    """What an encapsulated message says.

    Attributes:
        kind: Schema, dictionary or batch.
        start: Its first byte.
        end: Where the next one begins.
        rows: Of a batch.
        of: Of a dictionary, its number.
        adds: Whether a dictionary adds to the one of its number, or takes its place.
    """

    kind: int
    start: int
    end: int
    rows: int
    of: int = 0
    adds: bool = False


def cut_ipc(file: DataFile, every: int) -> Cut:
    """Cuts a file or a stream at each multiple of `every` rows.

    Of a file the footer says where its record batches are; of a stream the messages are followed
    from one to the next. What the columns hold is not read. Two spans may share a record batch.
    """
    try:
        with _reader(file) as read:
            if read(0, len(_MAGIC)) == _MAGIC:
                spans = _of_file(file, read, every)
            else:
                spans = _of_stream(list(_messages(read)), every)
    except (struct.error, OSError, ValueError, OverflowError):
        # Numbers that lead anywhere; whoever reads it says what is wrong
        return Cut(file, why_whole="has messages that cannot be followed")
    return Cut(file, spans)


class _Strange(ValueError):
    """What is there is no message."""


def _of_file(file: DataFile, read: Read, every: int) -> list[RowSpan]:
    blocks = _footer_blocks(read, file.size())
    # A local file is one stream, and answers at once
    with ThreadPoolExecutor(_AT_ONCE if is_address(str(file)) else 1) as pool:
        messages = list(pool.map(lambda block: _message(read, *block), blocks))
    if any(message is None or message.kind != _BATCH for message in messages):
        raise _Strange
    firsts = list(accumulate((m.rows for m in messages if m is not None), initial=0))
    _refuse_more_than_bytes(firsts[-1] // every, file.size())
    return [
        RowSpan(*rows, batches=(begin, stop), skipped=rows[0] - firsts[begin])
        for rows in bounds_of(firsts[-1], every)
        for begin, stop in [_covering(firsts, *rows)]
    ]


def _of_stream(messages: Sequence[Message], every: int) -> list[RowSpan]:
    if not messages or messages[0].kind != _SCHEMA:
        raise _Strange
    batches = [message for message in messages if message.kind == _BATCH]
    firsts = list(accumulate((batch.rows for batch in batches), initial=0))
    _refuse_more_than_bytes(firsts[-1] // every, messages[-1].end)
    dictionaries = [message for message in messages if message.kind == _DICTIONARY]
    known: dict[int, list[Message]] = {}  # that are in use, by their numbers
    spans, told = [], 0
    for rows in bounds_of(firsts[-1], every):
        begin, stop = _covering(firsts, *rows)
        start, end = batches[begin].start, batches[stop - 1].end
        while told < len(dictionaries) and dictionaries[told].start < start:
            found = dictionaries[told]
            known[found.of] = [*(known.get(found.of, ()) if found.adds else ()), found]
            told += 1
        before = sorted(m for some in known.values() for m in some)
        pieces = ((m.start, m.end) for m in (messages[0], *before))
        skipped = rows[0] - firsts[begin]
        spans.append(RowSpan(*rows, pieces=(*pieces, (start, end)), skipped=skipped))
    return spans


def _refuse_more_than_bytes(spans: int, size: int) -> None:
    """A damaged number of rows would make spans until memory ends."""
    if spans > size:
        raise _Strange


def _covering(firsts: Sequence[int], first: int, stop: int) -> tuple[int, int]:
    """Numbers of the record batches that hold some rows: the first, and the one behind the last."""
    return bisect_right(firsts, first) - 1, bisect_left(firsts, stop)


def _messages(read: Read) -> Iterator[Message]:
    """All of a stream, one after another."""
    at = 0
    while (message := _message(read, at)) is not None:
        yield message
        at = message.end


def _message(read: Read, at: int, size: int = _START) -> Message | None:
    """The message that begins at a byte; None behind the last one."""
    start = read(at, at + max(size, 8))
    if not start:
        return None
    (size,) = struct.unpack_from("<I", start)
    prefix = 4
    if size == _GOES_ON:
        (size,) = struct.unpack_from("<I", start, 4)
        prefix = 8
    if not size:
        return None
    if size > _LONGEST:
        raise _Strange
    if len(start) < prefix + size:
        start = read(at, at + prefix + size)
    root = _Table.root(start[prefix : prefix + size])
    kind, body = root.number(1, "<B"), root.number(3, "<q")
    header = root.table(2)
    rows = header.number(0, "<q") if kind == _BATCH else 0
    of, adds = (header.number(0, "<q"), header.number(2, "<b")) if kind == _DICTIONARY else (0, 0)
    if kind not in (_SCHEMA, _DICTIONARY, _BATCH) or body < 0 or rows < 0:
        raise _Strange
    return Message(kind, at, at + prefix + size + body, rows, of, bool(adds))


def _footer_blocks(read: Read, size: int) -> list[tuple[int, int]]:
    """First bytes of the record batches of a file, and how many bytes say what they are."""
    end = read(size - 10, size)
    (length,) = struct.unpack_from("<i", end)
    if end[4:] != _MAGIC or not 0 < length < size:
        raise _Strange
    footer = _Table.root(read(size - 10 - length, size - 10))
    at = footer.place(3)
    if at is None:
        return []
    at += struct.unpack_from("<I", footer.content, at)[0]
    (count,) = struct.unpack_from("<I", footer.content, at)
    blocks = (struct.unpack_from("<qi", footer.content, at + 4 + 24 * n) for n in range(count))
    return [(start, length) for start, length in blocks]


class _Table(NamedTuple):
    """A table of FlatBuffers: where it lies among bytes."""

    content: bytes
    at: int

    @classmethod
    def root(cls, content: bytes) -> "_Table":
        return cls(content, struct.unpack_from("<I", content)[0])

    def place(self, field: int) -> int | None:
        """Where a field lies; None where it has its default."""
        fields = self.at - struct.unpack_from("<i", self.content, self.at)[0]
        if 4 + 2 * field >= struct.unpack_from("<H", self.content, fields)[0]:
            return None
        offset = struct.unpack_from("<H", self.content, fields + 4 + 2 * field)[0]
        return self.at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        """A whole number; by default 0."""
        at = self.place(field)
        return 0 if at is None else struct.unpack_from(kind, self.content, at)[0]

    def table(self, field: int) -> "_Table":
        """A table inside."""
        at = self.place(field)
        if at is None:
            raise _Strange
        return _Table(self.content, at + struct.unpack_from("<I", self.content, at)[0])


@contextmanager
def _reader(file: DataFile) -> Generator[Read]:
    """Reads bytes [start, stop)."""
    if is_address(str(file)):
        size = file.size()

        def fetch(start: int, stop: int) -> bytes:
            return file.ranges([(start, min(stop, size))])[0] if start < size else b""

        yield fetch
        return
    with file.open() as stream:

        def read(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        yield read

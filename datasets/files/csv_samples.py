"""Some rows of a CSV file: whole lines of blocks from all over it, or the start of a packed one."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from mmoe.datasets.files.csv_files import _explain, _options, _trim
from mmoe.datasets.files.csv_header import Header, read_header
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.text_files import text_of
from mmoe.datasets.values.hashing import mix64

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
        found = [one for quoted in (False, True) if (one := _rows(block, quoted, header, columns))]
        if len(found) != 1:
            raise UncutError(f"{file}: bytes {start} and on cannot be cut into rows")
        yield found[0]


def iter_start(file: DataFile, columns: list[str]) -> Iterator[tuple[pa.Table, float]]:
    """Yields the rows of a CSV file from its start, and the share of the file's bytes read so far.

    Raises:
        ValueError: As `read_csv`.
    """
    header, size = read_header(file), file.size()
    options = _options(file, header, columns)
    try:
        with file.open() as raw:
            reader = pacsv.open_csv(text_of(file, raw), **options)
            for batch in reader:
                yield _trim(pa.Table.from_batches([batch])), max(raw.tell() / size, 1e-9)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _explain(file, header, error) from None


def _rows(
    block: bytes, quoted: bool, header: Header, columns: list[str]
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
    try:
        table = pacsv.read_csv(pa.BufferReader(rows), **_block_options(header, len(rows), columns))
    except pa.ArrowException:
        return None
    if len(header.names) > 1:  # blank lines are no rows there
        lengths = np.diff(ends)
        blank = (lengths == 1) | ((lengths == 2) & (bytes_N[ends[1:] - 1] == ord("\r")))
        expected = len(lengths) - int(blank.sum())
    else:
        expected = len(ends) - 1
    return (_trim(table), len(rows)) if table.num_rows == expected else None


def _block_options(header: Header, size: int, columns: list[str]) -> dict:
    return {
        "read_options": pacsv.ReadOptions(
            column_names=header.names, block_size=size + 1, use_threads=False
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=header.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(header.names) > 1,
        ),
        "convert_options": pacsv.ConvertOptions(
            column_types={name: pa.large_string() for name in header.names},
            include_columns=columns,
            null_values=[""],
            strings_can_be_null=True,
        ),
    }

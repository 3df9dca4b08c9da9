"""A sample of data files: all rows of small ones, of large ones some from everywhere."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mmoe.datasets.files.csv_files import UncutError, bytes_per_row, iter_blocks, iter_start
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import _with_folders, folder_columns, iter_file
from mmoe.datasets.files.parquet_files import iter_parquet, parquet_bytes, parquet_layout
from mmoe.datasets.files.readers import Paths, column_names, join_tables, plain_columns, read_table
from mmoe.datasets.files.resolve import kind_of, resolve_files
from mmoe.datasets.files.text_files import is_packed
from mmoe.datasets.rows.locations import HIDDEN, MissingColumnError

ROWS = 500_000  # read at most, about
BYTES = 128 << 20  # of text, or of decompressed Parquet
START = 256 << 20  # of a file that is read from its start, decompressed
_FILES = 64  # of many
_BLOCKS, _LEAST_BLOCK = 64, 1 << 18
_RUNS = 32  # of rows of one row group, where it is the only one
_ROWS_PASSED = 2_000_000  # of Parquet, decoded to take some of them


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of data files."""

    # In the order of the files; numbered (see `read_table`) where these are all rows
    table: pa.Table
    rows: int  # how many the files hold; estimated where `note` says that these are some
    note: str = ""  # which rows were read, for people; "" for all


@dataclass
class _Part:
    """Rows read of one file."""

    file: DataFile
    tables: list[pa.Table]
    rows: float  # of the whole file, estimated
    from_start: int = 0  # bytes, where no more than the start was read


def sample_table(
    paths: Paths, rows: int = ROWS, most_bytes: int = BYTES, *, without: Collection[str] = ()
) -> Sample:
    """Reads all rows of small files, and about `rows` of large ones, the same ones every time.

    Of Parquet some of each row group, or of some row groups; of plain CSV whole lines of blocks all
    over the file; of what can be read from its start alone the first 256 MB; of many files some.

    Args:
        paths: As for `read_table`.
        rows: Most rows, about.
        most_bytes: Of all of them as text; memory takes a few times as many.
        without: Columns that are not read, whatever they hold: they come as nulls.

    Raises:
        ValueError: As `read_table`.
    """
    files = resolve_files(paths)
    there = column_names(files)
    if taken := set(HIDDEN) & set(there):
        raise ValueError(
            f"{files[0]}: column {min(taken)!r} has a name that rows are numbered by; rename it"
        )
    try:
        return _sampled(files, there, rows, most_bytes, without)
    except MissingColumnError as error:  # which of the files is the odd one, who knows
        raise ValueError(f"{error}; the first file, {files[0]}, has it") from None


def _sampled(
    files: list[DataFile], there: list[str], rows: int, most_bytes: int, without: Collection[str]
) -> Sample:
    names = [name for name in there if name not in without]
    asked = names if without else None
    chosen = [] if _is_small(files, rows, most_bytes) else _spread(files, _FILES)
    sizes = [file.size() for file in chosen]
    parts = []
    for file, size in zip(chosen, sizes, strict=True):
        share = size / max(sum(sizes), 1)
        parts.append(_read_part(file, names, int(rows * share) + 1, int(most_bytes * share) + 1))
    tables = [table for part in parts for table in part.tables]
    owners = [part.file for part in parts for _ in part.tables]
    if not tables:  # of large files not one whole row: reading all then says what is wrong
        table = read_table(files, asked, numbered=True)
        return Sample(table=_with_nulls(table, there), rows=table.num_rows)
    table = join_tables(owners, [plain_columns(table) for table in tables])
    estimate = max(sum(part.rows for part in parts) * len(files) / len(chosen), table.num_rows)
    all_rows = table.num_rows if estimate < table.num_rows + 1 else int(estimate)
    note = _note(table.num_rows, all_rows, files, parts)
    return Sample(table=_with_nulls(table, there), rows=all_rows, note=note)


def _with_nulls(table: pa.Table, there: list[str]) -> pa.Table:
    """The table with a column of nulls in the place of each that was not read."""
    held = dict(zip(table.column_names, table.columns, strict=True))
    if held.keys() >= set(there):
        return table
    nulls = pa.nulls(table.num_rows)
    columns = {name: held.pop(name, nulls) for name in there}
    return pa.table(columns | held, metadata=table.schema.metadata)


def _is_small(files: list[DataFile], rows: int, most_bytes: int) -> bool:
    """Whether all rows may be read: a look at footers and sizes."""
    for file in files:
        file = replace(file, lake=None)  # one of a lake table is stored as Parquet
        kind, size = kind_of(file), file.size()
        if kind == "parquet":
            schema, groups = parquet_layout(file)
            rows -= sum(groups)
            most_bytes -= parquet_bytes(file, schema.names) if rows >= 0 else 0
        elif is_packed(file):
            most_bytes -= 20 * size  # packed text is rarely smaller
        else:
            most_bytes -= size
            if kind == "csv" and most_bytes >= 0 and size:
                rows -= int(size / bytes_per_row(file))
        if rows < 0 or most_bytes < 0:
            return False
    return True


def _read_part(file: DataFile, names: list[str], rows: int, most_bytes: int) -> _Part:
    folders = folder_columns(file)
    own = [name for name in names if name not in folders]
    kind = kind_of(file)
    if kind == "parquet":
        part = _of_parquet(file, own, rows, most_bytes)
    elif kind == "csv" and not is_packed(file):
        part = _of_csv(file, own, rows, most_bytes)
    else:
        part = _from_start(file, own, rows, most_bytes)
    part.tables = [_with_folders(table, names, folders) for table in part.tables]
    return part


def _of_parquet(file: DataFile, names: list[str], rows: int, most_bytes: int) -> _Part:
    groups = parquet_layout(file)[1]
    total = sum(groups)
    per_row = max(parquet_bytes(file, names) / max(total, 1), 1)
    rows = max(1, min(rows, int(most_bytes / per_row)))
    chosen = _spread([g for g, held in enumerate(groups) if held], _BLOCKS)
    tables, wanted, most = [], -(-rows // len(chosen)), _ROWS_PASSED // len(chosen)
    for group in chosen:
        passed = min(groups[group], max(wanted, most))
        tables += _of_group(file, names, group, passed, wanted)
    return _Part(file, tables, total)


def _of_group(
    file: DataFile, names: list[str], group: int, passed: int, wanted: int
) -> Iterator[pa.Table]:
    """Runs of rows, spread over the first `passed` ones of a row group."""
    step, run = -(-passed // wanted), max(1, min(wanted, 8192, passed // _RUNS))
    for number, table in enumerate(iter_parquet(file, names, run, group)):
        if number * run >= passed:
            break
        if number % step == 0:
            yield table


def _of_csv(file: DataFile, names: list[str], rows: int, most_bytes: int) -> _Part:
    size, per_row = file.size(), bytes_per_row(file)
    wanted = int(min(most_bytes, rows * per_row, size))
    blocks = int(np.clip(wanted // max(_LEAST_BLOCK, int(64 * per_row)), 1, _BLOCKS))
    tables, held, used = [], 0, 0
    try:
        for table, taken in iter_blocks(file, names, max(wanted // blocks, _LEAST_BLOCK), blocks):
            tables.append(table)
            held, used = held + table.num_rows, used + taken
    except UncutError:
        return _from_start(file, names, rows, most_bytes)
    return _Part(file, tables, size * held / max(used, 1))


def _from_start(file: DataFile, names: list[str], rows: int, most_bytes: int) -> _Part:
    """Tables of the first 256 MB; where they are too many every second, every fourth, ... stays."""
    kept: list[pa.Table] = []
    step, seen, seen_bytes = 1, 0, 0
    for number, (table, share) in enumerate(_tables(file, names)):
        seen, seen_bytes = seen + table.num_rows, seen_bytes + _text_bytes(table)
        if number % step == 0:
            kept.append(table)
        over = sum(one.num_rows for one in kept) > rows
        over |= sum(_text_bytes(one) for one in kept) > most_bytes
        if over and len(kept) > 1:
            kept, step = kept[::2], step * 2
        if seen_bytes >= START:
            return _Part(file, kept, seen / share, from_start=seen_bytes)
    return _Part(file, kept, seen)


def _tables(file: DataFile, names: list[str]) -> Iterator[tuple[pa.Table, float]]:
    if kind_of(file) == "csv":
        yield from iter_start(file, names)
        return
    size, read = max(file.size(), 1), 0
    for table in iter_file(file, names, 1 << 16, folders={}):
        read += table.nbytes
        yield table, min(read / size, 1.0)


def _text_bytes(table: pa.Table) -> int:
    """About as many as its rows have in a file of text: Arrow's offsets are no text."""
    offsets = sum(7 * table.num_rows for one in table.schema if pa.types.is_large_string(one.type))
    return max(table.nbytes - offsets, 1)


def _spread(items: Iterable, most: int) -> list:
    """Up to `most` of them, evenly."""
    items = list(items)
    if len(items) <= most:
        return items
    return [items[int((n + 0.5) * len(items) / most)] for n in range(most)]


def _note(read: int, rows: int, files: list[DataFile], parts: list[_Part]) -> str:
    if read == rows and len(parts) == len(files):
        return ""
    of_files = f" of {len(parts)} of {len(files)} files" if len(parts) < len(files) else ""
    started = [part for part in parts if part.from_start]
    where = "from everywhere"
    if started:
        megabytes = max(part.from_start for part in started) >> 20
        named = str(started[0].file) if len(started) == 1 else f"{len(started)} files"
        where = f"of {named} the first {megabytes} MB alone"
    return f"looked at {read:,} of about {rows:,} rows{of_files}, {where}"

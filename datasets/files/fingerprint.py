"""Fingerprints of a run's rows, taken cheaply, and how they differ from those that it began with.

Files by size and content, tables by rows. Nothing is read in whole that is large: of a file its
ends and some blocks between, of Parquet the footer too, which holds sizes and value ranges of every
column. Times of files say nothing: copies and checkouts change them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import RunConfig
from mmoe.config.kinds import Strict
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.readers import Paths
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.rows.sources import source_paths
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.values.hashing import mix64

_WHOLE = 1 << 22  # bytes; smaller files are read in whole, which takes less than decoding them
_BLOCK, _BLOCKS = 1 << 16, 16
_LONGEST_FOOTER = 1 << 26
_ROWS = 512  # of a table
_AT_ONCE = 8  # files; each is a few waits for a disk or an object store


class RowsPrint(Strict):
    """Fingerprint of one file or table.

    Attributes:
        name: As seen from the folder that all files share; of a table the split.
        size: Bytes; of a table its rows.
        digest: Of the content, and of what folders such as `day=2024-01-31` say about its rows.
    """

    name: str
    size: int = Field(ge=0)
    digest: str


class DataPrint(Strict):
    """Fingerprint of all that a run's rows came from, in the order that numbers them.

    Attributes:
        kind: Files, or tables that were in memory or generated.
        folder: That the names are seen from; another one means the same data elsewhere.
        parts: `all`, or by split.
        versions: At which lake tables were read, by their paths.
    """

    kind: Literal["files", "tables"]
    folder: str = ""
    parts: dict[str, list[RowsPrint]]
    versions: dict[str, int] = Field(default_factory=dict)

    @property
    def rows(self) -> list[RowsPrint]:
        """Fingerprints of all splits."""
        return [one for prints in self.parts.values() for one in prints]

    def address(self, one: RowsPrint) -> str:
        """Returns the address of one of its files."""
        return f"{self.folder}/{one.name}"

    def among(self, other: "DataPrint") -> "DataPrint":
        """Keeps files that `other` has too, in its own order, under the names there."""
        names = {other.address(one): one.name for one in other.rows}
        splits = {
            split: [
                one.model_copy(update={"name": names[self.address(one)]})
                for one in rows
                if self.address(one) in names
            ]
            for split, rows in self.parts.items()
        }
        return self.model_copy(update={"folder": other.folder, "parts": splits})

    def digest(self) -> str:
        """Returns a digest of everything but the folder."""
        versions = list(self.versions.values())
        of_tables = (versions,) if versions else ()
        return sha256(repr((self.kind, self.parts, *of_tables)).encode()).hexdigest()[:16]


def print_data(
    config: RunConfig, splits: Splits | None = None, data: str | Path | None = None
) -> DataPrint:
    """Takes the fingerprint of a run's tables, or else of its files.

    Args:
        config: Of the run.
        splits: Tables in memory.
        data: Instead of data.path, as for `load_splits`.

    Raises:
        ValueError: A file is missing or cannot be read.
    """
    if splits is None:
        return print_files(source_paths(config, data))
    return print_tables(splits)


def print_files(
    splits: Mapping[str, Paths], looked_at: dict[DataFile, tuple[int, str]] | None = None
) -> DataPrint:
    """Takes the fingerprint of the files of each split, by a few blocks of every one.

    Args:
        splits: Paths by split.
        looked_at: Sizes and digests of files that need not be looked at again; gets the others.
    """
    files = {split: resolve_files(paths) for split, paths in splits.items()}
    every = list(dict.fromkeys(file for found in files.values() for file in found))
    looked_at = {} if looked_at is None else looked_at
    new = [file for file in every if file not in looked_at]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        looked_at.update(zip(new, pool.map(_look_at, new), strict=True))
    folder = _shared_folder(every)
    prints = {
        split: [
            RowsPrint(name=file.absolute[len(folder) :].lstrip("/"), size=size, digest=digest)
            for file, (size, digest) in ((file, looked_at[file]) for file in found)
        ]
        for split, found in files.items()
    }
    versions = {file.lake.table: file.lake.version for file in every if file.lake is not None}
    return DataPrint(kind="files", folder=folder, parts=prints, versions=versions)


def print_tables(splits: Splits) -> DataPrint:
    """Takes the fingerprint of each table, by some of its rows."""
    return print_splits({name: getattr(splits, name) for name in ("train", "validation", "test")})


def print_splits(tables: Mapping[str, pa.Table]) -> DataPrint:
    """Takes the fingerprint of tables by split, by some of their rows."""
    return DataPrint(
        kind="tables",
        parts={
            name: [RowsPrint(name=name, size=table.num_rows, digest=_digest_of_table(table))]
            for name, table in tables.items()
        },
    )


def _look_at(file: DataFile) -> tuple[int, str]:
    """Its size and digest."""
    try:
        size, content = file.size(), file.checksum()
        if content is None:
            content = b"".join(file.ranges(_blocks(file, size)))
    except Exception as error:  # each file system raises its own kind
        if isinstance(error, MemoryError):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{file}: cannot be read ({reason}); check that it is there and may be read"
        ) from None
    folders = repr(sorted(file.partitions.items())) if file.partitions else ""
    folders += "" if file.lake is None else file.lake.digest
    return size, sha256(f"{size} {folders};".encode() + content).hexdigest()[:32]


def _blocks(file: DataFile, size: int) -> list[tuple[int, int]]:
    """Picks the bytes to read: the ends, and one block in each of equal parts between."""
    if size <= _WHOLE:
        return [(0, size)]
    edges = np.linspace(_BLOCK, size - _BLOCK, _BLOCKS - 1)
    room = edges[1:] - edges[:-1] - _BLOCK  # every part is longer than a block, as size > _WHOLE
    luck = (mix64(np.arange(len(room), dtype=np.uint64), size) >> np.uint64(11)) * 2.0**-53
    starts = (edges[:-1] + np.maximum(room, 0) * luck).astype(np.int64).tolist()
    between = [(start, start + _BLOCK) for start in starts]
    return [(0, _BLOCK), *between, (_footer(file, size), size)]


def _footer(file: DataFile, size: int) -> int:
    """Finds where the last block begins: with a Parquet file's footer, if that is longer."""
    [end] = file.ranges([(size - 8, size)])
    length = int.from_bytes(end[:4], "little") + 8
    is_parquet = end[4:] in (b"PAR1", b"PARE") and length < min(size, _LONGEST_FOOTER)
    return size - max(_BLOCK, length if is_parquet else 0)


def _digest_of_table(table: pa.Table) -> str:
    """Hashes the columns' names and types and some rows, the first and the last among them."""
    rows = np.arange(min(table.num_rows, _ROWS), dtype=np.uint64)
    if table.num_rows > _ROWS:
        last = table.num_rows - 1
        rows = np.unique(np.append(mix64(rows) % np.uint64(last), [0, last]).astype(np.uint64))
    digest = sha256(f"{table.num_rows};".encode())
    for name in visible_columns(table):
        for position in table.schema.get_all_field_indices(name):
            column = table.column(position)
            digest.update(f"{name!r} {column.type} {_values(column, rows)!r};".encode())
    return digest.hexdigest()[:32]


def _values(column: pa.ChunkedArray, rows: np.ndarray) -> object:
    """Python values; Arrow's bytes where Python has none, such as for days after 9999."""
    try:
        taken = column.take(pa.array(rows)).combine_chunks()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # types that cannot be taken from
        return [column[int(row)].as_py() for row in rows]
    try:
        return taken.to_pylist()
    except (OverflowError, ValueError):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("", taken.type)])) as stream:
            stream.write_batch(pa.record_batch([taken], names=[""]))
        return sink.getvalue().to_pybytes()


def _shared_folder(files: Iterable[DataFile]) -> str:
    """Finds the folder of all files, above folders that name a column."""
    shared: list[str] = []
    for parts in zip(*(file.absolute.split("/")[:-1] for file in files), strict=False):
        if len(set(parts)) > 1 or DataFile(f"{parts[0]}/x").partitions:
            break
        shared.append(parts[0])
    return "/".join(shared)


_SHOWN = 3


def same_rows(before: DataPrint, now: DataPrint, split: str | None = None) -> bool:
    """Returns whether the same content comes in the same order, whatever its name and folder.

    Args:
        before: What a run began with.
        now: What there is.
        split: Only this one; None: all.
    """
    return before.kind == now.kind and _contents(before, split) == _contents(now, split)


def data_changes(before: DataPrint, now: DataPrint) -> list[str]:
    """Lists what was changed, removed, added, renamed or reordered; the first comes first.

    Where all files lie does not matter, their names below the folder that they share do.

    Example:
        >>> def print_of(**files):
        ...     rows = [RowsPrint(name=f"{n}.csv", size=9, digest=d) for n, d in files.items()]
        ...     return DataPrint(kind="files", parts={"all": rows})
        >>> data_changes(print_of(a="x", b="y"), print_of(b="y", c="z"))
        ['a.csv was removed', 'c.csv was added']
        >>> data_changes(print_of(a="x", b="y"), print_of(a="y", b="x"))
        ['a.csv now holds what b.csv held, so the rows come in another order']
    """
    if before.kind != now.kind:
        words = {"files": "files", "tables": "tables in memory"}
        return [f"the rows came from {words[before.kind]}, and now come from {words[now.kind]}"]
    tables = zip(now.versions.items(), before.versions.values(), strict=False)
    found = [
        f"{table} is at version {version}, and was at {was} (--as-of {was} reads it as it was)"
        for (table, version), was in tables
        if version != was
    ]
    for split in dict.fromkeys([*before.parts, *now.parts]):
        one, two = before.parts.get(split, []), now.parts.get(split, [])
        if now.kind == "files":
            found += _of_files(one, two)
            continue
        found += [
            f"the {a.name} table holds other rows ({a.size:,} then, {b.size:,} now)"
            for a, b in zip(one, two, strict=True)
            if a != b
        ]
    return found


def shown(changes: Sequence[str]) -> str:
    """Joins as many changes as fit into a line."""
    more = f", and {len(changes) - _SHOWN:,} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def _contents(data: DataPrint, split: str | None) -> list[tuple[str, list[tuple[int, str]]]]:
    splits = data.parts if split is None else {split: data.parts.get(split, [])}
    return [(name, [_content(one) for one in rows]) for name, rows in splits.items()]


def _content(one: RowsPrint) -> tuple[int, str]:
    return one.size, one.digest


def _of_files(before: Sequence[RowsPrint], now: Sequence[RowsPrint]) -> list[str]:
    """Compares files in the order of their rows, so that the first found differs first."""
    moved = [
        (one, two) for one, two in zip(before, now, strict=False) if _content(one) != _content(two)
    ]
    if not moved and [one.name for one in before] == [two.name for two in now]:
        return []
    same_files = {one.name for one in before} == {two.name for two in now}
    if moved and same_files and Counter(map(_content, before)) == Counter(map(_content, now)):
        held = {_content(one): one.name for one in before}
        one, two = moved[0]
        change = f"{two.name} now holds what {held[_content(two)]} held"
        if held[_content(two)] == two.name:
            change = f"{two.name} now comes where {one.name} came"
        return [f"{change}, so the rows come in another order"]
    old, renamed = _old_files(before, now)
    new = [
        (place, f"{two.name} was added")
        for place, two in enumerate(now)
        if two.name not in {one.name for one in before} | renamed
    ]
    found = [words for _, words in sorted([*old, *new], key=lambda one: one[0])]
    return found or ["the files come in another order"]


def _old_files(
    before: Sequence[RowsPrint], now: Sequence[RowsPrint]
) -> tuple[list[tuple[int, str]], set[str]]:
    """Describes files that have changed, and the names that they got."""
    here = {two.name: two for two in now}
    names = {one.name for one in before}
    free = {_content(two): two.name for two in now if two.name not in names}
    found, renamed = [], set()
    for place, one in enumerate(before):
        two = here.get(one.name)
        if two is None and _content(one) in free:
            renamed.add(free[_content(one)])
            found.append((place, f"{one.name} was renamed to {free.pop(_content(one))}"))
        elif two is None:
            found.append((place, f"{one.name} was removed"))
        elif one.size != two.size:
            sizes = f"{one.size:,} bytes then, {two.size:,} now"
            found.append((place, f"{one.name} was changed ({sizes})"))
        elif one.digest != two.digest:
            found.append((place, f"{one.name} was changed (as many bytes, but others)"))
    return found, renamed

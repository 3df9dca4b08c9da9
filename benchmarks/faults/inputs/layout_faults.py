"""Faults of where files lie and what they are called."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.inputs.draft import (
    Draft,
    Expect,
    either,
    error,
    right,
    write_table,
)


def nothing_there(draft: Draft) -> Expect:
    """The path names nothing."""
    draft.data = draft.draw.choice([draft.data + "x", f"{draft.folder}/no/such.csv",
                                    f"{draft.folder}/*.nothing"])  # fmt: skip
    return error(draft.data)


def empty_folder(draft: Draft) -> Expect:
    """A folder without data files."""
    empty = draft.folder / "empty"
    empty.mkdir()
    if draft.draw.random() < 0.5:
        (empty / "_SUCCESS").write_bytes(b"")
        (empty / ".part-0.parquet.crc").write_bytes(b"crc")
    draft.data = str(empty)
    return error(draft.data)


def mixed_kinds(draft: Draft) -> Expect:
    """CSV and Parquet in one folder."""
    folder = _folder(draft)
    write_table(draft.tables[0], folder / ("odd.csv" if not draft.is_csv else "odd.parquet"))
    return error(draft.data)


def deep_types(draft: Draft) -> Expect:
    """A column that nobody reads, nested deeper than data is."""
    path = draft.folder / draft.draw.choice(["deep.parquet", "deep.arrow", "deep.jsonl"])
    depth = draft.draw.choice([40, 45]) if path.suffix == ".parquet" else 90
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    table = draft.tables[0].select(["click"])
    if path.suffix == ".jsonl":
        line = f'{{"click": 1, "deep": {"[" * depth}{"]" * depth}}}'
        path.write_text(f"{line}\n" * 5, encoding="utf-8")
    elif path.suffix == ".arrow":
        pa.ipc.new_file(str(path), table.schema.append(pa.field("deep", kind))).close()
    else:
        pq.write_table(table.append_column("deep", pa.nulls(len(table), kind)), path)
    draft.data = str(path)
    return error(draft.data, "nested more than 64 levels")


def hidden_files(draft: Draft) -> Expect:
    """What other programs leave beside the data is passed over."""
    folder = _folder(draft)
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "._part-0.parquet").write_bytes(b"\0\0")
    (folder / "notes.txt").write_text("not data", encoding="utf-8")
    return right("clean")


def globbed(draft: Draft) -> Expect:
    """A pattern instead of a folder."""
    draft.data = f"{_folder(draft)}/*.{draft.kind}"
    return right("clean")


def shouting_names(draft: Draft) -> Expect:
    """Names in capitals."""
    folder = _folder(draft)
    for path in draft.files:
        path.rename(folder / path.name.upper())
    draft.files = [folder / path.name.upper() for path in draft.files]
    return either(reference="clean") if draft.kind == "csv.gz" else right("clean")


def no_suffix(draft: Draft) -> Expect:
    """A single file without a suffix: its bytes say what it is."""
    path = draft.files[0]
    bare = path.with_name("bare")
    path.rename(bare)
    draft.files, draft.data, draft.tables = [bare], str(bare), draft.tables[:1]
    return error("bare") if draft.kind == "csv.gz" else right()


def folder_called_like_a_file(draft: Draft) -> Expect:
    """A folder whose name ends in .parquet, as Spark writes them."""
    folder = _folder(draft)
    named = folder.with_name("log.all.parquet")
    folder.rename(named)
    draft.data = str(named)
    draft.files = [named / path.name for path in draft.files]
    return right("clean")


def dangling_link(draft: Draft) -> Expect:
    """A link to a file that is gone."""
    folder = _folder(draft)
    (folder / f"part-9.{draft.kind}").symlink_to(draft.folder / "gone")
    return either("part-9", reference="clean")


def one_file_under_two_names(draft: Draft) -> Expect:
    """A link beside the file that it is a link to: its rows count once."""
    folder = _folder(draft)
    first, again = draft.files[0], folder / f"part-9.{draft.kind}"
    if draft.draw.random() < 0.5:
        again.symlink_to(first)
    else:
        again.hardlink_to(first)
    return right("clean")


def partitions(draft: Draft) -> Expect:
    """Folders name a column; one of them holds no file."""
    folder = draft.folder / "hive"
    for n, path in enumerate(draft.files):
        below = folder / f"day=2024-01-0{n + 1}"
        below.mkdir(parents=True)
        shutil.move(path, below / path.name)
    (folder / "day=2024-01-09").mkdir()
    draft.files = sorted(folder.rglob("part-*")) or sorted(folder.rglob("log*"))
    draft.data = str(folder)
    return either() if draft.command == "init" else right("clean")


def partition_without_rows(draft: Draft) -> Expect:
    """A partition whose one file has columns, but no rows."""
    expect = partitions(draft)
    below = Path(draft.data) / "day=2024-01-09"
    write_table(draft.tables[0].slice(0, 0), below / f"part-9.{draft.kind}")
    draft.files.append(below / f"part-9.{draft.kind}")
    if draft.is_csv:  # a header alone
        return either(reference="clean") if draft.command == "init" else right("clean")
    return expect


def _folder(draft: Draft) -> Path:
    """The folder of the files; a single file moves into one."""
    if len(draft.files) > 1:
        return Path(draft.data)
    folder = draft.folder / "log"
    folder.mkdir()
    moved = folder / draft.files[0].name
    draft.files[0].rename(moved)
    draft.files, draft.data = [moved], str(folder)
    return folder


LAYOUT_FAULTS = (
    nothing_there, empty_folder, mixed_kinds, hidden_files, globbed, shouting_names, no_suffix,
    folder_called_like_a_file, dangling_link, one_file_under_two_names, partitions,
    partition_without_rows, deep_types,
)  # fmt: skip

"""Paths, folders, globs and addresses to a list of data files, in natural order."""

import difflib
import glob
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmoe.datasets.files.data_file import (
    CsvForm,
    DataFile,
    is_address,
    is_glob,
    is_hidden,
    is_hidden_match,
    natural_key,
)
from mmoe.datasets.files.lake import (
    kind_of_table,
    refuse_inside,
    refuse_tables_below,
    split_version,
    table_files,
)
from mmoe.datasets.files.remote import resolve_address
from mmoe.datasets.files.text_files import first_bytes, is_packed

_PARQUET_SUFFIXES = (".parquet", ".pq")
_CSV_SUFFIXES = (".csv", ".tsv")
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_IPC_SUFFIXES = (".arrow", ".ipc", ".feather", ".arrows")
_COMPRESSED = (".gz", ".bz2", ".zst", ".zip")
_MAGIC = {b"PAR1": "parquet", b"ARRO": "ipc"}  # first bytes

_WORDS = {"csv": "CSV", "parquet": "Parquet", "ipc": "Arrow", "json": "JSON lines"}


@dataclass(frozen=True)
class AsRead:
    """Paths of files, and how they are read."""

    paths: "Source | list[str]"  # as for `resolve_files`
    form: CsvForm | None = None  # how those among them that are CSV are written
    # Column of lists whose items are the rows; None: rows are those of the files
    candidates: str | None = None
    # Columns that such rows are known to have, whatever a file of empty lists says of them
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        return describe(self.paths)


Source = str | Path | DataFile | AsRead


def resolve_files(paths: Source | Iterable[Source]) -> list[DataFile]:
    """Lists the data files that `paths` means, in natural order.

    A folder means every data file below it, in natural order (part-2 before part-10), without names
    that start with a dot or an underscore; so does a glob such as `logs/2024-*`. A file that is
    named twice (in a list, by overlapping folders and globs, by links to it) comes once, where it
    comes first.

    Args:
        paths: A file, a folder, a glob, an fsspec address of one of these (`s3://logs/day=*`), or a
            list of them (kept in the list's order). The folder of a Delta or Iceberg table means
            its live files, `FOLDER@12` those at version 12.

    Raises:
        ValueError: Nothing is there, a folder mixes kinds of file, or folders say different things
            about the rows of one file; or it is a lake table that cannot be read as one, or inside
            one.
    """
    if isinstance(paths, Source):
        return _once(_resolve_one(paths))
    files = [file for path in paths for file in _resolve_one(path)]
    if not files:
        raise ValueError("data.path: expected at least one file, got an empty list")
    return _once(files)


def _once(files: list[DataFile]) -> list[DataFile]:
    """The files without those that are the same as one before, whatever they are called."""
    if len(files) < 2:
        return files
    first: dict[object, DataFile] = {}
    for file in files:
        known = first.setdefault(file.identity(), file)
        if file.lake is not None and known.lake is not None and file.lake != known.lake:
            raise ValueError(
                f"{file.lake.table}: is named at versions {known.lake.version} and "
                f"{file.lake.version}, which share files; name one version"
            )
        here, there = file.partitions, known.partitions
        differing = [name for name in here if here[name] != there.get(name, here[name])]
        if differing:
            name = differing[0]
            raise ValueError(
                f"{file}: is the same file as {known}, but its folders say {name}={here[name]} "
                f"instead of {name}={there[name]}; name one of them, or write the rows of both"
            )
    return list(first.values())


def kind_of(file: DataFile) -> str:
    """Returns `parquet`, `ipc`, `json` or `csv`: by its name, else by its first bytes.

    A live file of a lake table is `lake`.
    """
    if file.lake is not None:
        return "lake"
    kind = _kind_of_name(file.name)
    if kind is None:
        start = first_bytes(file, 4)
        is_json = start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
        kind = _MAGIC.get(start, "json" if is_json else "csv")
        if kind in _MAGIC.values() and is_packed(file):
            raise ValueError(f"{file}: holds {_WORDS[kind]} data, compressed once more; unpack it")
    return kind


def describe(paths: Source | Iterable[Source]) -> str:
    """Returns what the user wrote, for error messages."""
    if isinstance(paths, Source):
        return str(paths)
    names = [str(path) for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _resolve_one(source: Source) -> list[DataFile]:
    if isinstance(source, DataFile):
        return [source]
    if isinstance(source, AsRead):
        more: dict[str, Any] = {"candidates": source.candidates, "known": source.known}
        more = {} if source.candidates is None else more
        of_csv = {} if source.form is None else {"csv": source.form}
        return [
            replace(file, **more, **(of_csv if of_csv and kind_of(file) == "csv" else {}))
            for file in resolve_files(source.paths)
        ]
    path = str(source)
    table, version = split_version(path)
    if version is not None and (is_address(path) or not Path(path).exists()):
        return _at_version(table, version)
    if not is_glob(path) and (kind := kind_of_table(path)):
        return table_files(path, kind)
    if is_address(path):
        files = _checked(resolve_address(path, _choose_below), path)
        _refuse_inside_tables(files)
        return files
    found = Path(path)
    if found.is_dir():
        refuse_inside(path)
        return _in_folder(found)
    if found.is_file():
        refuse_inside(path)
        return [DataFile(path)]
    if is_glob(path):
        # Path.glob takes no absolute pattern.
        matches = sorted(glob.glob(path, recursive=True), key=natural_key)  # noqa: PTH207
        files = [
            file
            for match in map(Path, matches)
            if not is_hidden_match(str(match), path)
            for file in ([DataFile(str(match))] if match.is_file() else _in_folder(match))
        ]
        if not files:
            raise ValueError(f"{path}: no file matches; check the pattern")
        _refuse_inside_tables(files)
        return list(dict.fromkeys(files))
    raise ValueError(f"{path}: no such file or folder{_nearest(found)}")


def _at_version(table: str, version: int) -> list[DataFile]:
    kind = kind_of_table(table)
    if kind is None:
        raise ValueError(
            f"{table}@{version}: {table} is no Delta or Iceberg table, so it has no version "
            f"{version}; leave out @{version} (--as-of {version})"
        )
    return table_files(table, kind, version)


def _refuse_inside_tables(files: Iterable[DataFile]) -> None:
    """Looks once for the files of a folder."""
    folders = {}
    for file in files:
        if file.lake is None:
            folders.setdefault(file.address.rpartition("/")[0], file.address)
    for path in folders.values():
        refuse_inside(path)


def _in_folder(folder: Path) -> list[DataFile]:
    if kind := kind_of_table(str(folder)):
        return table_files(str(folder), kind)
    below = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    refuse_tables_below(str(folder), below)
    return _checked([DataFile(str(below[name])) for name in _choose(below)], str(folder))


def _choose_below(folder: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    refuse_tables_below(folder, names)
    return _choose(names)


def _choose(names: Iterable[str]) -> list[str]:
    """The data files among the names below a folder, in natural order.

    Those called .json are, where there are no others: beside others they are notes about them.
    """
    found = [
        name
        for name in sorted(names, key=natural_key)
        if _kind_of_name(name) is not None and not any(map(is_hidden, name.split("/")))
    ]
    return [name for name in found if not _unpacked(name).endswith(".json")] or found


def _checked(files: list[DataFile], folder: str) -> list[DataFile]:
    if not files:
        raise ValueError(
            f"{folder}: holds no data file; expected names that end in .parquet, .csv, .tsv or "
            ".jsonl (or .csv.gz, .csv.bz2), .arrow or .feather"
        )
    kinds = sorted({kind_of(file) for file in files})
    if len(kinds) > 1:
        named = " and ".join(_WORDS[kind] for kind in kinds)
        raise ValueError(
            f"{folder}: holds {named} files; name one kind, such as {folder.rstrip('/')}/*.parquet"
        )
    return files


def _kind_of_name(name: str) -> str | None:
    name = name.lower()
    if name.endswith(_PARQUET_SUFFIXES):
        return "parquet"
    if name.endswith(_IPC_SUFFIXES):
        return "ipc"
    name = _unpacked(name)
    if name.endswith((*_JSON_SUFFIXES, ".json")):
        return "json"
    return "csv" if name.endswith(_CSV_SUFFIXES) else None


def _unpacked(name: str) -> str:
    name = name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""

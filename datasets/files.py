"""Paths, folders and globs to a list of data files, in natural order."""

import difflib
import glob
import re
from collections.abc import Iterable
from pathlib import Path

PARQUET_SUFFIXES = (".parquet", ".pq")
CSV_SUFFIXES = (".csv", ".tsv")
_COMPRESSED = (".gz", ".bz2", ".zst")
_GLOB = re.compile(r"[*?\[]")


def resolve_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The data files that `paths` means.

    A folder means every CSV and Parquet file below it, in natural order (part-2 before part-10),
    without names that start with a dot or an underscore; so does a glob such as `logs/2024-*`.

    Args:
        paths: A file, a folder, a glob, or a list of these (kept in the list's order).

    Raises:
        ValueError: Nothing is there, or a folder mixes CSV and Parquet.
    """
    if isinstance(paths, str | Path):
        return _resolve_one(str(paths))
    files = [file for path in paths for file in _resolve_one(str(path))]
    if not files:
        raise ValueError("data.path: expected at least one file, got an empty list")
    return files


def is_parquet(path: Path) -> bool:
    """By its name; by its first bytes where the name says nothing."""
    name = path.name.lower()
    if name.endswith(PARQUET_SUFFIXES):
        return True
    if _is_csv_name(name):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def describe(paths: str | Path | Iterable[str | Path]) -> str:
    """What the user wrote, for error messages."""
    if isinstance(paths, str | Path):
        return str(paths)
    names = [str(path) for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _resolve_one(path: str) -> list[Path]:
    found = Path(path)
    if found.is_dir():
        return _in_folder(found)
    if found.is_file():
        return [found]
    if _GLOB.search(path):
        # Path.glob takes no absolute pattern.
        matches = sorted(glob.glob(path, recursive=True), key=_natural)  # noqa: PTH207
        files = [
            file
            for match in map(Path, matches)
            if not _is_hidden(match.name)
            for file in ([match] if match.is_file() else _in_folder(match))
        ]
        if not files:
            raise ValueError(f"{path}: no file matches; check the pattern")
        return list(dict.fromkeys(files))
    raise ValueError(f"{path}: no such file or folder{_nearest(found)}")


def _in_folder(folder: Path) -> list[Path]:
    files = [
        file
        for file in sorted(folder.rglob("*"), key=lambda path: _natural(str(path)))
        if file.is_file()
        and (_is_csv_name(file.name.lower()) or file.name.lower().endswith(PARQUET_SUFFIXES))
        and not any(_is_hidden(part) for part in file.relative_to(folder).parts)
    ]
    if not files:
        raise ValueError(
            f"{folder}: holds no data file; expected names that end in .parquet, .csv or .tsv "
            "(or .csv.gz, .csv.bz2)"
        )
    kinds = {is_parquet(file) for file in files}
    if len(kinds) > 1:
        raise ValueError(
            f"{folder}: holds CSV and Parquet files; name one kind, such as {folder}/*.parquet"
        )
    return files


def _is_csv_name(name: str) -> bool:
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name.endswith(CSV_SUFFIXES)


def _is_hidden(name: str) -> bool:
    """Editors and Spark leave such files (._SUCCESS.crc, _SUCCESS); they hold no rows."""
    return name.startswith((".", "_"))


def _natural(text: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""

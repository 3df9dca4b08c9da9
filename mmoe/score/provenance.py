"""Provenance of scores, written into their file: a folder is resumed by the same model alone."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import ScoringPrecision
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import RowsPrint, print_files
from mmoe.run.directory import RunDirectory
from mmoe.run.store import Store

KEY = b"mmoe.scored_by"  # of the metadata of a Parquet file
UNSEEN_KEY = b"mmoe.unseen_ids"  # likewise; `pyarrow.parquet.read_metadata(file).metadata`
SUMMARY_KEY = b"mmoe.summary"  # likewise, of scores in one file
# Names of what scores, as people are told them
Provenance = Mapping[str, str]
_INPUT, _ROWS = "the input", "the rows"
# What files of versions that did not say it were scored with
_BEFORE = {"--tasks": "all", "--fuse": "none", "--keep-types": "no", _ROWS: "all"}


def provenance_of(
    run: RunDirectory,
    table_precision: ScoringPrecision | None,
    keep: Sequence[str],
    keep_types: bool = False,
    tasks: Sequence[str] | None = None,
    fused: Mapping[str, str] = MappingProxyType({}),
) -> Provenance:
    """Returns what the scores of a file depend on: the model, its precision, what is written.

    Args:
        run: That scores; its config, fused columns among it, is part of the model.
        table_precision: Of its tables.
        keep: Columns of the input.
        keep_types: Whether those of CSV are more than text.
        tasks: Whose predictions are written; None: all.
        fused: Further columns that were asked for, beside those of the config.

    Raises:
        ValueError: The run has no checkpoint.
    """
    step = CheckpointFolder(run.checkpoint).step("best")
    digest = hashlib.sha256()
    for file in (run.config_file, step / "state.json"):
        digest.update(file.read_bytes())
    return {
        "the model": f"{step.name} {digest.hexdigest()[:16]}",
        "--table-precision": table_precision or "none",
        "--keep": ", ".join(keep) or "none",
        "--keep-types": "yes" if keep_types else "no",
        "--tasks": "all" if tasks is None else ", ".join(sorted(set(tasks))),
        "--fuse": ", ".join(f"{name}={text}" for name, text in fused.items()) or "none",
    }


def print_of(file: DataFile) -> RowsPrint:
    """Returns what tells the rows of a file apart from those of another of its name, cheaply.

    Raises:
        ValueError: The file is gone.
    """
    (found,) = print_files({"all": [file]}).rows
    return found


def with_input(by: Provenance, found: RowsPrint) -> Provenance:
    """Adds which file was read."""
    name = found.name.rpartition("/")[2]
    return {**by, _INPUT: f"{name} of {found.size} bytes {found.digest[:16]}"}


def with_rows(by: Provenance, rows: tuple[int, int] | None) -> Provenance:
    """Adds which rows of the input they are.

    Example:
        >>> with_rows({}, (0, 4096))
        {'the rows': '0 to 4095'}
    """
    return {**by, _ROWS: "all" if rows is None else f"{rows[0]} to {rows[1] - 1}"}


def as_metadata(by: Provenance) -> dict[bytes, bytes]:
    """Returns a provenance as metadata of a Parquet file."""
    return {KEY: json.dumps(by).encode()}


def as_unseen_ids(summary: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """Returns, as metadata of a Parquet file, how many of its rows had ids that are unseen."""
    return {UNSEEN_KEY: json.dumps(summary).encode()}


def is_scored(store: Store, name: str) -> bool:
    """Returns whether a file is Parquet that scoring wrote, by whatever model."""
    try:
        return isinstance(_note(store, name), dict)
    except (OSError, ValueError, pa.ArrowException):
        return False


def difference(found: Provenance, by: Provenance) -> str | None:
    """Says what of two provenances differs, then and now; None where nothing does."""
    for name, now in by.items():
        if name == _INPUT and name not in found:
            continue  # of a version that did not say
        then = found.get(name, _BEFORE.get(name))
        if then != now:
            return f"{name} {then}, and now {name} is {now}"
    return None


def note_of(store: Store, name: str) -> Provenance | None:
    """Returns what scored a file; None where it says nothing, or cannot be read."""
    try:
        found = _note(store, name)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return found if isinstance(found, dict) else None


def _note(store: Store, name: str) -> object:
    """JSON of the file's note; None where it has none."""
    return json.loads((store.schema(name).metadata or {}).get(KEY) or b"null")

"""Provenance of scores, written into their file: a folder is resumed by the same model alone."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import ScoringPrecision
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import print_files
from mmoe.run.directory import RunDirectory

KEY = b"mmoe.scored_by"  # of the metadata of a Parquet file
UNSEEN_KEY = b"mmoe.unseen_ids"  # likewise; `pyarrow.parquet.read_metadata(file).metadata`
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


def with_input(by: Provenance, file: DataFile) -> Provenance:
    """Adds what tells the rows of a file apart from those of another of its name, cheaply.

    Raises:
        ValueError: The file is gone.
    """
    (found,) = print_files({"all": [file]}).rows
    return {**by, _INPUT: f"{file.name} of {found.size} bytes {found.digest[:16]}"}


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


def is_scored(file: Path) -> bool:
    """Returns whether a file is Parquet that scoring wrote, by whatever model."""
    try:
        return isinstance(_note(file), dict)
    except (OSError, ValueError, pa.ArrowException):
        return False


def check_provenance(file: Path, by: Provenance) -> None:
    """Refuses a file whose scores are of another provenance.

    Raises:
        ValueError: Says what differs.
    """
    try:
        found = _note(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            f"--resume: {file} cannot be read ({str(error).splitlines()[0]}); remove it, so that "
            "it is scored again"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"--resume: {file} holds no note of what scored it; remove it, so that it is scored "
            "again, or name another folder"
        )
    for name, now in by.items():
        if name == _INPUT and name not in found:
            continue  # of a version that did not say
        then = found.get(name, _BEFORE.get(name))
        if then != now:
            raise ValueError(
                f"--resume: {file} was scored with {name} {then}, and now {name} is "
                f"{now}; resume as it was begun, say --overwrite to score all files anew, or name "
                "another folder"
            )


def _note(file: Path) -> object:
    """JSON of the file's note; None where it has none."""
    note = (pq.read_schema(file).metadata or {}).get(KEY)
    return json.loads(note or b"null")

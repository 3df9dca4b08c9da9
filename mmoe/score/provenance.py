"""Provenance of scores, written into their file: a folder is resumed by the same model alone."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic import Field, ValidationError

from mmoe.checkpoint import CheckpointFolder
from mmoe.config import Count, Stored
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import RowsPrint, print_files
from mmoe.errors import Damaged
from mmoe.run import RunDirectory
from mmoe.run.store import Store

KEY = b"mmoe.scored_by"  # of the metadata of a Parquet file
UNSEEN_KEY = b"mmoe.unseen_ids"  # likewise; `pyarrow.parquet.read_metadata(file).metadata`
SUMMARY_KEY = b"mmoe.summary"  # likewise, of scores in one file
# Names of what scores, as people are told them
Provenance = Mapping[str, str]
_INPUT, _ROWS = "the input", "the rows"


def model_of(run: RunDirectory) -> str:
    """Returns which model a run's best checkpoint is; its config, fused columns among it, is part.

    Raises:
        ValueError: The run has no checkpoint.
    """
    step = CheckpointFolder(run.checkpoint).step("best")
    digest = hashlib.sha256()
    for file in (run.config_file, step / "state.json"):
        digest.update(file.read_bytes())
    return f"{step.name} {digest.hexdigest()[:16]}"


def print_of(file: DataFile) -> RowsPrint:
    """Returns what tells the rows of a file apart from those of another of its name, cheaply.

    Raises:
        ValueError: The file is gone.
    """
    (found,) = print_files({"all": [file]}).rows
    return found


def of_rows(by: Provenance, found: RowsPrint, rows: tuple[int, int] | None) -> Provenance:
    """Adds which file was read, and which of its rows.

    Example:
        >>> of_rows({}, RowsPrint(name="a.parquet", size=9, digest="f0e1"), (0, 9))
        {'the input': 'a.parquet of 9 bytes f0e1', 'the rows': '0 to 8'}
    """
    name = found.name.rpartition("/")[2]
    read = f"{name} of {found.size} bytes {found.digest[:16]}"
    return {**by, _INPUT: read, _ROWS: "all" if rows is None else f"{rows[0]} to {rows[1] - 1}"}


def as_metadata(by: Provenance) -> dict[bytes, bytes]:
    """Returns a provenance as metadata of a Parquet file."""
    return {KEY: json.dumps(by).encode()}


def as_unseen_ids(summary: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """Returns, as metadata of a Parquet file, how many of its rows had ids that are unseen."""
    return {UNSEEN_KEY: json.dumps(summary).encode()}


def difference(found: Provenance, by: Provenance) -> str | None:
    """Says what of two provenances differs, then and now; None where nothing does."""
    for name, now in by.items():
        if found.get(name) != now:
            return f"{name} {found.get(name)}, and now {name} is {now}"
    return None


def note_of(store: Store, name: str) -> Provenance | None:
    """Returns what scored a file; None where it says nothing, or is no Parquet that can be read."""
    try:
        found = json.loads((store.schema(name).metadata or {}).get(KEY) or b"null")
    except (OSError, ValueError, pa.ArrowException):
        return None
    return found if isinstance(found, dict) else None


MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"
_VERSION = 1


class InputRecord(Stored):
    """A file that was read.

    Attributes:
        name: Its path or address, as it was named.
        bytes: Of it.
        digest: Of its content and, of a large one, of some blocks of it.
    """

    name: str
    bytes: Count
    digest: str


class PartRecord(Stored):
    """One file of scores, as it was when it was written.

    Attributes:
        name: In the folder.
        rows: That it holds.
        bytes: Of the file.
        sha256: Of the file.
        input: The file that was read.
        span: First and one past the last of its rows; None: all.
        scored_by: What its scores depend on, by the names of options.
        unseen_ids: Rows with ids that training had not, by feature.
    """

    name: str
    rows: Count
    bytes: Count
    sha256: str
    input: InputRecord
    span: tuple[int, int] | None = None
    scored_by: dict[str, str]
    unseen_ids: dict[str, Any] = Field(default_factory=dict)


class Manifest(Stored):
    """A folder of scores that is complete.

    Attributes:
        version: Of this form.
        rows: Of all parts.
        scored_by: What the last scoring depended on; of parts that it left, see their own.
        columns: Type of each, by name.
        inputs: What was read, each file once.
        parts: In the order of the rows.
    """

    version: int = _VERSION
    rows: Count
    scored_by: dict[str, str]
    columns: dict[str, str]
    inputs: list[InputRecord]
    parts: list[PartRecord]


def read_record(store: Store, name: str) -> PartRecord:
    """Reads the record of one part; `name` is that of its file.

    Raises:
        FileNotFoundError: There is none.
        Damaged: It is something else.
    """
    return _read(PartRecord, store, name)


def read_manifest(store: Store, folder: str = "") -> Manifest | None:
    """Reads the manifest of a store, or of a folder in it; None where there is none.

    Raises:
        Damaged: It is something else, or of a later version.
    """
    name = f"{folder}{MANIFEST}"
    try:
        found = _read(Manifest, store, name)
    except FileNotFoundError:
        return None
    if found.version > _VERSION:
        place = f"{store.address}/{name}"
        raise Damaged(place, f"version {found.version}; this mmoe knows {_VERSION}", "upgrade mmoe")
    return found


def as_bytes(record: Stored) -> bytes:
    """Returns the JSON of a record or a manifest."""
    return record.model_dump_json(indent=2).encode() + b"\n"


def _read(shape: Any, store: Store, name: str) -> Any:
    try:
        return shape.model_validate_json(store.read(name))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise Damaged(f"{store.address}/{name}", reason, "remove it") from None

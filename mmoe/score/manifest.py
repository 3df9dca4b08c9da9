"""`_manifest.json`: what a folder of scores holds, part by part, and what scored it."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, ValidationError

from mmoe.config.json_files import Count, Stored
from mmoe.errors import Damaged
from mmoe.run.store import Store

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


def manifest_of(
    parts: Iterable[PartRecord], scored_by: Mapping[str, str], columns: Mapping[str, str]
) -> Manifest:
    """Puts the records of all parts together."""
    parts = list(parts)
    inputs = {part.input.name: part.input for part in parts}
    return Manifest(
        rows=sum(part.rows for part in parts),
        scored_by=dict(scored_by),
        columns=dict(columns),
        inputs=list(inputs.values()),
        parts=parts,
    )


def read_record(content: bytes, place: str) -> PartRecord:
    """Reads the record of one part.

    Raises:
        Damaged: It is something else.
    """
    return _read(PartRecord, content, place)


def read_manifest(content: bytes, place: str) -> Manifest:
    """Reads a manifest.

    Raises:
        Damaged: It is something else, or of a later version.
    """
    found = _read(Manifest, content, place)
    if found.version > _VERSION:
        raise Damaged(place, f"version {found.version}; this mmoe knows {_VERSION}", "upgrade mmoe")
    return found


def manifest_in(store: Store) -> Manifest | None:
    """Reads the manifest of a folder; None where there is none."""
    try:
        return read_manifest(store.read(MANIFEST), f"{store.address}/{MANIFEST}")
    except FileNotFoundError:
        return None


def as_bytes(record: Stored) -> bytes:
    """Returns the JSON of a record or a manifest."""
    return record.model_dump_json(indent=2).encode() + b"\n"


def _read(shape: Any, content: bytes, place: str) -> Any:
    try:
        return shape.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Damaged(
            place, f"{where}: {first['msg']}" if where else first["msg"], "remove it"
        ) from None

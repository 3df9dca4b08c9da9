"""Files whole or not at all: names of half-written ones, small text files, errors of new ones."""

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.config import read_stored
from mmoe.errors import Damaged

_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.mmoe-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)\.tmp", re.S
)


def read_json(path: Path, shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Reads a mapping.

    Args:
        path: The file.
        shape: What it must hold; see `mmoe.config.json_files`.

    Raises:
        ValueError: The file is absent, no JSON, no mapping, lacks a key or holds something else.
    """
    return read_stored(path, shape, "train again")


def write_json(path: Path, content: object) -> None:
    """Writes JSON so that `path` never holds half of it.

    Args:
        path: Replaced where there is one.
        content: Plain JSON.

    Raises:
        ValueError: A number is NaN or infinite, which JSON has no word for.
    """
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text so that `path` never holds half of it.

    Args:
        path: Replaced where there is one.
        text: All of it.
    """
    with written_aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Writes a Parquet file so that `path` never holds half of it.

    Args:
        path: Replaced where there is one.
        columns: Arrays of one length, by name.
    """
    with written_aside(path) as temporary:
        pq.write_table(pa.table(dict(columns)), temporary)


def read_table(path: Path, names: Sequence[str]) -> pa.Table:
    """Reads columns of a file that `write_table` wrote into a folder of its own.

    Raises:
        Damaged: It lacks one, or is no such file.
    """
    try:
        return pq.read_table(path).select(names)
    except (OSError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise Damaged(path, reason, "remove its folder and say --resume") from None


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Gives a name beside `path` to write to; what is complete then takes its place.

    Nothing is left there where the writing fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Asks the disk to keep a file, or a folder's names, before something points to it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(written: Path, path: Path) -> None:
    """Gives a complete file its name: a power cut too leaves all of it there, or none."""
    flush(written)
    written.replace(path)
    flush(path.parent)


def check_new_file(output: Path, example: str, overwrite: bool) -> None:
    """Refuses an `--output` that cannot be made, before any work is done for it.

    Raises:
        ValueError: It is a folder, below a file, or exists without `overwrite`.
    """
    check_parents(output)
    if output.is_dir():
        raise ValueError(f"--output {output}: is a folder; name a file, such as {example}")
    if output.exists() and not overwrite:
        raise ValueError(
            f"--output {output}: exists already; remove it, choose another name, or say --overwrite"
        )


def not_written(
    output: Path | str, error: OSError, needed: int | None = None, folder: Path | None = None
) -> Exception:
    """Makes the error of a file that could not be written, its half removed, free room told.

    Args:
        output: The file, as the user calls it.
        error: What came of it.
        needed: Its bytes, if they are known.
        folder: Where it was written; None: the file's own.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    folder = folder or Path(output).parent
    free = f"{shutil.disk_usage(folder).free:,} bytes are free in {folder}"
    size = "" if needed is None else f"it takes {needed:,} bytes, and "
    return ValueError(
        f"{output}: cannot be written ({os.strerror(error.errno)}): {size}{free}; make room, or "
        "name a file on another disk"
    )


def check_parents(output: Path) -> None:
    """Refuses a place below a file, and addresses: only files of this machine are written."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(output)):  # one slash: a path has no two
        raise ValueError(
            f"--output {output}: is an address; name a file or folder of this machine, and copy it"
        )
    for parent in output.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"--output {output}: {parent} is a file; name a folder that can be made"
            )


def temporary_beside(output: Path) -> Path:
    """Names the file that this process writes before it is moved to `output`.

    Example:
        >>> import re
        >>> path = temporary_beside(Path("scores/00000-log.parquet"))
        >>> re.sub("[0-9a-f]{8}-[0-9]+", "MACHINE-PROCESS", str(path))
        'scores/.00000-log.parquet.mmoe-MACHINE-PROCESS.tmp'
    """
    return output.with_name(f".{output.name}.mmoe-{_machine()}-{os.getpid()}.tmp")


def is_temporary(name: str) -> bool:
    """Says whether `temporary_beside` made the name, here or on another machine."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_dead(folder: Path, output: str | None = None) -> None:
    """Removes what processes of this machine had begun in a folder before they died.

    Nothing that lives is touched, nor what another machine wrote, whose processes cannot be seen.

    Args:
        folder: May be absent.
        output: Only what was to get this name.
    """
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or (output is not None and match["name"] != output):
            continue
        if match["machine"] == _machine() and not _lives(int(match["process"])):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _machine() -> str:
    return sha256(socket.gethostname().encode()).hexdigest()[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        return True
    return True

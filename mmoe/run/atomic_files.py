"""Small text files: never half-written, read with errors that name them; and new files' names."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmoe.config.json_files import read_stored
from mmoe.errors import Damaged


def read_json(path: Path, keys: Iterable[str] = (), shape: Any = dict[str, Any]) -> dict[str, Any]:
    """Reads a mapping that holds at least `keys`.

    Args:
        path: The file.
        keys: That must be there.
        shape: What they and others must hold; see `mmoe.config.json_files`.

    Raises:
        ValueError: The file is absent, no JSON, no mapping, lacks a key or holds something else.
    """
    content = read_stored(path, shape, "train again")
    missing = [key for key in keys if key not in content]
    if missing:
        raise Damaged(path, f"no {', '.join(missing)}", "train again")
    return content


def write_json(path: Path, content: object) -> None:
    """Writes JSON so that `path` never holds half of it."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text so that `path` never holds half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    put_in_place(temporary, path)


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

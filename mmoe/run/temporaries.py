"""Names of half-written files, by which they are known for ours, and a dead process' for dead."""

import os
import re
import shutil
import socket
from hashlib import sha256
from pathlib import Path

_NAME = re.compile(r"\.(?P<name>.+)\.mmoe-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)\.tmp", re.S)


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
    return _NAME.fullmatch(name) is not None


def remove_dead(folder: Path, output: str | None = None) -> None:
    """Removes what processes of this machine had begun in a folder before they died.

    Nothing that lives is touched, nor what another machine wrote, whose processes cannot be seen.

    Args:
        folder: May be absent.
        output: Only what was to get this name.
    """
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
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

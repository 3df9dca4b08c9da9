"""The host's cache: what is made once on a machine, and then read by all of its processes."""

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mmoe.run.atomic_files import remove_dead, temporary_beside
from mmoe.run.locks import lock_file

# Seconds for which nobody has asked for what lies there, until a newer one takes its place
_UNUSED = 7 * 86_400.0


def cache_folder() -> Path:
    """Returns the folder of the cache: `MMOE_CACHE`, else one of the platform's.

    Raises:
        ValueError: There is no such variable, nor a home.
    """
    named = os.environ.get("MMOE_CACHE")
    if named:
        return Path(named).absolute()
    try:
        return _of_platform(Path.home()) / "mmoe"
    except RuntimeError:
        raise ValueError(
            "there is no home folder to keep a cache in; set MMOE_CACHE to a folder of this machine"
        ) from None


def cached_name(name: str, whose: str, content: str) -> str:
    """Names what lies in the cache: for people, for whose it is, and for its content.

    Args:
        name: To be known by.
        whose: Address of the original: a newer copy of it takes the place of an old one.
        content: Whatever differs where the original does.

    Example:
        >>> cached_name("my run", "s3://models/my run", "step 120")
        'my-run-b2ea4f1c-648ae1a21a1aae05'
    """
    readable = re.sub(r"[^\w.-]+", "-", name)[:40].strip(".-") or "run"
    return f"{readable}-{_digest(whose)[:8]}-{_digest(content)[:16]}"


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache, which one process of the host makes where it is absent.

    Others wait for that one. It is there whole or not at all, whoever dies meanwhile; earlier ones
    of the same original that nobody has asked for in a week are removed.

    Args:
        place: The folder, in the cache, with a name of `cached_name`.
        make: Fills an empty folder, which then gets the name.

    Raises:
        ValueError: The cache cannot be written into, or has no room; or `make` raises it.
    """
    if not _used(place):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = lock_file(place.with_name(f".{place.name}.lock"), "", seconds=-1)
            try:
                if not _used(place):
                    _make(place, make)
            finally:
                lock.release()
        except OSError as error:
            raise _not_kept(place, error) from None
    return place


def _make(place: Path, make: Callable[[Path], None]) -> None:
    remove_dead(place.parent, place.name)
    _remove_unused(place)
    temporary = temporary_beside(place)
    temporary.mkdir()
    try:
        make(temporary)
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():  # where there are no locks, another may have been as quick
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _used(place: Path) -> bool:
    """Whether it is there; notes that somebody asked for it."""
    if not place.is_dir():
        return False
    with suppress(OSError):  # of another user
        os.utime(place)
    return True


def _remove_unused(place: Path) -> None:
    """Files that a process maps stay readable to it; what is asked for again is made again."""
    original = place.name.rpartition("-")[0]
    for earlier in place.parent.glob(f"{original}-*"):
        with suppress(OSError):
            if time.time() - earlier.stat().st_mtime > _UNUSED:
                shutil.rmtree(earlier)


def _not_kept(place: Path, error: OSError) -> ValueError:
    reason = error.strerror or type(error).__name__
    room = ""
    with suppress(OSError):
        free = shutil.disk_usage(place.parent).free
        room = f", {free:,} bytes are free"
    return ValueError(
        f"{place.parent}: the cache cannot be written ({reason}{room}); make room, or set "
        "MMOE_CACHE to another folder of this machine"
    )


def _of_platform(home: Path) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()

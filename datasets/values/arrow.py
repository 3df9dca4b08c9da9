"""`pc`: pyarrow.compute, whose functions are made at import time; and Arrow where memory is short.

Where a process' memory is limited (`ulimit -v`), Arrow may fail to start a thread of its pool and
then waits for ever for what that thread was to do, so there it decodes in the thread that calls it.
"""

import ctypes
import mmap
import os
from typing import Any

import pyarrow.compute

from mmoe.process_settings import is_tuned

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

pc: Any = pyarrow.compute

# Stacks of the few threads that torch and Arrow start in any case (8 MiB each), and a little
_ROOM_BYTES = 64 << 20
_M_ARENA_MAX = -8  # of mallopt(3)


def may_use_threads() -> bool:
    """Returns whether Arrow may decode on several threads: not where memory is limited."""
    return resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def check_room() -> None:
    """Refuses to begin where memory is too short to start threads.

    Where memory is limited glibc's threads also share one heap from then on: else each reserves
    128 MiB of it at first, whatever it needs. (Not where the user set glibc's variables, nor in a
    process that is not ours to change: `mmoe.tune_process`.)

    Raises:
        MemoryError: The process' limit leaves less.

    Example:
        >>> from mmoe.datasets.values.arrow import check_room
        >>> check_room()
    """
    if may_use_threads():
        return
    try:
        mmap.mmap(-1, _ROOM_BYTES).close()
    except OSError:
        raise MemoryError(
            f"the limit of this process (ulimit -v) leaves less than {_ROOM_BYTES >> 20} MiB"
        ) from None
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if (
        mallopt is not None
        and is_tuned()
        and not any(name.startswith("MALLOC_") for name in os.environ)
    ):
        mallopt(_M_ARENA_MAX, 1)


def out_of_memory(error: Exception, where: str) -> MemoryError | None:
    """Returns what to raise where an Arrow error means that memory ran out.

    Arrow's own is an ArrowException as well, which elsewhere means a damaged file.
    """
    reason = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "Failed to launch worker thread" in reason:
        return MemoryError(f"{where}: {reason[:200]}")
    return None

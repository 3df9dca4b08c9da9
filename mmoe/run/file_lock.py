"""Locks of open files, which end with the process that holds them."""

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def lock_file(descriptor: int, *, wait: bool = False) -> bool | None:
    """Locks an open file; False: another process has; None: the system, or the disk, cannot.

    Args:
        descriptor: Of the file.
        wait: Until the other one ends.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None

"""Exceptions that callers tell apart by their class; and the errors of others that have none."""

import re
import sys
import warnings
from pathlib import Path


class Diverged(ValueError):
    """Raised where a loss, a weight or a prediction is no finite number.

    Attributes:
        on_all_ranks: Every rank raises it at this point, so they can speak of it with one another.
    """

    on_all_ranks: bool = False


class NotFinite(ValueError):
    """Raised where a gate was given, or gave, no finite number; a step then diverges."""


class RanksDiffer(ValueError):
    """Raised where ranks do or find different things; its text names the rank itself."""


class NotImported(ValueError):
    """Raised where a module with somebody's kinds may not be imported, or cannot be."""


class Damaged(ValueError):
    """A file holds something else than it should; `reason` is without its name and the remedy."""

    def __init__(self, origin: str | Path, problem: str, remedy: str) -> None:
        self.reason = f"is damaged ({problem})"
        super().__init__(f"{origin}: {self.reason}; {remedy}")


class Rejected(ValueError):
    """Raised where scores are not what was expected of them; they are not published."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a run wrote into `folder`, which a resume goes on with.

    Args:
        folder: That was written into.
        saved: Whether it holds something to resume from.
    """

    def __init__(self, folder: Path, saved: bool) -> None:
        super().__init__()
        self.folder, self.saved = folder, saved


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an allocation failed, or a thread's stack found no room.

    torch and the system have no class for it but `MemoryError`, only these words.
    """
    words = (
        "can't allocate memory",
        "CUDA out of memory",
        "Resource temporarily unavailable",
        "can't start new thread",
    )
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in words)


def is_time_out(error: BaseException) -> bool:
    """Returns whether a rank waited for another in vain; gloo and NCCL have only words for it."""
    return isinstance(error, RuntimeError) and bool(
        re.search("timed? ?out", str(error), re.IGNORECASE)
    )


def warn_caller(text: str) -> None:
    """Warns of something that the caller of this library gave, at the line of theirs."""
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "mmoe":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


WHAT_TO_CHANGE = (
    "lower training.optimizer.learning_rate or that of the tables "
    "(training.embedding_optimizer.learning_rate), or set training.gradient_clip"
)

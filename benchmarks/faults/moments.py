"""When a run is killed: at a time, while it writes a checkpoint, or at a file operation."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

# Pause between two looks at the run directory; a checkpoint of the small run takes some 10 ms
_LOOK_SECONDS = 0.0005
# Most time between the sign of a checkpoint and the kill
_INSIDE_SECONDS = 0.0015


@dataclass(frozen=True)
class Moment:
    """One kill.

    Attributes:
        kind: `time`: seconds after the start; `writing`: the n-th new folder of a checkpoint that
            is being written, and so many seconds; `operation`: the n-th file operation.
        number: Which checkpoint or operation.
        seconds: As said.
    """

    kind: str
    number: int
    seconds: float

    def __str__(self) -> str:
        if self.kind == "time":
            return f"after {self.seconds:.2f} s"
        if self.kind == "writing":
            return f"{self.seconds * 1e3:.1f} ms into checkpoint {self.number}"
        return f"at file operation {self.number}"


def draw_moments(
    count: int, draw: random.Random, *, seconds: float, checkpoints: int, operations: int
) -> list[Moment]:
    """Of ten moments four are uniform in time, three inside checkpoints, three at operations."""
    kinds = ("time", "writing", "operation", "time", "writing",
             "operation", "time", "writing", "operation", "time")  # fmt: skip
    moments = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind == "time":
            moments.append(Moment(kind, 0, draw.uniform(0, 0.97 * seconds)))
        elif kind == "writing":
            inside = draw.uniform(0, _INSIDE_SECONDS)
            moments.append(Moment(kind, draw.randint(1, max(1, checkpoints - 1)), inside))
        else:
            moments.append(Moment(kind, draw.randint(1, operations), 0.0))
    return moments


def kill_at(moment: Moment, process: Popen[bytes], run: Path) -> bool:
    """Kills the process at the moment; False where it ended before."""
    if moment.kind == "operation":
        process.wait()  # kills itself
        return process.returncode < 0
    if moment.kind == "writing":
        _wait_for_checkpoint(moment.number, process, run / "checkpoint")
    end = time.perf_counter() + moment.seconds
    while time.perf_counter() < end and process.poll() is None:
        time.sleep(min(_LOOK_SECONDS, max(0.0, end - time.perf_counter())))
    process.kill()  # SIGKILL
    process.wait()
    return process.returncode < 0


def was_writing(run: Path) -> bool:
    """Does the killed run hold a half-written checkpoint or pointer?"""
    return any((run / "checkpoint").glob(".*.tmp"))


def _wait_for_checkpoint(number: int, process: Popen[bytes], folder: Path) -> None:
    """Until the number-th temporary folder has appeared since the start."""
    seen: set[str] = set()
    while process.poll() is None:
        seen |= {path.name for path in folder.glob(".step-*.tmp")}
        if len(seen) >= number:
            return
        time.sleep(_LOOK_SECONDS)

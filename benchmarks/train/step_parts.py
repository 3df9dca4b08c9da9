"""Where a step's time goes: the library's own recorder, run inside a contestant."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.train.pacer import minor_faults
from mmoe.train.profiling import StepRecorder


class StepParts:
    """Milliseconds of every part and of the slowest operators, means over some steps.

    Args:
        steps: To look at; the profiler itself slows them down a little.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.left = steps, steps
        self.faults = minor_faults()
        self.recorder = StepRecorder()
        self.recorder.begin_step()

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        """See `Job`."""
        self.recorder.end_step()
        self.left -= 1
        if self.left > 0:
            self.recorder.begin_step()
            return None
        faults = (minor_faults() - self.faults) / self.steps
        return {"step_times": asdict(self.recorder.stop()), "page_faults": faults}


JOBS: dict[str, Callable[..., StepParts]] = {"parts": StepParts}

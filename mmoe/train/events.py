"""TensorBoard events."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

# One training point every so many steps keeps event files small.
STEPS_BETWEEN_POINTS = 10


class EventLog:
    """Writes losses while training and metrics after every epoch; a context manager.

    Args:
        folder: Of the event files; None writes nothing (of several ranks only one writes).
        step: Steps done before; points after it from an interrupted run are hidden.
    """

    def __init__(self, folder: Path | None, step: int) -> None:
        self.writer = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter  # half a second to import

            self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def losses(self, step: int, losses: Mapping[str, float], dropped: int | None = None) -> None:
        """Training loss of each task, and picks that the capacity dropped."""
        if self.writer is not None and step % STEPS_BETWEEN_POINTS == 0:
            for task, loss in losses.items():
                self.writer.add_scalar(f"train/{task}/loss", loss, step)
            if dropped is not None:
                self.writer.add_scalar("train/dropped_picks", dropped, step)

    def epoch(
        self, step: int, metrics: Mapping[str, Mapping[str, Any]], rows_per_second: float
    ) -> None:
        """Validation metrics of each task."""
        if self.writer is None:
            return
        self.writer.add_scalar("train/rows_per_second", rows_per_second, step)
        for task, values in metrics.items():
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"validation/{task}/{name}", value, step)
        self.writer.flush()

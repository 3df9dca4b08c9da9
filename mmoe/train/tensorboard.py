"""Writes TensorBoard events."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

# One training point every so many steps keeps event files small; seconds until a point is on disk
_STEPS_BETWEEN_POINTS, _FLUSH_SECONDS = 10, 30.0


class EventLog:
    """Writes losses while training and metrics after every epoch; a context manager.

    Written here and now, not by a thread as torch's `SummaryWriter` does: what is wrong with the
    file (a full disk) is then an error of the run, where that thread would die with a traceback.

    Args:
        folder: Of the event files.
        step: Steps done before; points after it from an interrupted run are hidden.

    Raises:
        OSError: The file cannot be written; names it.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.flushed = folder, time.monotonic()
        # Imported where they are used: torch.utils.tensorboard would take a fifth of a second more
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / f"{name}.{time.monotonic_ns()}").open("xb")
        self.records = RecordWriter(self.file)
        # Made by protobuf: no types
        self.events, self.summaries = cast(Any, event_pb2), cast(Any, summary_pb2)
        self._write(file_version="brain.Event:2")
        if step:
            start = self.events.SessionLog(status=self.events.SessionLog.START)
            self._write(step=step + 1, session_log=start)
        self._flush()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            self.file.close()
        except OSError as failed:
            if kind is None:
                raise self._named(failed) from failed

    def losses(self, step: int, losses: Mapping[str, float], dropped: int | None = None) -> None:
        """Writes the training loss of each task, and picks that the capacity dropped."""
        if step % _STEPS_BETWEEN_POINTS:
            return
        for task, loss in losses.items():
            self._scalar(f"train/{task}/loss", loss, step)
        if dropped is not None:
            self._scalar("train/dropped_picks", dropped, step)
        if time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self._flush()

    def epoch(
        self, step: int, metrics: Mapping[str, Mapping[str, Any]], rows_per_second: float
    ) -> None:
        """Writes the validation metrics of each task."""
        self._scalar("train/rows_per_second", rows_per_second, step)
        for task, values in metrics.items():
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._scalar(f"validation/{task}/{name}", value, step)
        self._flush()

    def _scalar(self, tag: str, value: float, step: int) -> None:
        point = self.summaries.Summary.Value(tag=tag, simple_value=value)
        self._write(step=step, summary=self.summaries.Summary(value=[point]))

    def _write(self, **fields: Any) -> None:
        event = self.events.Event(wall_time=time.time(), **fields)
        try:
            self.records.write(event.SerializeToString())
        except OSError as error:
            raise self._named(error) from error

    def _flush(self) -> None:
        self.flushed = time.monotonic()
        try:
            self.file.flush()
        except OSError as error:
            raise self._named(error) from error

    def _named(self, error: OSError) -> OSError:
        return OSError(f"{self.folder}: TensorBoard's events cannot be written: {error}")

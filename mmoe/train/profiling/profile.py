"""`mmoe train --profile`: which steps are recorded, and what is written about them."""

import os
import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mmoe.run.atomic_files import write_json, write_text
from mmoe.run.console import Reporter
from mmoe.run.folder_claim import PROFILE_FILE, STRAY_PROFILE, remove_files, remove_folders
from mmoe.train.profiling.recorder import StepRecorder
from mmoe.train.profiling.step_times import StepTimes

# Caches are warm, threads are up and read-ahead is steady by then
WARM_UP, _RECORDED = 10, 20
_STARTING = 3  # of the warm-up's steps, which are not timed


class TrainingProfile:
    """Records some steps of the first epoch of this process.

    Args:
        folder: RUN/profile; made, or replaced, when the steps are done.
        steps_left: Of the epoch. Where they are fewer than 30, a third of them are the warm-up.
        reporter: Given the table.
        cuda: The steps run on a GPU. Times are then the host's: a part is the time in which it
            queues work, and the wait for all of it is in `loss`, where the losses are read.
    """

    def __init__(
        self, folder: Path, steps_left: int, reporter: Reporter, *, cuda: bool = False
    ) -> None:
        self.folder, self.reporter, self.cuda = folder, reporter, cuda
        self.steps_left = steps_left
        self.first = min(WARM_UP, steps_left // 3)
        self.count = min(_RECORDED, steps_left - self.first)
        self.done = 0
        self.rows: list[int] = []
        self.seconds: list[float] = []
        self.recorder: StepRecorder | None = None

    @contextmanager
    def step(self) -> Generator[None]:
        """Encloses one step, from reading its rows to the last line said about it."""
        if self.done == self.first and self.count:
            self.recorder = StepRecorder(cuda=self.cuda)
        start = time.perf_counter()
        if self.recorder is not None:
            self.recorder.begin_step()
        try:
            yield
        except BaseException:
            if self.recorder is not None:
                self.recorder.close()
            raise
        if self.recorder is not None:
            self.recorder.end_step()
        elif _STARTING <= self.done < self.first:
            self.seconds.append(time.perf_counter() - start)
        self.done += 1
        if self.recorder is not None and self.done == self.first + self.count:
            recorder, self.recorder = self.recorder, None
            self._write(recorder)

    def saw(self, rows: int) -> None:
        """Counts the rows of a step that is over."""
        if self.recorder is not None:
            self.rows.append(rows)

    def _write(self, recorder: StepRecorder) -> None:
        # Of a process that was killed here
        remove_folders(self.folder.parent, STRAY_PROFILE, PROFILE_FILE)
        temporary = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.tmp")
        temporary.mkdir()
        times = recorder.stop(temporary / "trace.json")
        found = self._found(times)
        text = self._text(times, found)
        write_json(temporary / "table.json", found)
        write_text(temporary / "table.txt", text + "\n")
        self._put_in_place(temporary)
        for line in text.splitlines():
            self.reporter.say(line)
        self.reporter.say(f"{self.folder}/trace.json opens in https://ui.perfetto.dev")

    def _put_in_place(self, whole: Path) -> None:
        """One of an interrupted run that is resumed gives way in one move: never half a folder."""
        if self.folder.exists():
            earlier = whole.with_name(f".{self.folder.name}.{os.getpid()}-earlier.tmp")
            self.folder.rename(earlier)
            whole.rename(self.folder)
            remove_files(earlier, PROFILE_FILE)
            if earlier.exists():  # with files that somebody else put there
                for path in earlier.iterdir():
                    path.rename(self.folder / path.name)
                with suppress(OSError):  # a link to a folder elsewhere
                    earlier.rmdir()
        else:
            whole.rename(self.folder)

    def _found(self, times: StepTimes) -> dict[str, Any]:
        rows = statistics.mean(self.rows)
        return {
            "first_step": self.first + 1,
            "steps": times.steps,
            "rows_per_step": rows,
            "step_ms": times.step_ms,
            "rows_per_second": rows / times.step_ms * 1e3,
            "step_ms_without_profiler": (
                statistics.median(self.seconds) * 1e3 if self.seconds else None
            ),
            "threads": torch.get_num_threads(),
            "parts": [
                {**asdict(part), "ms": part.both, "share": part.both / times.step_ms}
                for part in times.parts
            ],
            "operators": times.operators,
        }

    def _text(self, times: StepTimes, found: dict[str, Any]) -> str:
        last = self.first + times.steps
        lines = [
            f"where a step's time goes: steps {self.first + 1} to {last} of this epoch, "
            f"{found['rows_per_step']:,.0f} rows each, {found['threads']} thread(s)"
        ]
        if self.steps_left < WARM_UP + _RECORDED:
            lines.append(
                f"(the epoch had only {self.steps_left} steps left; {WARM_UP + _RECORDED} or more "
                "give a steadier picture)"
            )
        if self.cuda:
            lines.append(
                "(times of the host, which queues the GPU's work and waits for it in `loss`; the "
                "kernels' own are in trace.json)"
            )
        lines.append(parts_text(times))
        plain = found["step_ms_without_profiler"]
        without = (
            "" if plain is None else f"; before it, without the profiler, {plain:.1f} ms a step"
        )
        speed = f"{times.step_ms:.1f} ms a step ({found['rows_per_second']:,.0f} rows/s)"
        lines.append(f"{speed} while recording{without}")
        return "\n".join(lines)


def parts_text(times: StepTimes) -> str:
    """Returns the parts of a step as a table for a terminal."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(("part", "forward ms", "backward ms", "ms", "share")):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    whole = times.step_ms
    for part in times.parts:
        cells = [f"{ms:.2f}" if ms else "" for ms in (part.forward, part.backward, part.both)]
        table.add_row(part.part, *cells, f"{part.both / whole:.1%}")
    table.add_section()
    sides = [sum(p.forward for p in times.parts), sum(p.backward for p in times.parts), whole]
    table.add_row("step", *(f"{ms:.2f}" for ms in sides), "100.0%")
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())

"""`--profile`: where the time of a training step goes, by part and by operator.

`TrainingProfile` records steps, `part` marks what of a step is going on.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules import module as hooks
from torch.profiler import ProfilerActivity, profile, record_function

from mmoe.mixture import MultiGateMixture
from mmoe.models.network import ImputationTowers
from mmoe.run import Reporter, write_json, write_text
from mmoe.run.atomic_files import written_aside
from mmoe.tasks import TaskTowers
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer

INPUT, EMBEDDINGS, EXPERTS, GATES = "input", "embeddings", "experts", "gates"
TOWERS, LOSS, BACKWARD, OPTIMIZER = "towers", "loss", "backward", "optimizer"
STEP, OTHER = "step", "other"
# Validation and checkpoints: no part of any step
PAUSE = "between epochs"
PREFIX = "mmoe: "


def part(name: str) -> record_function:
    """Makes a context that a running profiler records under a name; cheap without one."""
    return record_function(PREFIX + name)


# How autograd's engine calls each node of the graph
_NODE = "autograd::engine::evaluate_function: "
# How TorchRec marks what it does: around operators, none itself
_MARK = "## "
_ORDER = (INPUT, EMBEDDINGS, EXPERTS, GATES, TOWERS, LOSS, OPTIMIZER, OTHER)
_MICRO = 1e-3  # milliseconds


@dataclass(frozen=True)
class _PartTime:
    """Milliseconds that one part of a step takes, forward and backward."""

    part: str
    forward: float
    backward: float

    @property
    def both(self) -> float:
        """Milliseconds in all."""
        return self.forward + self.backward


@dataclass(frozen=True)
class StepTimes:
    """Mean times over the recorded steps; the parts add up to the step.

    Attributes:
        steps: Recorded.
        parts: In the order of a step. `experts` includes mixing their outputs; the update of
            tables is part of `embeddings` where it is fused into their backward pass, and of
            `optimizer` elsewhere; `other` is the loop, and what lies between parts.
        operators: Those that took longest, their callees left out: name, ms and calls a step.
    """

    steps: int
    parts: list[_PartTime]
    operators: list[dict[str, Any]]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "StepTimes":
        """Reads what `dataclasses.asdict` made of one."""
        return cls(found["steps"], [_PartTime(**p) for p in found["parts"]], found["operators"])

    @property
    def step_ms(self) -> float:
        """Milliseconds of one step."""
        return sum(part.both for part in self.parts)


def step_times(events: Sequence[FunctionEvent]) -> StepTimes:
    """Splits the recorded steps into the times of their parts.

    Forward, a moment belongs to the innermost marker around it. Backward, autograd goes through the
    graph node by node; a node belongs to the part in which it was made, found by the number that
    the profiler gives it, and with it the time since the node before.

    Args:
        events: `torch.profiler.profile.events()`; those of a GPU are left out.
    """
    events = _without_pauses([e for e in events if e.device_type.name == "CPU"])
    markers = [event for event in events if event.name.startswith(PREFIX)]
    thread = next(marker.thread for marker in markers if _name(marker) == STEP)
    markers = sorted((m for m in markers if m.thread == thread), key=_order)
    here = [event for event in events if event.thread == thread]
    steps = sum(_name(marker) == STEP for marker in markers)
    forward, backward = _forward(markers), _backward(markers, here)
    forward.pop(PAUSE, None)
    # A marker's own time is without the markers inside it: what is left of a step is the loop's
    forward[OTHER] += forward.pop(STEP, 0.0) + forward.pop(BACKWARD, 0.0) - sum(backward.values())
    return StepTimes(
        steps,
        [
            _PartTime(name, *(side.get(name, 0.0) * _MICRO / steps for side in (forward, backward)))
            for name in _ORDER
        ],
        _operators(events, steps),
    )


def _without_pauses(events: Sequence[FunctionEvent]) -> list[FunctionEvent]:
    """Leaves out what happened between epochs, but for the marks around it."""
    spans = [e.time_range for e in events if e.name == PREFIX + PAUSE]
    return [
        event
        for event in events
        if not any(span.start < event.time_range.start < span.end for span in spans)
    ]


def _forward(markers: Iterable[FunctionEvent]) -> dict[str, float]:
    """Microseconds in each marker, those of the markers inside it left out."""
    spent: dict[str, float] = defaultdict(float)
    around: list[FunctionEvent] = []
    for marker in markers:
        while around and marker.time_range.start >= around[-1].time_range.end:
            around.pop()
        length = marker.time_range.elapsed_us()
        if _name(marker) != STEP and not around:
            continue  # outside every step
        spent[_name(marker)] += length
        if around:
            spent[_name(around[-1])] -= length
        around.append(marker)
    return spent


def _backward(
    markers: Sequence[FunctionEvent], events: Sequence[FunctionEvent]
) -> dict[str, float]:
    """Microseconds of the nodes of each part."""
    spent: dict[str, float] = defaultdict(float)
    part_of = _parts_of_nodes(markers, events)
    nodes = sorted((event for event in events if event.name.startswith(_NODE)), key=_order)
    passes = [marker for marker in markers if _name(marker) == BACKWARD]
    for whole in passes:
        last, part = whole.time_range.start, OTHER
        for node in nodes:
            if last <= node.time_range.start < whole.time_range.end:
                # Nodes without a number put a weight's gradient where it belongs
                part = part_of.get(node.sequence_nr, part)
                spent[part] += node.time_range.end - last
                last = node.time_range.end
    return spent


def _parts_of_nodes(
    markers: Sequence[FunctionEvent], events: Sequence[FunctionEvent]
) -> dict[int, str]:
    """The number of a node → the part whose operator made it.

    Operators that make no node show the number of the next one; the last to show it made it.
    """
    part_of: dict[int, str] = {}
    around: list[FunctionEvent] = []
    waiting = list(reversed(markers))
    for event in sorted(events, key=_order):
        while waiting and waiting[-1].time_range.start <= event.time_range.start:
            around.append(waiting.pop())
        while around and event.time_range.start >= around[-1].time_range.end:
            around.pop()
        if event.sequence_nr >= 0 and not event.name.startswith(_NODE) and event.scope == 0:
            name = _name(around[-1]) if around else OTHER
            part_of[event.sequence_nr] = name if name in _ORDER else OTHER
    return part_of


def _operators(events: Sequence[FunctionEvent], steps: int) -> list[dict[str, Any]]:
    """The fourteen that took longest."""
    spent: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if not event.name.startswith((PREFIX, _NODE, _MARK)):
            spent[event.name].append(event.self_cpu_time_total)
    slowest = sorted(spent.items(), key=lambda item: -sum(item[1]))[:14]
    return [
        {"name": name, "ms": sum(times) * _MICRO / steps, "calls": len(times) / steps}
        for name, times in slowest
    ]


def _name(marker: FunctionEvent) -> str:
    return marker.name.removeprefix(PREFIX)


def _order(event: FunctionEvent) -> tuple[float, float]:
    """Sorts by start, the longer (the outer one) first."""
    return event.time_range.start, -event.time_range.end


class StepRecorder:
    """Records whatever steps run between its construction and `stop`; changes no result.

    Args:
        cuda: Also record a GPU's kernels, for the trace.

    Example:
        >>> recorder = StepRecorder()
        >>> recorder.begin_step()
        >>> torch.ones(3).sum()
        tensor(3.)
        >>> recorder.end_step()
        >>> recorder.stop().steps
        1
    """

    def __init__(self, *, cuda: bool = False) -> None:
        self.open: list[tuple[nn.Module, record_function]] = []
        self.gates: set[int] = set()
        self.step: record_function | None = None
        activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]
        self.profile = profile(activities=activities)
        self.profile.__enter__()
        self.handles: list[Any] = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after),
        ]

    def begin_step(self) -> None:
        """Marks the beginning of a step."""
        self.step = part(STEP)
        self.step.__enter__()

    def end_step(self) -> None:
        """Marks the end of a step."""
        assert self.step is not None, "begin_step comes first"
        self.step.__exit__(None, None, None)

    def close(self) -> None:
        """Ends recording."""
        for handle in self.handles:
            handle.remove()
        self.profile.__exit__(None, None, None)

    def stop(self, trace: Path | None = None) -> StepTimes:
        """Ends recording; writes the events as a Chrome trace to `trace`."""
        self.close()
        if trace is not None:
            self.profile.export_chrome_trace(str(trace))
        events = self.profile.events()
        assert events is not None, "the profiler has stopped"
        return step_times(events)

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        name = self._part_of(module)
        if name is not None:
            self.open.append((module, part(name)))
            self.open[-1][1].__enter__()

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.open and self.open[-1][0] is module:
            self.open.pop()[1].__exit__(None, None, None)

    def _part_of(self, module: nn.Module) -> str | None:
        if isinstance(module, MultiGateMixture):
            self.gates.add(id(module.gate))
            return EXPERTS
        if isinstance(module, TaskTowers | AdaptiveTransfer | BayesianTransfer | ImputationTowers):
            return TOWERS
        if id(module) in self.gates:
            return GATES
        # Of both backends, and of nothing else (TorchRec takes seconds to import)
        return EMBEDDINGS if hasattr(module, "table_weights") else None


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
        """Writes each file whole; those of an interrupted run that is resumed are replaced."""
        self.folder.mkdir(exist_ok=True)
        trace = self.folder / "trace.json"
        with written_aside(trace) as temporary:
            times = recorder.stop(temporary)
        found = self._found(times)
        text = self._text(times, found)
        write_json(self.folder / "table.json", found)
        write_text(self.folder / "table.txt", text + "\n")
        for line in text.splitlines():
            self.reporter.say(line)
        self.reporter.say(f"{trace} opens in https://ui.perfetto.dev")

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

"""Where the time of recorded steps went, from a profiler's events."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.autograd.profiler_util import FunctionEvent

from mmoe.train.profiling.parts import (
    BACKWARD,
    EMBEDDINGS,
    EXPERTS,
    GATES,
    INPUT,
    LOSS,
    OPTIMIZER,
    OTHER,
    PAUSE,
    PREFIX,
    STEP,
    TOWERS,
)

# How autograd's engine calls each node of the graph
_NODE = "autograd::engine::evaluate_function: "
# How TorchRec marks what it does: around operators, none itself
_MARK = "## "
_ORDER = (INPUT, EMBEDDINGS, EXPERTS, GATES, TOWERS, LOSS, OPTIMIZER, OTHER)
_MICRO = 1e-3  # milliseconds


@dataclass(frozen=True)
class PartTime:
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
    parts: list[PartTime]
    operators: list[dict[str, Any]]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "StepTimes":
        """Reads what `dataclasses.asdict` made of one."""
        return cls(found["steps"], [PartTime(**p) for p in found["parts"]], found["operators"])

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
            PartTime(name, *(side.get(name, 0.0) * _MICRO / steps for side in (forward, backward)))
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
    """By start, the longer (the outer one) first."""
    return event.time_range.start, -event.time_range.end

"""Where a step's time goes: by hooks at the seams of the network, and by operator."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile

from benchmarks.train.pacer import minor_faults

INPUT, EMBEDDINGS, MIXTURE = "input", "embeddings", "experts and gates"
TOWERS, OPTIMIZER, REST = "towers and loss", "optimizer", "bookkeeping"
PARTS = (INPUT, EMBEDDINGS, MIXTURE, TOWERS, OPTIMIZER, REST)
# The last: processor time of the thread that trains, in both directions. On a machine that is busy
# with other things it comes closer to what a quiet machine would need.
FORWARD, BACKWARD, PROCESSOR = "forward", "backward", "processor"
OPERATORS_SHOWN = 14


class StepParts:
    """Milliseconds of every part, the median over some steps.

    The network's forward pass and the order in which gradients arrive cut a step into pieces; each
    piece belongs to the part that ends it. Nothing is cut inside a part, so the sum is the step.

    Args:
        steps: To look at.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.faults = minor_faults()
        self.steps: list[dict[str, float]] = []
        self.now: dict[str, float] = {}
        self.last, self.last_cpu = time.perf_counter(), time.thread_time()
        self.embeddings: nn.Module | None = None
        self.handles: list[Any] = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after),
            register_optimizer_step_pre_hook(lambda *_: self._cut(EMBEDDINGS, BACKWARD)),
            register_optimizer_step_post_hook(lambda *_: self._cut(OPTIMIZER, BACKWARD)),
        ]

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        """See `Job`."""
        self._cut(REST, BACKWARD)
        self.steps.append(self.now)
        self.now = {}
        self.left -= 1
        if self.left > 0:
            self.last, self.last_cpu = time.perf_counter(), time.thread_time()
            return None
        for handle in self.handles:
            handle.remove()
        keys = dict.fromkeys(key for step in self.steps for key in step)
        middle = {key: statistics.median(s.get(key, 0.0) for s in self.steps) for key in keys}
        return {
            "parts": {key: seconds * 1e3 for key, seconds in middle.items()},
            "page_faults": (minor_faults() - self.faults) / len(self.steps),
        }

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        kind = type(module).__name__
        if kind == "Ranker":
            self.embeddings = module.embeddings
            self._cut(INPUT, FORWARD)
        elif kind == "MultiGateMixture":
            self._cut(EMBEDDINGS, FORWARD)
            source = inputs[0] if isinstance(inputs[0], Tensor) else inputs[0][0]
            if source.requires_grad:
                source.register_hook(lambda _: self._cut(MIXTURE, BACKWARD))

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        kind = type(module).__name__
        if module is self.embeddings:
            self._cut(EMBEDDINGS, FORWARD)
        elif kind == "MultiGateMixture":
            self._cut(MIXTURE, FORWARD)
            if output.out_BGO.requires_grad:
                output.out_BGO.register_hook(lambda _: self._cut(TOWERS, BACKWARD))
        elif kind == "TaskTowers":
            self._cut(TOWERS, FORWARD)

    def _cut(self, part: str, direction: str) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        for key, spent in (
            (f"{part}|{direction}", now - self.last),
            (f"{part}|{PROCESSOR}", cpu - self.last_cpu),
        ):
            self.now[key] = self.now.get(key, 0.0) + spent
        self.last, self.last_cpu = now, cpu


class Operators:
    """Milliseconds a step of the operators that take longest, their callees left out.

    Args:
        steps: To look at; the profiler itself slows them down a little.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.left = steps, steps
        self.profile = profile(activities=[ProfilerActivity.CPU])
        self.profile.__enter__()

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        """See `Job`."""
        self.left -= 1
        if self.left > 0:
            return None
        self.profile.__exit__(None, None, None)
        events = self.profile.key_averages()
        slowest = sorted(events, key=lambda event: event.self_cpu_time_total, reverse=True)
        return {
            "operators": [
                {
                    "name": event.key,
                    "ms": event.self_cpu_time_total / 1e3 / self.steps,
                    "calls": event.count / self.steps,
                }
                for event in slowest[:OPERATORS_SHOWN]
            ]
        }


JOBS: dict[str, Callable[..., StepParts | Operators]] = {
    "parts": StepParts,
    "operators": Operators,
}

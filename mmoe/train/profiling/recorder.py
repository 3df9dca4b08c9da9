"""Records training steps with torch's profiler, the network's parts marked."""

from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks
from torch.profiler import ProfilerActivity, profile, record_function

from mmoe.mixture import MultiGateMixture
from mmoe.models.network import ImputationTowers
from mmoe.tasks import TaskTowers
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer
from mmoe.train.profiling.parts import EMBEDDINGS, EXPERTS, GATES, STEP, TOWERS, part
from mmoe.train.profiling.step_times import StepTimes, step_times


class StepRecorder:
    """Records whatever steps run between its construction and `stop`; changes no result.

    Args:
        cuda: Also record a GPU's kernels, for the trace.

    Example:
        >>> import torch
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

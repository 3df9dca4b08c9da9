"""Our side: the library's own `train_run`, from Parquet to updated weights, and what it took.

`python -m benchmarks.train.ours train …` is the command line until its first training step:
everything is `mmoe`'s own, except that what it reports progress to ends the process.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.train.worker import Job, PacedReporter, Pacer, minor_faults
from benchmarks.train.workloads import BATCH, Spec, raw_config
from mmoe.config import RunConfig, config_from_dict
from mmoe.config.loading import set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.models.build import build_ranker
from mmoe.train import fit
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.profiling import StepRecorder
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram


def run_ours(spec: Spec, pacer: Pacer) -> None:
    config = with_overrides(raw_config(spec.log, precision=spec.precision), spec.overrides)
    # Ranks beside the first report to nobody, but have to keep pace
    fit.SilentReporter = lambda: PacedReporter(pacer.stepped, pacer.started)
    fit.train_run(config, Path(spec.out), reporter=fit.SilentReporter())
    raise ValueError(f"{config.name}: training ended before it was told to")


def with_overrides(raw: dict, overrides: tuple[str, ...]) -> RunConfig:
    return config_from_dict(set_values(raw, overrides), origin="benchmarks.train")


class LogSteps:
    """A model in training; called, it takes a step for every `BATCH` rows of a log."""

    def __init__(self, config: RunConfig, log: pa.Table) -> None:
        encoder = FeatureEncoder.fit(config, log, "log")
        data = BatchSource.of_table(log, encoder, "log", config).held
        assert data is not None
        torch.manual_seed(0)
        ranker = build_ranker(config, encoder).train()
        optimizer = build_optimizer(ranker.network, config.training.optimizer)
        average = build_average(ranker.network, config.training.ema_decay)
        state = TrainingState(ranker, optimizer, average, Position())
        self.program = StepProgram(state, config, total_steps=1_000_000)
        starts = range(0, len(log), BATCH)
        self.batches = [data.batch(slice(start, start + BATCH)) for start in starts]

    def __call__(self) -> None:
        for batch in self.batches:
            self.program.train(Step.of([batch]))


# Where a step's time goes: the library's own recorder, run inside a contestant


class StepParts:
    """Milliseconds of every part and of the slowest operators, means over some steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.left = steps, steps
        self.faults = minor_faults()
        self.recorder = StepRecorder()
        self.recorder.begin_step()

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        self.recorder.end_step()
        self.left -= 1
        if self.left > 0:
            self.recorder.begin_step()
            return None
        faults = (minor_faults() - self.faults) / self.steps
        return {"step_times": asdict(self.recorder.stop()), "page_faults": faults}


# Inside a rank: when each collective was issued, and how long this rank stood still for it


NO_TIMEOUT = timedelta(0)  # but the group's
# What training sends with; whatever else a rank calls would be missing in the account
LOGGED = (
    "all_to_all_single", "all_reduce", "all_gather", "all_gather_into_tensor",
    "reduce_scatter_tensor", "broadcast", "barrier",
)  # fmt: skip
# Whose a collective is, by the module that called it; the first that fits
OWNERS = {
    "mmoe.parallel.experts.wire": "rows of experts",
    "mmoe.parallel.sums": "sums of gradients",
    "mmoe.embeddings": "rows of tables",
    "torchrec": "rows of tables",
    "mmoe.train": "losses and counts",
}


@dataclass
class Collective:
    """One collective of one rank; seconds of the machine's clock, which all processes share."""

    owner: str  # Whose it is
    key: str  # The same on every rank: its group, and the how manieth of it
    bytes: int  # Given to it here
    issued: float  # When this rank was there
    stood: float  # When this rank began to wait for the end of it
    ended: float  # When that was over; `stood` where nobody waited


class CollectiveSteps:
    """Logs the collectives of some steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.left = steps, steps
        self.seconds = 0.0
        self.found: list[Collective] = []
        self.counts: Counter[str] = Counter()
        self.originals = {name: getattr(dist, name) for name in LOGGED}
        for name, call in self.originals.items():
            setattr(dist, name, partial(self._logged, call))

    def add(self, rows: int, seconds: float) -> dict[str, Any] | None:
        self.left -= 1
        self.seconds += seconds
        if self.left > 0:
            return None
        for name, call in self.originals.items():
            setattr(dist, name, call)
        found = [asdict(collective) for collective in self.found]
        return {"steps": self.steps, "step_ms": self.seconds * 1e3 / self.steps, "found": found}

    def _logged(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group") or dist.group.WORLD
        name = getattr(group, "group_name", "")
        self.counts[name] += 1
        now = time.perf_counter()
        collective = Collective(
            _owner(), f"{name}:{self.counts[name]}", _bytes_given(args, kwargs), now, now, now
        )
        self.found.append(collective)
        work = call(*args, **kwargs)
        if kwargs.get("async_op"):
            return _Waited(work, collective)
        collective.ended = time.perf_counter()
        return work


class _Waited(dist.Work):
    """A collective under way; the first wait for it is logged. TorchRec looks at its type."""

    def __init__(self, work: dist.Work, collective: Collective) -> None:
        super().__init__()
        self._work, self._collective = work, collective

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        first = self._collective.ended == self._collective.issued
        started = time.perf_counter()
        done = self._work.wait(timeout)
        if first:
            self._collective.stood, self._collective.ended = started, time.perf_counter()
        return done

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def get_future(self) -> Any:
        return self._work.get_future()


def _owner() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for prefix, owner in OWNERS.items():
            if module.startswith(prefix):
                return owner
        frame = frame.f_back
    return "others"


def _bytes_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of the input: the last tensor, or list of tensors, that is given."""
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    return given[-1].numel() * given[-1].element_size() if given else 0


JOBS: dict[str, Callable[..., Job]] = {"parts": StepParts, "collectives": CollectiveSteps}


# The command line until its first training step


if __name__ == "__main__":
    import mmoe.cli
    import mmoe.cli.commands

    mmoe.cli.commands.reporter = lambda quiet: PacedReporter(lambda rows: os._exit(0))
    mmoe.cli.main()
    sys.exit("training ended without a step")

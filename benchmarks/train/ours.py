"""Our side: the library's own `train_run`, from Parquet to updated weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.train.configs import raw_config
from benchmarks.train.pacer import Pacer
from benchmarks.train.spec import Spec
from mmoe.config import RunConfig, config_from_dict
from mmoe.config.loading import set_values
from mmoe.train import train_run

EPOCH = "epoch"  # how the library's progress begins while it trains


class PacedReporter:
    """Hands every finished step to the pacer; the library reports each one as progress."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer

    def say(self, text: str) -> None:
        """Nothing."""

    @contextmanager
    def track(
        self, what: str, total: int | None, unit: str, *, done: int = 0
    ) -> Iterator["PacedTracker"]:
        """Validation and checkpoints lie between two epochs and are not counted."""
        training = what.startswith(EPOCH)
        if training:
            self.pacer.started()
        yield PacedTracker(self.pacer if training else None)


class PacedTracker:
    """Progress of one epoch, or of something that is not training."""

    def __init__(self, pacer: Pacer | None) -> None:
        self.pacer = pacer

    def advance(self, amount: int, note: str = "") -> None:
        """A step over `amount` rows is done."""
        if self.pacer is not None:
            self.pacer.stepped(amount)


def run_ours(spec: Spec, pacer: Pacer) -> None:
    """Trains until the pacer ends the process."""
    config = with_overrides(raw_config(spec.log, precision=spec.precision), spec.overrides)
    train_run(config, Path(spec.out), reporter=PacedReporter(pacer))
    raise ValueError(f"{config.name}: training ended before it was told to")


def with_overrides(raw: dict, overrides: tuple[str, ...]) -> RunConfig:
    """A checked config, changed as `--set` says."""
    return config_from_dict(set_values(raw, overrides), origin="benchmarks.train")

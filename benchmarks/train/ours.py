"""Our side: the library's own `train_run`, from Parquet to updated weights."""

from pathlib import Path

import pyarrow as pa
import torch

from benchmarks.train.pacer import PacedReporter, Pacer
from benchmarks.train.workloads import BATCH, Spec, raw_config
from mmoe.config import RunConfig, config_from_dict
from mmoe.config.loading import set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.models.build import build_ranker
from mmoe.train import fit
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram


def run_ours(spec: Spec, pacer: Pacer) -> None:
    """Trains until the pacer ends the process."""
    config = with_overrides(raw_config(spec.log, precision=spec.precision), spec.overrides)
    # Ranks beside the first report to nobody, but have to keep pace
    fit.SilentReporter = lambda: PacedReporter(pacer)
    fit.train_run(config, Path(spec.out), reporter=PacedReporter(pacer))
    raise ValueError(f"{config.name}: training ended before it was told to")


def with_overrides(raw: dict, overrides: tuple[str, ...]) -> RunConfig:
    """A checked config, changed as `--set` says."""
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
        """Takes the steps."""
        for batch in self.batches:
            self.program.train(Step.of([batch]))

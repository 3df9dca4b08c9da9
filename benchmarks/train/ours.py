"""Our side: the library's own `train_run`, from Parquet to updated weights."""

from pathlib import Path

from benchmarks.train.pacer import PacedReporter, Pacer
from benchmarks.train.workloads import Spec, raw_config
from mmoe.config import RunConfig, config_from_dict
from mmoe.config.loading import set_values
from mmoe.train import fit


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

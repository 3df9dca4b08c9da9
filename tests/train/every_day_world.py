"""One rank of a gloo world that continues yesterday's model; run by test_every_day_ranks.py.

FOLDER holds the configs. What the ranks make goes there too: runs, and for each case the state
before the first step as a checkpoint.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.config import config_from_dict, load_config, set_values
from mmoe.datasets.stream import StreamSplits
from mmoe.parallel import from_all
from mmoe.predictor import Predictor
from mmoe.run.folder_claim import is_lock_file
from mmoe.train import WarmStart, train_run
from mmoe.train.backtest import BacktestSettings, backtest
from mmoe.train.evaluate import predict_rows
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.step import StepProgram
from mmoe.train.warm_start import EarlierRun, transfer

WIDER = {
    "features": [{"kind": "numeric", "name": "row", "buckets": 3, "dim": 4}],
    "tasks": [{"name": "dear", "label": "price > 1"}],
}
BY_ROWS = "parallel.tables.sharding=row_wise"
# By name: settings, whether features and tasks are added (in front), and what new experts are
CASES = {
    "wider, spread": (["parallel.experts=spread", "model.num_experts=5", BY_ROWS], True, "fresh"),
    "copies, spread": (
        ["parallel.experts=spread", "model.num_experts=5", "parallel.tables.sharding=table_wise"],
        False,
        "copy",
    ),
    "one expert, spread": (
        ["parallel.experts=spread", "model.num_experts=1", "model.gate.k=1",
         "parallel.tables.sharding=data_parallel"], True, "fresh"),
    "half precision": (["parallel.tables.precision=fp16"], False, "fresh"),
}  # fmt: skip


def changed(config, settings, wider=False):
    raw = config.model_dump(mode="json", exclude_none=True)
    if wider:
        raw |= {section: [*new, *raw[section]] for section, new in WIDER.items()}
    return config_from_dict(set_values(raw, settings))


def begun(name, config, monday, folder):
    """Saves the state before the first step; the report, and rank 0's predictions of all ranks."""
    settings, wider, new_experts = CASES[name]
    config = changed(config, settings, wider)
    earlier = EarlierRun.open(monday)
    earlier.check(config)
    prepared = prepare(config, earlier=earlier.encoder)
    state = training_state(config, prepared)
    report = transfer(earlier, state, config, prepared.encoder, new_experts)
    with CheckpointSaver(CheckpointFolder(folder), background=False) as saver:
        state.save(saver, best=True)
    state.ranker.network = state.scoring_network
    predictions_NT, _ = predict_rows(Predictor(state.ranker, config), prepared.test)
    return asdict(report), predictions_NT


class StoppedAfter:
    """Ends training after so many steps, on every rank alike."""

    def __init__(self, steps):
        self.left, self.forward = steps, StepProgram.forward

    def __enter__(self):
        StepProgram.forward = lambda program, step: self.counted(program, step)

    def __exit__(self, kind, *_):
        StepProgram.forward = self.forward
        return kind is not None and issubclass(kind, KeyboardInterrupt)

    def counted(self, program, step):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.forward(program, step)


class FitsCounted:
    """How often this rank reads a stream to fit its encoder."""

    count, fit = 0, StreamSplits.fit

    def __enter__(self):
        def fit(splits, *options):
            self.count += 1
            return FitsCounted.fit(splits, *options)

        StreamSplits.fit = fit
        return self

    def __exit__(self, *_):
        StreamSplits.fit = FitsCounted.fit


def main(number, ranks, _, given):
    folder = Path(given)
    monday, tuesday = (load_config(folder / f"{day}.yaml") for day in ("monday", "tuesday"))
    with FitsCounted() as fits:
        train_run(monday, folder / "monday-2")
    reports = {"fits": from_all(fits.count)}
    for name in CASES:
        out = folder / f"{name}-2"
        reports[name], predictions_NT = begun(name, tuesday, folder / "monday-2", out)
        if number == 0:
            np.save(out / "predictions.npy", predictions_NT)
    warm = WarmStart(folder / "monday-2")
    train_run(tuesday, folder / "tuesday-2", warm_start=warm)
    with StoppedAfter(8):
        train_run(tuesday, folder / "stopped-2", warm_start=warm)
    try:
        mixed = WarmStart(warm.run, "copy" if number else "fresh")
        train_run(tuesday, folder / "mixed", warm_start=mixed)
    except ValueError as error:  # on every rank
        reports["mixed"] = str(error)
    days = load_config(folder / "days.yaml")
    settings = BacktestSettings(column="day", days=2)
    with StoppedAfter(10):
        backtest(days, folder / "days-2", settings)
    left = {path.name for path in (folder / "days-2").iterdir()}
    reports["stopped at"] = sorted(
        name for name in left if not is_lock_file(name)
    )  # rank 0's, which may still hold it
    reports["backtest"] = backtest(days, folder / "days-2", settings, resume=True)
    return reports

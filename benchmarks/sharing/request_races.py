"""Rows of requests: a training step and scoring over every row by itself, of one architecture."""

import io
from collections.abc import Callable
from itertools import cycle

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread
from benchmarks.sharing.bench import Bench
from benchmarks.sharing.request_log import CANDIDATES, RequestLog, draw_log, draw_table, nested
from benchmarks.train.workloads import BATCH
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.models.build import build_ranker
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import train_step

_BATCHES = 6  # trained on in turn, so that no step finds its rows of tables in the caches
_SCORED = 8  # batches of a scoring
_STORED = 200_000  # rows of the two files
WAYS = {"": False, "_exact": True}  # ending of keys → data.requests.exact
TRAIN_KEYS = tuple(f"request_train_gain{ending}" for ending in WAYS)
SCORE_KEYS = tuple(f"request_score_gain{ending}" for ending in WAYS)


def train_gains(bench: Bench) -> list[Result]:
    """A whole step: lookups, forward and backward pass, optimizers."""
    results = []
    for ending, exact in WAYS.items():
        log = draw_log(_BATCHES * BATCH, exact=exact)
        calls = {"alone": _steps(log, log.flat), "shared": _steps(log, log.data)}
        times = bench.clock.race(f"steps{ending}", calls, share=0.5)
        rate = BATCH / times.median("shared")
        note = f"{CANDIDATES} candidates a request, {rate:,.0f} rows/s"
        results.append(speedup(f"request_train_gain{ending}", times, "alone", "shared", note))
    return results


def score_gains(bench: Bench) -> list[Result]:
    """Encoded rows to predictions: batches cut, rows looked up, the network."""
    results = []
    for ending, exact in WAYS.items():
        log = draw_log(_SCORED * BATCH, exact=exact)
        predictor = Predictor(_ranker(log), log.config)
        rows = {"alone": BatchSource.of(log.flat), "shared": BatchSource.of(log.data)}
        found = {way: predictor.predict(source) for way, source in rows.items()}
        times = bench.clock.race(
            f"scores{ending}",
            {way: _scoring(predictor, source) for way, source in rows.items()},
            share=0.5,
        )
        rate = _SCORED * BATCH / times.median("shared")
        note = f"{CANDIDATES} candidates a request, {rate:,.0f} rows/s"
        results.append(speedup(f"request_score_gain{ending}", times, "alone", "shared", note))
        results.append(_equality(found["shared"], found["alone"], exact=exact))
    worst = min(
        result.spread.median for result in results if result.key.startswith("request_equal")
    )
    kept = [result for result in results if not result.key.startswith("request_equal")]
    return [*kept, Result(key="request_equal", spread=Spread(worst, worst, worst, 1), digits=0)]


def stored_bytes(bench: Bench) -> list[Result]:
    """The log as Parquet, nested over flat."""
    table = draw_table(_STORED, 0)
    sizes = []
    for one in (nested(table), table):
        buffer = io.BytesIO()
        pq.write_table(one, buffer)
        sizes.append(buffer.tell())
    share = sizes[0] / sizes[1]
    note = f"{sizes[0] / 2**20:.1f} MiB, flat {sizes[1] / 2**20:.1f}"
    return [Result(key="request_bytes", spread=Spread(share, share, share, 1), note=note)]


def _ranker(log: RequestLog) -> Ranker:
    torch.manual_seed(0)
    return build_ranker(log.config, log.encoder)


def _steps(log: RequestLog, data: EncodedData) -> Callable[[], None]:
    ranker = _ranker(log)
    optimizer = build_optimizer(ranker.network, log.config.training.optimizer)
    average = build_average(ranker.network, log.config.training.ema_decay)
    state = TrainingState(ranker, optimizer, average, Position())
    state.train_mode()
    batches = cycle(log.batches(data))

    def step() -> None:
        train_step(state, [next(batches)], log.config, 1_000)

    return step


def _scoring(predictor: Predictor, source: BatchSource) -> Callable[[], None]:
    def score() -> None:
        predictor.predict(source)

    return score


def _equality(shared: np.ndarray, alone: np.ndarray, *, exact: bool) -> Result:
    worst = float(np.abs(shared - alone).max())
    equal = bool(np.array_equal(shared, alone)) if exact else worst <= 1e-6
    spread = Spread(float(equal), float(equal), float(equal), 1)
    return Result(key=f"request_equal{'_exact' if exact else ''}", spread=spread, note=f"{worst:g}")


RACES = (
    Race(TRAIN_KEYS, train_gains),
    Race((*SCORE_KEYS, "request_equal"), score_gains),
    Race(("request_bytes",), stored_bytes),
)

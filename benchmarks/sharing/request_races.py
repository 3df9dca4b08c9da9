"""Rows of requests: a training step and scoring over every row by itself, of one architecture."""

import io
from collections.abc import Callable
from itertools import cycle

import numpy as np
import pyarrow as pa
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
from mmoe.parallel import ensure_process_group
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
    equal = Result(key="request_equal", spread=Spread(worst, worst, worst, 1), digits=0)
    return [*kept, equal, *stored_bytes()]


def stored_bytes() -> list[Result]:
    """The log as Parquet, nested over flat; flat candidates side by side, and as logs mix them."""
    table = draw_table(_STORED, 0)
    mixed = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
    own = _bytes(nested(table))
    results = []
    for ending, flat in (("", table), ("_mixed", mixed)):
        share = own / _bytes(flat)
        note = f"{own / 2**20:.1f} MiB, flat {_bytes(flat) / 2**20:.1f}"
        spread = Spread(share, share, share, 1)
        results.append(Result(key=f"request_bytes{ending}", spread=spread, note=note))
    return results


def _bytes(table: pa.Table) -> int:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.tell()


def _ranker(log: RequestLog) -> Ranker:
    ensure_process_group()
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
)

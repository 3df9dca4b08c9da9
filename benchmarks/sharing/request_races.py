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
from benchmarks.sharing.request_log import (
    CANDIDATES,
    RequestLog,
    draw_log,
    draw_table,
    request_columns,
)
from benchmarks.train.workloads import BATCH
from mmoe.datasets.files.nested import nested
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
    results, equal = [], True
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
        equal &= _equal(found["shared"], found["alone"], exact=exact)
    share = float(equal)
    spread = Spread(share, share, share, 1)
    return [*results, Result(key="request_equal", spread=spread, digits=0), *stored_bytes()]


def stored_bytes() -> list[Result]:
    """The log as Parquet, nested over flat; flat candidates side by side, and as logs mix them."""
    table = draw_table(_STORED)
    mixed = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
    own = _bytes(nested(table, "request", sorted(request_columns()), "items"))
    results = []
    for ending, flat in (("", _bytes(table)), ("_mixed", _bytes(mixed))):
        share = own / flat
        note = f"{own / 2**20:.1f} MiB, flat {flat / 2**20:.1f}"
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


def _equal(shared: np.ndarray, alone: np.ndarray, *, exact: bool) -> bool:
    return np.array_equal(shared, alone) if exact else bool(np.abs(shared - alone).max() <= 1e-6)


RACES = (
    Race(TRAIN_KEYS, train_gains),
    Race((*SCORE_KEYS, "request_equal"), score_gains),
)

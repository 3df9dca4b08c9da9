"""late_labels: purchases that come days after the click, trained on the log as it is today."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.inputs.section import Measured, Section
from benchmarks.inputs.training import log_loss, predictions
from benchmarks.racing.results import Target
from mmoe.datasets.rows.splits import Splits
from mmoe.metrics.calibration import expected_calibration_error

_DAYS, _AFTER = 30, 7  # of the log, and the days after it that are predicted
_WINDOW = 7  # a purchase counts within so many days of the click
_ROWS_A_DAY = 3_000
_ITEMS_A_DAY, _LIFE = 4, 90  # items launched a day, each sold for so many days
_SEGMENTS = 60
# Days to a purchase are log-normal, cut off at the window. Criteo's conversions come half within a
# day, with a tail of weeks (Chapelle, KDD 2014)
_MEDIAN, _SIGMA = 1.5, 1.3
_START = np.datetime64("2024-01-01", "us")
_DAY = 86_400e6  # microseconds

_ROADS: Mapping[str, Mapping[str, Any]] = {
    "as logged": {},
    "masked": {"matures_after": f"{_WINDOW}d"},
    "weighted": {
        "matures_after": f"{_WINDOW}d",
        "immature": "weight",
        "happened_at": "bought_at",
    },
}


@dataclass(frozen=True)
class _World:
    """One log of clicks.

    Attributes:
        log: As it is at the end of day 30: purchases that had come by then.
        after: Clicks of the following days, likewise (nearly none has come).
        truth_N: P(purchase within the window) of these.
        bought_N: Whether it came, once all labels are mature.
    """

    log: pa.Table
    after: pa.Table
    truth_N: np.ndarray
    bought_N: np.ndarray


def _world(seed: int) -> _World:
    rng = np.random.default_rng(1_000 + seed)
    rows = _ROWS_A_DAY * (_DAYS + _AFTER)
    day_N = np.sort(rng.random(rows)) * (_DAYS + _AFTER)
    # The newest item of a row's day, or one of those before it that are still shown
    newest_N = (day_N + _LIFE) * _ITEMS_A_DAY
    item_N = (newest_N - rng.random(rows) * _LIFE * _ITEMS_A_DAY).astype(np.int64)
    segment_N = rng.integers(0, _SEGMENTS, rows)
    price_N = np.exp(rng.normal(3, 0.8, rows))
    items = (_DAYS + _AFTER + _LIFE) * _ITEMS_A_DAY + 1
    logit_N = (
        rng.normal(0, 0.6, items)[item_N]
        + rng.normal(0, 0.5, _SEGMENTS)[segment_N]
        - 0.4 * (np.log(price_N) - 3)
    )
    cart_N = rng.random(rows) < _sigmoid(logit_N - 1.0)
    truth_N = _sigmoid(logit_N - 2.2)
    bought_N = rng.random(rows) < truth_N
    # Of purchases that count, within the window
    delay_N = _MEDIAN * np.exp(_SIGMA * rng.normal(size=rows))
    while (late_N := delay_N > _WINDOW).any():
        delay_N[late_N] = _MEDIAN * np.exp(_SIGMA * rng.normal(size=int(late_N.sum())))
    come_N = bought_N & (day_N + delay_N <= _DAYS)
    at_N = _START + (day_N * _DAY).astype(np.int64)
    happened_N = _START + ((day_N + delay_N) * _DAY).astype(np.int64)
    table = pa.table(
        {
            "clicked_at": at_N,
            "item": item_N,
            "segment": segment_N,
            "price": price_N,
            "cart": cart_N.astype(np.int8),
            "buy": come_N.astype(np.int8),
            "bought_at": pa.array(happened_N, mask=~come_N),
        }
    )
    logged = int((day_N < _DAYS).sum())
    return _World(table[:logged], table[logged:], truth_N[logged:], bought_N[logged:])


def _sigmoid(logit_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit_N))


def _config(road: Mapping[str, Any]) -> dict[str, Any]:
    end = str(_START + np.timedelta64(_DAYS, "D"))
    time = {"time": {"column": "clicked_at", "as_of": end}} if road else {}
    return {
        "name": "late-labels",
        "data": time,
        "features": [
            {"kind": "categorical", "name": "item", "min_count": 20},
            {"kind": "categorical", "name": "segment"},
            {"kind": "numeric", "name": "price", "log": True},
        ],
        "tasks": [{"name": "cart", "label": "cart"}, {"name": "buy", "label": "buy", **road}],
        "model": {"num_experts": 4, "expert": {"hidden": [64, 32]}, "tower": {"hidden": [16]}},
        "training": {"epochs": 3, "batch_size": 1024, "monitor": "mean.logloss"},
    }


def _splits(world: _World, seed: int) -> Splits:
    """Validation is a random share: the newest rows have no mature label."""
    order = np.random.default_rng(seed).permutation(len(world.log))
    stop = len(order) // 10
    return Splits(
        train=world.log.take(np.sort(order[stop:])),
        validation=world.log.take(np.sort(order[:stop])),
        test=world.after,
    )


def _judged(world: _World, predicted_N: np.ndarray) -> dict[str, float]:
    """How far the mean prediction is off, ECE and log-loss, all on mature labels."""
    return {
        "off": abs(float(predicted_N.mean() / world.bought_N.mean()) - 1),
        "ratio": float(predicted_N.mean() / world.bought_N.mean()),
        "ece": expected_calibration_error(world.bought_N.astype(float), predicted_N),
        "logloss": log_loss(world.truth_N, predicted_N),
    }


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Trains on the log as of day 30 in each way, and judges days 31 to 37 by their final labels.

    `delayed_gain` is the mean of |mean prediction / mean label − 1| as logged over that with masked
    labels. Labels that are not there yet make all predictions too low by one factor, which this
    ratio measures, and which bids and budgets pay for; ECE, beside it, has a floor of chance in
    each of its bins.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*_ROADS, "oracle")}
    for seed in seeds:
        world = _world(seed)
        splits = _splits(world, seed)
        for name, road in _ROADS.items():
            predicted_N = predictions(_config(road), splits, seed)["buy"]
            found[name].append(_judged(world, predicted_N))
        found["oracle"].append(_judged(world, world.truth_N))
        say(f"seed {seed}: " + ", ".join(f"{n} {v[-1]['ratio']:.3f}" for n, v in found.items()))
    off = {name: float(np.mean([one["off"] for one in values])) for name, values in found.items()}
    details = {
        name: {key: [round(one[key], 5) for one in values] for key in values[0]}
        for name, values in found.items()
    }
    gains = {
        "delayed_gain": off["as logged"] / off["masked"],
        "delayed_gain_weighted": off["as logged"] / off["weighted"],
    }
    return Measured(values=gains, details=details)


SECTION = Section(
    name="late_labels",
    targets={"delayed_gain": Target(2.0), "delayed_gain_weighted": None},
    measure=measure,
)

"""Columns that were constant or empty in training and hold other values when rows are scored.

A log with a column of every kind that never varies beside three that tell clicks; whatever those
columns hold later, scores have to be the ones that they were.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mmoe
from benchmarks.inputs.section import Measured
from benchmarks.racing.harness import Target
from mmoe.config import config_from_dict
from mmoe.run.console import SilentReporter
from mmoe.train import train_run

TARGETS: dict[str, Target | None] = {"alive_column_shift": Target(0.0, at_most=True)}
ROWS, SCORED = 4_000, 256
START = datetime(2024, 2, 1, tzinfo=UTC)
FEATURES: list[dict[str, Any]] = [
    {"kind": "categorical", "name": "item"},
    {"kind": "numeric", "name": "price", "buckets": 8, "pieces": 8},
    {"kind": "datetime", "name": "at", "parts": ["month", "hour"], "cyclic": True},
    {"kind": "numeric", "name": "flat"},
    {"kind": "numeric", "name": "flat_log", "column": "flat", "log": True, "buckets": 4},
    {"kind": "numeric", "name": "flat_keep", "column": "flat", "outside": "keep", "pieces": 4},
    {"kind": "numeric", "name": "flat_raw", "column": "flat", "standardise": False},
    {"kind": "numeric", "name": "empty", "buckets": 4, "pieces": 4},
    {"kind": "categorical", "name": "market"},
    {"kind": "categorical", "name": "hashed", "column": "market", "encoding": "hash",
     "hash_size": 100},
    {"kind": "categorical", "name": "no_id"},
    {"kind": "cross", "name": "by_item", "columns": ["market", "item"]},
    {"kind": "cross", "name": "by_nothing", "columns": ["no_id", "item"]},
    {"kind": "list", "name": "tags"},
    {"kind": "list", "name": "weighted", "weights": "weight", "pooling": "sum"},
    {"kind": "vector", "name": "title", "dim": 4},
    {"kind": "sequence", "name": "seen", "columns": ["history"], "times": "history_at"},
]  # fmt: skip


def log_of(rows: int, draw: np.random.Generator) -> pa.Table:
    """Returns a log whose clicks depend on item, price and hour."""
    item_N, price_N = draw.integers(0, 30, rows), draw.gamma(2.0, 10.0, rows)
    hour_N = draw.integers(0, 24, rows)
    logit_N = np.sin(item_N) + 0.03 * (price_N - 20) + 0.5 * np.cos(hour_N / 4)
    return pa.table(
        {
            "item": item_N,
            "price": price_N,
            "at": [START + timedelta(hours=int(h)) for h in hour_N],
            "flat": np.full(rows, 7.0),
            "empty": pa.nulls(rows, pa.float64()),
            "market": ["de"] * rows,
            "no_id": pa.nulls(rows, pa.string()),
            "tags": [["a", "b"]] * rows,
            "weighted": [["a"] * int(1 + n % 2) for n in item_N],
            "weight": [[2.0] * int(1 + n % 2) for n in item_N],
            "title": [[1.0, 0.0, float(n % 5)] for n in item_N],
            "history": [[7, 8]] * rows,
            "history_at": [[0, 5]] * rows,
            "click": (draw.random(rows) < 1 / (1 + np.exp(-logit_N))).astype(float),
        }
    )


def alive(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yields the table with each column that never varied as something else."""
    rows = table.num_rows

    def put(**cells: Any) -> pa.Table:
        columns = {name: table[name] for name in table.column_names}
        return pa.table({**columns, **cells})

    for value in (-1e6, 0.0, 7.5, 1e6):
        yield f"flat {value:g}", put(flat=np.full(rows, value))
        yield f"empty {value:g}", put(empty=np.full(rows, value))
    yield "flat missing", put(flat=pa.nulls(rows, pa.float64()))
    for value in ("fr", None, "1e6"):
        yield f"market {value}", put(market=pa.array([value] * rows, pa.string()))
        yield f"no_id {value}", put(no_id=pa.array([value] * rows, pa.string()))
    for value in (["c"], [], ["a"] * 40):
        yield f"tags {value[:1]}", put(tags=[value] * rows)
    weights = [[1e6] * len(one) for one in table["weight"].to_pylist()]
    yield "weight 1e6", put(weight=weights)
    titles = [[1e6, -1e6, one[2]] for one in table["title"].to_pylist()]
    yield "title ±1e6", put(title=titles)
    yield "history", put(history=[[9] * 5] * rows, history_at=[[0, 1, 2, 1000, 1000000]] * rows)
    months = [at.replace(month=9) for at in table["at"].to_pylist()]
    yield "month", put(at=months)


def _shifts(seed: int, streamed: bool, folder: Path) -> dict[str, float]:
    draw = np.random.default_rng([seed, 36])
    pq.write_table(log_of(ROWS, draw), folder / "log.parquet", row_group_size=1000)
    raw = {
        "name": "alive",
        "seed": seed,
        "data": {"path": str(folder / "log.parquet"), "input": "stream" if streamed else "memory"},
        "features": FEATURES,
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 3, "expert": {"hidden": [16]}, "wide": True},
        "training": {"epochs": 2, "batch_size": 256},
    }
    run = train_run(config_from_dict(raw), folder / "run", reporter=SilentReporter()).directory
    loaded = mmoe.load(run.path)
    rows = log_of(SCORED, draw)
    before = loaded.predict(rows)["pred_click"].to_numpy()
    found = {}
    for name, table in alive(rows):
        whole = loaded.predict(table)["pred_click"].to_numpy()
        [one] = loaded.predict(table.slice(3, 1))["pred_click"].to_pylist()
        found[name] = max(float(np.abs(whole - before).max()), abs(one - float(before[3])))
    return found


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Trains in memory and streamed, for the first three seeds."""
    worst: dict[str, float] = {}
    for seed in [*seeds][:3]:
        for streamed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found = _shifts(seed, streamed, Path(folder))
            name = max(found, key=lambda one: found[one])
            road = "streamed" if streamed else "in memory"
            say(f"seed {seed}, {road}: {found[name]:.2g} ({name})")
            worst = {key: max(value, worst.get(key, 0.0)) for key, value in found.items()}
    return Measured({"alive_column_shift": max(worst.values())}, {"by_column": worst})

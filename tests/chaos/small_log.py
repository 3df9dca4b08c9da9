"""A small invented log with every kind of column, and a config that trains on it in a moment."""

from typing import Any

import numpy as np
import pyarrow as pa

SECONDS_A_DAY = 86_400
START = 1_700_000_000  # seconds since 1970


def small_log(rows: int, seed: int) -> pa.Table:
    """user, item, history (a list), price (with gaps), time, note (unused), click, buy.

    The note comes from no feature. A purchase is known after a click alone; both depend on the
    item and the price, so that there is something to learn.
    """
    draw = np.random.default_rng(seed)
    item = draw.integers(0, 30, rows)
    price = np.round(draw.lognormal(1.0, 0.7, rows), 2)
    lengths = draw.integers(0, 5, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = draw.integers(0, 30, offsets[-1])
    click = draw.random(rows) < np.where(item % 3 == 0, 0.6, 0.3)
    buy = draw.random(rows) < np.where(price < 3, 0.6, 0.3)
    return pa.table({
        "user": pa.array(draw.integers(1, 400, rows)), "item": pa.array([f"i{n}" for n in item]),
        "history": pa.ListArray.from_arrays(pa.array(offsets), pa.array(history)),
        "price": pa.array(price, mask=draw.random(rows) < 0.1),
        "time": pa.array(START + np.sort(draw.integers(0, 20 * SECONDS_A_DAY, rows))),
        "note": pa.array([f"row {n}" for n in range(rows)]),
        "click": pa.array(click.astype(np.int64)),
        "buy": pa.array(buy.astype(np.int64), mask=~click),
    })  # fmt: skip


def small_config(path: str, **training: Any) -> dict[str, Any]:
    """A raw config: hashed and counted ids, a list, a number with buckets, two tasks."""
    return {
        "name": "small", "seed": 3, "data": {"path": path, "split": {"by": "random"}},
        "features": [
            {"kind": "categorical", "name": "user", "encoding": "hash", "hash_size": 64},
            {"kind": "categorical", "name": "item", "min_count": 2},
            {"kind": "list", "name": "history", "max_length": 4},
            {"kind": "numeric", "name": "price", "log": True, "buckets": 4},
        ],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "observed_when": "click"},
        ],
        "model": {
            "kind": "mmoe", "embedding_dim": 4, "num_experts": 3, "expert": {"hidden": [8]},
            "tower": {"hidden": [4]},
        },
        "training": {"epochs": 1, "batch_size": 64, "eval_batch_size": 64, **training},
    }  # fmt: skip

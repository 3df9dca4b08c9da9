"""A generated log with a label for every kind of task, all of one hidden quality of its rows."""

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.splits import Splits

GENRES = ["drama", "news", "music"]

# By kind: the section of a task on the log
TASKS = {
    "binary": {"label": "watch > 0"},
    "regression": {"label": "score"},
    "huber": {"label": "score", "delta": 0.5},
    "watch_time": {"label": "watch", "weight": 0.1, "negatives": "all"},
    "ziln": {"label": "spend"},
    "multiclass": {"label": "genre", "classes": GENRES},
    "d2q": {"label": "watch", "duration": "duration", "groups": 5, "observed_when": "watch > 0"},
    "ordinal": {"label": "stars", "lowest": 1, "highest": 5},
}
NEW = [kind for kind in TASKS if kind not in ("binary", "regression")]


def kinds_log(rows: int = 3000, seed: int = 0) -> pa.Table:
    """Users and items of a quality each, a number, a duration, and labels."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 40, rows), rng.integers(0, 30, rows)
    x, duration = rng.normal(size=rows), rng.choice([15.0, 60.0, 300.0], rows)
    of_user, of_item = rng.normal(size=40), rng.normal(size=30)
    z = of_user[users] + of_item[items] + 0.7 * x
    watched = rng.random(rows) < 1 / (1 + np.exp(1.5 - z))
    watch = duration * np.exp(0.5 * z - 2 + 0.3 * rng.normal(size=rows))
    paid = rng.random(rows) < 1 / (1 + np.exp(0.5 - z))
    spend = np.exp(1 + 0.5 * z + 0.4 * rng.normal(size=rows))
    outliers = np.where(rng.random(rows) < 0.03, 15.0, 0)
    genre = np.digitize(z + 0.5 * rng.normal(size=rows), [-1, 1])
    stars = np.digitize(z + 0.5 * rng.normal(size=rows), [-2, -0.7, 0.7, 2]) + 1
    return pa.table({
        "user": users, "item": items, "x": x, "duration": duration,
        "watch": np.where(watched, watch, 0.0), "spend": np.where(paid, spend, 0.0),
        "score": z + 0.3 * rng.normal(size=rows) + outliers,
        "genre": pa.array(np.array(GENRES)[genre]), "stars": stars,
    })  # fmt: skip


def kinds_splits(rows: int = 3000) -> Splits:
    """The first four fifths train; a tenth each to validate and to test."""
    log, first, second = kinds_log(rows), rows * 8 // 10, rows * 9 // 10
    parts = {"train": log[:first], "validation": log[first:second], "test": log[second:]}
    return Splits(**parts, origin="log")


def raw_config(kinds: list[str], **training) -> dict:
    """A small config with a task of each kind, called as its kind."""
    tasks = [{"name": kind, "kind": kind, **TASKS[kind]} for kind in kinds]
    return {
        "features": [
            {"kind": "categorical", "name": "user"},
            {"kind": "categorical", "name": "item"},
            {"kind": "numeric", "name": "x"},
        ],
        "tasks": tasks,
        "model": {
            "num_experts": 2,
            "embedding_dim": 4,
            "expert": {"hidden": [16]},
            "tower": {"hidden": [8]},
        },
        "training": {
            "epochs": 3,
            "batch_size": 128,
            "eval_batch_size": 256,
            "optimizer": {"learning_rate": 0.01},
            "monitor": f"{kinds[0]}.{MONITORS[kinds[0]]}",
            "embedding_backend": "plain",
            **training,
        },
    }


MONITORS = {
    "binary": "auc",
    "regression": "rmse",
    "huber": "mae",
    "watch_time": "rmse",
    "ziln": "gini",
    "multiclass": "logloss",
    "ordinal": "rmse",
    "d2q": "mae",
}

"""A log, and a config for each kind of input, interaction, expert, gate's pool, task and relation.

What all of them have to hold is in test_every_kind.py; what is special to one is where it is.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.same_bits import kinds
from benchmarks.same_bits.kinds import CLICK, ENCODERS, GIVEN_CLICK, MLPS
from mmoe.config import MODELS
from mmoe.datasets.rows.splits import Splits
from tests.models.interactions import frozen_modules

# What only a config decides, as the benchmark of equal bits has it, and what is tried here alone
SHARED = (
    "plain",
    *(f"sequence {encoder}" for encoder in ENCODERS), "sequence unpooled",
    "vectors trained", "vectors frozen",
    *(f"experts {kind}" for kind in ("dcn_v2", "fm", "deepfm", "masknet", "autoint")),
    "experts of three kinds",
    *(f"interaction {kind}" for kind in ("dcn_v2", "fm", "deepfm", "masknet", "autoint")),
    "bias dropped", "bias fixed",
    "huber", "watch_time", "ziln", "d2q", "multiclass", "ordinal", "bpr", "softmax", "jrc",
    "entire space", "ips and dbmtl", "dr and aitm", "aitm", "dbmtl",
    "late labels", "late labels weighted",
)  # fmt: skip
SERIAL = {"kind": "masknet", "arrangement": "serial", "dim": 8, "mask_hidden": 12}
FROZEN = {"kind": "frozen", "module": f"{frozen_modules.__name__}:make_eight", "output": 8}
UNWATCHED = {"name": "found", "label": "seconds / 10", "kind": "watch_time",
             "negatives": "unwatched"}  # fmt: skip
KINDS = {name: kinds.KINDS[name] for name in SHARED} | {
    "experts masknet, serial": {"model": {"experts": [MLPS, {**SERIAL, "count": 2, "output": 8}]}},
    "experts frozen": {"model": {"experts": [MLPS, {**FROZEN, "count": 2}]}},
    "interaction masknet, serial": {"model": {"interaction": SERIAL, "embedding_dim": 8}},
    "watch_time, unwatched": {"tasks": [CLICK, UNWATCHED]},
}


def _log(rows=900):
    """People click what is of a group that they have seen, and buy some of it."""
    rng = np.random.default_rng(7)
    group_of = rng.integers(0, 4, 30)
    item = rng.integers(0, 30, rows)
    seen = [rng.integers(0, 30, n) for n in rng.integers(0, 9, rows)]
    pairs = zip(seen, item, strict=True)
    alike = np.array([(group_of[s] == group_of[i]).mean() if len(s) else 0.0 for s, i in pairs])
    click = rng.random(rows) < 1 / (1 + np.exp(2 - 6 * alike))
    duration = rng.uniform(20, 200, rows)
    minutes = rng.integers(0, 30 * 24 * 60, rows).astype("timedelta64[m]")
    at = np.datetime64("2024-03-01T00:00:00", "s") + minutes
    buy = click & (rng.random(rows) < 0.5)
    hours = rng.exponential(24, rows).astype("timedelta64[h]")
    return pa.table(
        {
            "item": item,
            "group": group_of[item],
            "price": rng.normal(size=rows),
            "seen_items": [s.tolist() for s in seen],
            "seen_groups": [group_of[s].tolist() for s in seen],
            "seen_times": [np.sort(rng.integers(0, 10**6, len(s))).tolist() for s in seen],
            "click": click.astype(np.int64),
            "buy": buy.astype(np.int64),
            "bought_at": pa.array(at + hours, mask=~buy),
            "seconds": click * duration * rng.uniform(0.1, 1, rows),
            "duration": duration,
            "stars": 1 + rng.binomial(4, 0.2 + 0.6 * alike),
            "position": rng.integers(1, 6, rows),
            "session": np.arange(rows) // 6,
            "vector": np.stack([alike, duration / 100, click], 1).tolist(),
            "at": at,
        }
    )


LOG = _log()
SPLITS = Splits(train=LOG[:600], validation=LOG[600:700], test=LOG[700:], origin="log")


def raw_config(kind, folder: Path, **training):
    """A config of this kind; what it reads beside the log is written into `folder`."""
    ids = [{"kind": "categorical", "name": name, "dim": 8} for name in ("item", "group")]
    model = {
        "num_experts": 3,
        "gate": {"kind": "top_k", "k": 2},
        "expert": {"hidden": [8]},
        "tower": {"hidden": [4]},
        **kind.get("model", {}),
    }
    if "experts" in model:  # the pool says it
        del model["num_experts"], model["expert"]
    for key in model.keys() - MODELS.config_class(model.get("kind", "mmoe")).model_fields.keys():
        del model[key]
    raw = {
        "data": kind.get("data", {}),
        "features": [*ids, {"kind": "numeric", "name": "price"}, *kind.get("features", [])],
        "tasks": kind.get("tasks", [CLICK, GIVEN_CLICK]),
        "model": model,
        "training": {
            "epochs": 2,
            "batch_size": 100,
            "checkpoint_every_steps": 4,
            "monitor": "click.auc",
            "optimizer": {"learning_rate": 0.01},
            "embedding_optimizer": {"learning_rate": 0.1},
            **training,
        },
        "seed": 3,
    }
    text = json.dumps(raw)
    if "FOLDER" in text:
        vectors = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
        rows = {"item": np.arange(30), "vector": list(vectors)}
        pq.write_table(pa.table(rows), folder / "vectors.parquet")
    return json.loads(text.replace("FOLDER", str(folder)))

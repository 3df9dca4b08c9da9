"""A log, and a config for each kind of input, interaction, expert, gate's pool, task and relation.

What all of them have to hold is in test_every_kind.py; what is special to one is where it is.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.config import MODELS
from mmoe.datasets.rows.splits import Splits
from tests.models.interactions import frozen_modules

SEQUENCE = {
    "kind": "sequence", "name": "seen", "columns": ["seen_items", "seen_groups"],
    "times": "seen_times", "target": ["item", "group"], "max_length": 6,
}  # fmt: skip
CLICK, BUY = {"name": "click", "label": "click"}, {"name": "buy", "label": "buy"}
GIVEN_CLICK = {**BUY, "observed_when": "click"}
ENTIRE = {**BUY, "kind": "entire_space", "after": "click"}
MLPS = {"kind": "mlp", "count": 2, "hidden": [8]}
PLACE = {"kind": "categorical", "name": "position", "dim": 4}


def _experts(**kind):
    return {"model": {"experts": [MLPS, {**kind, "count": 2}], "num_experts": None}}


def _before(**kind):
    return {"model": {"interaction": kind, "embedding_dim": 8}}


def _task(kind, label, **keys):
    return {"tasks": [CLICK, {"name": "found", "label": label, "kind": kind, **keys}]}


def _compared(kind, **keys):
    compared = {"data": {"group_column": "session"}, "streamed": False}
    return {**_task(kind, "click", **keys), **compared}


def _biased(**keys):
    bias = {"features": ["position"], "dropout": 0.0, **keys}
    return {"features": [PLACE], "model": {"bias": bias}}


# Kind → sections of the config that differ from `raw_config`'s; `streamed`: can its rows be?
KINDS = {
    "plain": {},
    **{
        f"sequence, {encoder}": {"features": [{**SEQUENCE, "encoder": encoder}]}
        for encoder in ("mean", "din", "transformer", "gru")
    },
    "sequence, unpooled": {"features": [{**SEQUENCE, "unpooled": 2}]},
    "table of vectors, trained": {
        "features": [
            {"kind": "categorical", "name": "text", "column": "item",
             "vectors": {"path": "FOLDER/vectors.parquet", "id": "item", "frozen": False}}
        ]
    },
    "sequence, two blocks": {
        "features": [{**SEQUENCE, "encoder": {"kind": "transformer", "layers": 2}}]
    },
    "table of vectors": {
        "features": [
            {"kind": "categorical", "name": "text", "column": "item",
             "vectors": {"path": "FOLDER/vectors.parquet", "id": "item", "frozen": True}}
        ]
    },
    "expert dcn_v2": _experts(kind="dcn_v2", rank=3, output=8),
    "expert fm": _experts(kind="fm", factors=4, output=8),
    "expert deepfm": _experts(kind="deepfm", factors=4, hidden=[8], output=8),
    "expert masknet": _experts(kind="masknet", dim=8, mask_hidden=12, output=8),
    "expert masknet, serial": _experts(
        kind="masknet", arrangement="serial", dim=8, mask_hidden=12, output=8
    ),
    "expert autoint": _experts(kind="autoint", fields=4, field_dim=4, head_dim=4, output=8),
    "expert frozen": _experts(
        kind="frozen", module=f"{frozen_modules.__name__}:make_eight", output=8
    ),
    "pool of three kinds": {
        "model": {
            "experts": [
                MLPS,
                {"kind": "dcn_v2", "count": 1, "rank": 3, "output": 8},
                {"kind": "fm", "count": 1, "factors": 4, "output": 8},
            ],
            "num_experts": None,
        }
    },
    "dcn_v2 before": _before(kind="dcn_v2"),
    "fm before": _before(kind="fm"),
    "deepfm before": _before(kind="deepfm", hidden=[8]),
    "masknet before": _before(kind="masknet", dim=8, mask_hidden=12),
    "masknet before, serial": _before(
        kind="masknet", arrangement="serial", dim=8, mask_hidden=12
    ),
    "autoint before": _before(kind="autoint", head_dim=4),
    "bias, dropped": _biased(),
    "bias, fixed": _biased(scoring="fixed", at={"position": 1}),
    "huber": _task("huber", "seconds / 10"),
    "watch_time": _task("watch_time", "seconds / 10"),
    "watch_time, unwatched": _task("watch_time", "seconds / 10", negatives="unwatched"),
    "ziln": _task("ziln", "seconds / 10"),
    "d2q": _task("d2q", "seconds", duration="duration", groups=3, observed_when="click"),
    "multiclass": _task("multiclass", "group", classes=[0, 1, 2, 3]),
    "ordinal": _task("ordinal", "stars", lowest=1, highest=5),
    # With a pointwise part: alone they have no gradient of a shift, which Adam makes of roundings
    "bpr": _compared("bpr", pointwise_weight=0.3),
    "softmax": _compared("softmax", pointwise_weight=0.3),
    "jrc": _compared("jrc"),
    "entire space": {"tasks": [CLICK, ENTIRE]},
    "ips and dbmtl": {
        "tasks": [CLICK, {**ENTIRE, "counterfactual": "ips"}], "model": {"transfer": "dbmtl"}
    },
    "dr and aitm": {
        "tasks": [CLICK, {**ENTIRE, "counterfactual": "dr"}], "model": {"transfer": "aitm"}
    },
    "aitm": {"tasks": [CLICK, {**BUY, "after": "click"}], "model": {"transfer": "aitm"}},
    "dbmtl": {"tasks": [CLICK, {**BUY, "after": "click"}], "model": {"transfer": "dbmtl"}},
    "late labels, weighted": {
        "data": {"time": {"column": "at"}},
        "tasks": [
            CLICK,
            {**BUY, "matures_after": "3d", "immature": "weight", "happened_at": "bought_at"},
        ],
    },
    "late labels": {
        "data": {"time": {"column": "at"}},
        "tasks": [CLICK, {**GIVEN_CLICK, "matures_after": "3d"}],
    },
}  # fmt: skip


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
    if model["num_experts"] is None:  # the pool says it
        del model["num_experts"], model["expert"]
    for key in MODELS.config_class(model.get("kind", "mmoe")).unused & model.keys():
        del model[key]
    raw = {
        "data": kind.get("data", {}),
        "features": [*ids, {"kind": "numeric", "name": "price"}, *kind.get("features", [])],
        "tasks": kind.get("tasks", [CLICK, GIVEN_CLICK]),
        "model": model,
        "training": {
            "epochs": 2,
            "batch_size": 64,
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

"""A small log of requests with every kind of feature on both levels, and a model of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.models.build import build_ranker
from mmoe.models.network import NetworkOutput
from mmoe.models.ranker import Ranker

ROWS, REQUESTS = 40, 7
FEATURES: list[dict[str, Any]] = [
    {"kind": "categorical", "name": "item", "dim": 4},
    {"kind": "categorical", "name": "user", "dim": 8, "level": "request"},
    {"kind": "numeric", "name": "age", "level": "request", "pieces": 3, "buckets": 3},
    {"kind": "numeric", "name": "price", "pieces": 4},
    {"kind": "numeric", "name": "position"},
    {"kind": "list", "name": "likes", "level": "request"},
    {"kind": "list", "name": "tags"},
    {"kind": "vector", "name": "taste", "dim": 2, "level": "request"},
    {"kind": "vector", "name": "title", "dim": 2},
    {"kind": "cross", "name": "pair", "columns": ["user", "item"]},
    {
        "kind": "sequence",
        "name": "seen",
        "columns": ["seen"],
        "target": ["item"],
        "encoder": {"kind": "din", "hidden": [4]},
        "level": "request",
    },
    {
        "kind": "sequence",
        "name": "opened",
        "columns": ["opened"],
        "encoder": "mean",
        "unpooled": 1,
        "level": "request",
    },
]


def log() -> pa.Table:
    """Rows of requests, those of one not side by side."""
    rows, requests = ROWS, REQUESTS
    rng = np.random.default_rng(0)
    of = rng.integers(requests, size=rows)
    of[:requests] = np.arange(requests)

    def shared(values: Any) -> list[Any]:
        return [values[request] for request in of]

    def lists(count: int, most: int) -> list[list[str]]:
        return [[f"i{n}" for n in rng.integers(9, size=rng.integers(most))] for _ in range(count)]

    return pa.table(
        {
            "request": [f"r{request}" for request in of],
            "item": [f"i{n}" for n in rng.integers(9, size=rows)],
            "user": shared([f"u{n}" for n in rng.integers(4, size=requests)]),
            "age": shared(rng.normal(size=requests)),
            "price": rng.lognormal(size=rows),
            "position": rng.integers(1, 6, size=rows).astype(float),
            "likes": shared(lists(requests, 4)),
            "tags": lists(rows, 3),
            "taste": shared([list(rng.normal(size=3)) for _ in range(requests)]),
            "title": [list(rng.normal(size=3)) for _ in range(rows)],
            "seen": shared(lists(requests, 5)),
            "opened": shared(lists(requests, 3)),
            "click": (rng.random(rows) < 0.4).astype(int),
            "buy": (rng.random(rows) < 0.3).astype(int),
        }
    )


def raw_config(model: Mapping[str, Any], *, exact: bool = False) -> dict[str, Any]:
    """A run of that log."""
    return {
        "data": {"requests": {"column": "request", "exact": exact}},
        "features": FEATURES,
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "observed_when": "click"},
        ],
        "model": {
            "embedding_dim": 4,
            "expert": {"hidden": [6, 5]},
            "tower": {"hidden": [4]},
            **model,
        },
        "training": {"embedding_backend": "plain", "batch_size": 16, "eval_batch_size": 64},
    }


def draw(
    model: Mapping[str, Any], *, exact: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Ranker, Batch, Batch]:
    """A model, and one batch with requests and without."""
    config = config_from_dict(raw_config(model, exact=exact))
    table = log()
    encoder = FeatureEncoder.fit(config, table, "log")
    torch.manual_seed(0)
    ranker = build_ranker(config, encoder).to(dtype)
    if ranker.wide is not None:
        ranker.wide.float()
    for table_weights in ranker.tables.table_weights().values():
        torch.nn.init.normal_(table_weights)
    return ranker, *batches(encoder, table, dtype)


def batches(encoder: FeatureEncoder, table: pa.Table, dtype: torch.dtype) -> tuple[Batch, Batch]:
    """One batch of all rows, with requests and without."""
    features = encoder.encode(table, "log")
    found = []
    for encoded in (features, features.flat()):
        data = EncodedData(features=encoded, labels=None)
        found.append(_as(data.batch(slice(0, len(data))), dtype))
    return found[0], found[1]


def run(ranker: Ranker, batch: Batch, **keys: Any) -> NetworkOutput:
    """Of one batch of either kind."""
    return ranker(batch, **keys)


def _as(batch: Batch, dtype: torch.dtype) -> Batch:
    shared = batch.request_dense_QF
    return replace(
        batch,
        dense_BF=batch.dense_BF.to(dtype),
        request_dense_QF=None if shared is None else shared.to(dtype),
    )

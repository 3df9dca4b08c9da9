"""A log of requests with their candidates, flat and nested, and their batches made plain."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from mmoe.config import config_from_dict
from mmoe.datasets.files.nested import nested

SHARED = ["user", "age", "history", "seen", "at"]
FEATURES = [
    {"kind": "numeric", "name": "age", "level": "request", "buckets": 3},
    {"kind": "categorical", "name": "item"},
    {"kind": "list", "name": "history", "level": "request", "pooling": "mean"},
    {"kind": "numeric", "name": "price", "pieces": 4},
    {"kind": "list", "name": "tags", "pooling": "sum"},
    {"kind": "categorical", "name": "user", "level": "request", "dim": 8},
    {"kind": "cross", "name": "user_item", "columns": ["user", "item"]},
    {"kind": "sequence", "name": "views", "columns": ["seen"], "target": ["item"],
     "level": "request", "encoder": "din"},
]  # fmt: skip
SPLIT = {"by": "hash", "column": "user", "validation": 0.2, "test": 0.2}
TASKS = [{"name": "click", "label": "click"}]


def log_of_requests(requests=40, seed=0):
    """A row for each candidate; requests have 1 to 7 of them."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 8, requests)
    of_row = np.repeat(np.arange(requests), sizes)
    rows = len(of_row)
    ages = [None if n % 11 == 0 else float(n % 60) for n in range(requests)]
    lists = [None if n % 7 == 3 else draw.integers(0, 9, n % 4).tolist() for n in range(requests)]
    seen = [draw.integers(0, 30, draw.integers(0, 6)).tolist() for _ in range(requests)]
    tags = [[f"t{t}" for t in draw.integers(0, 5, draw.integers(0, 3))] for _ in range(rows)]
    return pa.table(
        {
            "request": pa.array(of_row + 1000),
            "user": pa.array([f"u{n % 9}" for n in of_row]),
            "age": pa.array([ages[n] for n in of_row], pa.float64()),
            "history": pa.array([lists[n] for n in of_row], pa.list_(pa.int64())),
            "seen": pa.array([seen[n] for n in of_row], pa.list_(pa.int64())),
            "at": pa.array([f"2024-01-{1 + n % 28:02d}" for n in of_row]),
            "item": pa.array(draw.integers(0, 30, rows)),
            "price": pa.array(draw.normal(size=rows)),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "click": pa.array(draw.integers(0, 2, rows)),
        }
    )


def nested_log(log):
    """The same with a row for each request."""
    return nested(log, "request", SHARED, "candidates")


def write_forms(log, folder):
    """Writes both into a folder: `flat.parquet` and `nested.parquet`."""
    pq.write_table(log, folder / "flat.parquet", row_group_size=100)
    pq.write_table(nested_log(log), folder / "nested.parquet", row_group_size=40)
    return folder


def config_of(form="flat", features=FEATURES, **data):
    """A run's config: with requests flat or nested, or without them (plain)."""
    section, features = of_form(form, features)
    return config_from_dict({"data": {**data, **section}, "features": features, "tasks": TASKS})


def of_form(form, features=FEATURES):
    """Keys of a run's `data`, and its features, for a form that `config_of` names."""
    requests = {"flat": {"column": "request"}, "nested": {"candidates": "candidates"}}.get(form)
    dropped = () if form == "flat" else ("level",)
    features = [{k: v for k, v in one.items() if k not in dropped} for one in features]
    return ({"requests": requests} if requests else {}), features


def expanded(batch, encoder):
    """The batch as one without requests: each row has the columns of its request."""
    if batch.requests_B is None:
        return batch
    layout, height = encoder.layout, len(batch)
    flags = np.array(layout.dense, bool)
    dense = torch.zeros(height, len(flags))
    dense[:, ~flags] = batch.dense_BF
    real = slice(0, batch.num_rows)
    dense[real, flags] = batch.request_dense_QF[batch.requests_B[real]]
    of_requests = [*layout.ids, *layout.lists]
    lengths_CB = batch.lengths_CB.view(len(of_requests), height).long()
    starts_CB = (batch.lengths_CB.long().cumsum(0) - batch.lengths_CB).view_as(lengths_CB)
    values, lengths, weights = [batch.values[:0]], [], []
    for of_request, starts_B, lengths_B in zip(of_requests, starts_CB, lengths_CB, strict=True):
        for row in range(height):
            place = int(batch.requests_B[row]) if of_request else row
            if of_request and row >= batch.num_rows:  # padding is missing
                values.append(torch.zeros(1, dtype=torch.int64))
                weights.append(torch.ones(1))
            else:
                mine = slice(int(starts_B[place]), int(starts_B[place] + lengths_B[place]))
                values.append(batch.values[mine])
                weights.append(None if batch.id_weights is None else batch.id_weights[mine])
            lengths.append(len(values[-1]))
    return replace(
        batch,
        dense_BF=dense,
        values=torch.cat(values),
        lengths_CB=torch.tensor(lengths, dtype=torch.int32),
        id_weights=None if batch.id_weights is None else torch.cat(weights),
        requests_B=None,
        request_dense_QF=None,
    )


def assert_same(left, right):
    """Both batches hold the same tensors."""
    names = ["dense_BF", "values", "lengths_CB", "labels_BT", "observed_BT", "weights_BT",
             "id_weights", "groups_B", "requests_B", "request_dense_QF"]  # fmt: skip
    assert left.num_rows == right.num_rows
    for name in names:
        one, other = getattr(left, name), getattr(right, name)
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)

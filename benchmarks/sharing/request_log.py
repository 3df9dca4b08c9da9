"""`big` of `benchmarks.train` as a log of requests: half of the columns are the request's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.train.workloads import BATCH, DIM, EXPERTS, HIDDEN, TOWER, WORKLOADS
from benchmarks.train.world import zipf_ids
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels import encode_labels
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.encoded import EncodedData

WORKLOAD = WORKLOADS["big"]
CANDIDATES = 50
REQUEST_EXPERTS = EXPERTS // 2


@dataclass(frozen=True)
class RequestLog:
    """Rows, and what is trained of them.

    Attributes:
        table: A row for each candidate.
        data: Encoded, with requests.
        flat: The same, every row by itself.
        encoder: Fitted on it.
        config: Of a run.
    """

    table: pa.Table
    data: EncodedData
    flat: EncodedData
    encoder: FeatureEncoder
    config: RunConfig

    def batches(self, data: EncodedData) -> list[Batch]:
        """Whole batches, in their order."""
        starts = range(0, len(data) - BATCH + 1, BATCH)
        return [data.batch(slice(start, start + BATCH)) for start in starts]


def request_columns() -> set[str]:
    """Every other column of ids and of numbers."""
    return {column.column for column in WORKLOAD.ids[::2]} | set(WORKLOAD.dense_columns[::2])


def draw_log(rows: int, *, exact: bool, precision: str = "fp32", seed: int = 0) -> RequestLog:
    """Draws, fits and encodes it."""
    table = draw_table(rows, seed)
    config = config_from_dict(_raw(exact=exact, precision=precision))
    encoder = FeatureEncoder.fit(config, table, "log")
    features = encoder.encode(table, "log")
    labels = encode_labels(config, table, "log")
    data = EncodedData(features=features, labels=labels)
    return RequestLog(
        table, data, EncodedData(features=features.flat(), labels=labels), encoder, config
    )


def draw_table(rows: int, seed: int) -> pa.Table:
    """Candidates, those of a request side by side."""
    rng = np.random.default_rng(seed)
    request_N = np.arange(rows) // CANDIDATES
    shared, count = request_columns(), int(request_N[-1]) + 1
    columns: dict[str, np.ndarray] = {"request": request_N}
    for column in WORKLOAD.ids:
        own = column.column in shared
        ids = zipf_ids(rng, column.rows, count if own else rows)
        columns[column.column] = ids[request_N] if own else ids
    for name in WORKLOAD.dense_columns:
        numbers = rng.standard_normal(count if name in shared else rows).astype(np.float32)
        columns[name] = numbers[request_N] if name in shared else numbers
    for task in WORKLOAD.tasks:
        columns[task] = (rng.random(rows) < 0.3).astype(np.int8)
    return pa.table(columns)


def nested(table: pa.Table) -> pa.Table:
    """The same log, a row for each request."""
    shared = [name for name in table.column_names if name in {"request", *request_columns()}]
    own = [name for name in table.column_names if name not in shared]
    starts = np.arange(0, len(table) + CANDIDATES, CANDIDATES).clip(max=len(table))
    items = pa.StructArray.from_arrays([table[name].combine_chunks() for name in own], names=own)
    lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), items)
    first = table.take(pa.array(starts[:-1]))
    return pa.table({**{name: first[name] for name in shared}, "items": lists})


def _raw(*, exact: bool, precision: str) -> Mapping[str, Any]:
    shared = request_columns()

    def level(name: str) -> Mapping[str, str]:
        return {"level": "request"} if name in shared else {}

    numbers: Sequence[Any] = [
        {"kind": "numeric", "name": name, **level(name)} for name in WORKLOAD.dense_columns
    ]
    ids: Sequence[Any] = [
        {
            "kind": "categorical",
            "name": column.column,
            "encoding": "hash",
            "hash_size": column.rows,
            **level(column.column),
        }
        for column in WORKLOAD.ids
    ]
    return {
        "data": {"requests": {"column": "request", "exact": exact}},
        "features": [*numbers, *ids],
        "tasks": [{"name": task, "label": task} for task in WORKLOAD.tasks],
        "model": {
            "embedding_dim": DIM,
            "num_experts": {"request": REQUEST_EXPERTS, "row": EXPERTS - REQUEST_EXPERTS},
            "expert": {"hidden": list(HIDDEN)},
            "tower": {"hidden": [TOWER]},
        },
        "training": {"batch_size": BATCH, "eval_batch_size": BATCH, "precision": precision},
    }

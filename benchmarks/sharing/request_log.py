"""`big` of `benchmarks.train` as a log of requests: half of the columns are the request's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.train.configs import raw_config
from benchmarks.train.logs import Log
from benchmarks.train.workloads import BATCH, EXPERTS, WORKLOADS
from benchmarks.train.world import zipf_ids
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets import encode_labels
from mmoe.datasets.features.encoder import FeatureEncoder
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


def draw_log(rows: int, *, exact: bool) -> RequestLog:
    """Draws, fits and encodes it."""
    table = draw_table(rows)
    config = config_from_dict(_raw(exact=exact))
    encoder = FeatureEncoder.fit(config, table, "log")
    features = encoder.encode(table, "log")
    labels = encode_labels(config, table, "log")
    data = EncodedData(features=features, labels=labels)
    return RequestLog(
        table, data, EncodedData(features=features.flat(), labels=labels), encoder, config
    )


def draw_table(rows: int) -> pa.Table:
    """Candidates, those of a request side by side."""
    rng = np.random.default_rng(0)
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


def _raw(*, exact: bool) -> Mapping[str, Any]:
    raw = raw_config(Log(WORKLOAD, Path("unused"), 0), precision="fp32")
    raw["data"] = {"requests": {"column": "request", "exact": exact}}
    for feature in raw["features"]:
        if feature["name"] in request_columns():
            feature["level"] = "request"
    raw["model"]["num_experts"] = {"request": REQUEST_EXPERTS, "row": EXPERTS - REQUEST_EXPERTS}
    return raw

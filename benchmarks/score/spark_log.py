"""A log that reaches into every corner of large tables, and a config that has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.train.workloads import DIM, WORKLOADS

ROWS_PER_GROUP = 50_000
BYTES_PER_NUMBER = 4


def config_of_size(raw: Mapping[str, Any], table_bytes: float) -> dict[str, Any]:
    """A config of `big` whose tables take so many bytes together, all larger by one factor."""
    tables = WORKLOADS["big"].tables
    factor = table_bytes / (sum(tables.values()) * DIM * BYTES_PER_NUMBER)
    features = [
        {**feature, "hash_size": max(1, round(feature["hash_size"] * factor))}
        if "hash_size" in feature
        else feature
        for feature in raw["features"]
    ]
    return {**raw, "features": features}


def write_spread_log(folder: Path, rows: int) -> Path:
    """Rows without labels whose ids are uniform: popular ones would leave most pages untouched.

    Returns:
        The Parquet file, kept for the next run.
    """
    path = folder / f"spread-{rows}.parquet"
    if path.exists():
        return path
    partial, work = path.with_suffix(".part"), WORKLOADS["big"]
    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, ROWS_PER_GROUP):
        size = min(ROWS_PER_GROUP, rows - start)
        columns: dict[str, np.ndarray] = {
            column.column: rng.integers(0, 2**31 - 1, size, np.int32) for column in work.single
        }
        for name in work.dense_columns:
            columns[name] = rng.standard_normal(size, np.float32)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    partial.rename(path)
    return path

"""Memory is bounded by the config: ten times the rows take no more of it."""

import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.stream import open_stream

ROWS = 10_000
MEGABYTE = 1e6


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """Ten files of 10,000 rows, a third of a megabyte of numbers each."""
    folder = tmp_path_factory.mktemp("log")
    for n in range(10):
        rng = np.random.default_rng(n)
        columns = {f"x{i}": rng.normal(size=ROWS).astype(np.float32) for i in range(8)}
        tags = rng.integers(0, 50, 3 * ROWS)
        columns["tags"] = pa.ListArray.from_arrays(np.arange(0, 3 * ROWS + 1, 3), tags)
        columns["click"] = rng.integers(0, 2, ROWS)
        pq.write_table(pa.table(columns), folder / f"{n:02d}.parquet", row_group_size=2_500)
    return folder


def peaks(folder, files, split, lanes=1):
    """Most bytes of NumPy and of Arrow over the survey, the fit, an epoch and an evaluation."""
    features = [{"kind": "numeric", "name": f"x{i}"} for i in range(8)]
    config = config_from_dict(
        {
            "data": {
                "path": str(folder / files),
                "input": "stream",
                "split": split,
                "streaming": {"shuffle_buffer_rows": 4_000, "chunk_rows": 2_000, "lanes": lanes},
            },
            "features": [*features, {"kind": "list", "name": "tags"}],
            "tasks": [{"name": "click", "label": "click"}],
            "training": {"eval_batch_size": 1_000},
        }
    )
    gc.collect()
    tracemalloc.start()
    arrow = 0
    splits = open_stream(config)
    encoder = splits.fit()
    for batch in splits.rows("train", encoder).epoch_batches(0, 0, 500):
        assert batch.num_rows
        arrow = max(arrow, pa.total_allocated_bytes())
    for chunk in splits.rows("test", encoder).chunks():
        assert len(chunk) <= 2_000
        arrow = max(arrow, pa.total_allocated_bytes())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MEGABYTE, arrow / MEGABYTE


@pytest.mark.parametrize(
    "settings",
    [({},), ({"by": "time", "column": "x0"},), ({}, 3)],
    ids=["random", "time", "lanes"],
)
def test_ten_times_the_rows_take_no_more_memory(folder, settings, monkeypatch):
    # Row numbers hashed, and moments kept apart, at a time: constants, here small against the rows
    for name in ("rows.splits._ROWS", "stream.splitters._ROWS", "stream.splitters._LEAST"):
        monkeypatch.setattr(f"mmoe.datasets.{name}", 4_000)
    monkeypatch.setattr("mmoe.datasets.stream.splitters._MOST", 8_000)
    peaks(folder, "00.parquet", *settings)  # what is imported and cached once
    small, small_arrow = peaks(folder, "00.parquet", *settings)
    bounds = small * 1.2 + 1, small_arrow * 1.2 + 1
    for _ in range(3):  # what an earlier test left running in the background is counted as well
        large = peaks(folder, "*.parquet", *settings)
        if large[0] < bounds[0] and large[1] < bounds[1]:
            break
    assert large[0] < bounds[0]
    assert large[1] < bounds[1]

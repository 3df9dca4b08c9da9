"""Columns that are copied beside the scores keep their type, or one that Parquet can store."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.faults.inputs.arrow_types import ARROW_TYPES, column_of
from mmoe.config import TaskConfig
from mmoe.datasets.files.readers import read_table
from mmoe.score import files

TASK = TaskConfig(name="click", label="click")

# Of those that are not kept as they came
KEPT_AS = {
    "string_view": pa.string(),
    "dictionary_view": pa.string(),
    "runs_int": pa.int64(),
    "list_of_views": pa.large_list(pa.large_string()),
    "list_view": pa.large_list(pa.int64()),
}
AS_THEY_CAME = ["binary_view", "uuid", "halffloat", "decimal32", "list_text", "struct", "map"]
REFUSED = ["interval", "sparse_union", "dense_union", "list_of_intervals"]


def _write(name, tmp_path):
    array = column_of(name, [1, 2, None, 4])
    path = tmp_path / "log.arrow"
    with pa.ipc.new_file(path, pa.schema([("odd", array.type)])) as writer:
        writer.write_table(pa.table({"odd": array}))
    return path, array


@pytest.mark.parametrize("name", [*KEPT_AS, *AS_THEY_CAME])
def test_kept(name, tmp_path):
    path, array = _write(name, tmp_path)

    types = files._kept_types(path, ["odd"])
    result = files._result(read_table(path), types, [TASK], np.zeros((4, 1), np.float32), "log")

    assert types == {"odd": KEPT_AS.get(name, array.type)}
    pq.write_table(result, tmp_path / "scores.parquet")
    found = pq.read_table(tmp_path / "scores.parquet")["odd"]
    assert found.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    path, _ = _write(name, tmp_path)
    with pytest.raises(ValueError, match=r"'odd', to be kept, holds .*which Parquet cannot store"):
        files._kept_types(path, ["odd"])


def test_every_type_is_kept_or_refused(tmp_path):
    for name in ARROW_TYPES:
        path, _ = _write(name, tmp_path)
        try:
            types = files._kept_types(path, ["odd"])
        except ValueError:
            assert name in REFUSED
            continue
        files._result(read_table(path), types, [], np.zeros((4, 0), np.float32), "log")

"""Reading row group by row group costs as much for each of many as for each of few."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.files import parquet_files
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.parquet_files import Footers, iter_parquet
from mmoe.datasets.stream import open_stream

ROWS = 10  # of a row group


def table_of(groups):
    rows = groups * ROWS
    rng = np.random.default_rng(1)
    return pa.table({"user": rng.integers(0, 9, rows), "click": np.arange(rows) % 2})


@pytest.fixture(name="parsed")
def _parsed(monkeypatch):
    """The footers that are parsed, by file."""
    found, parse = [], parquet_files._footer

    def parsing(path, source, size):
        found.append(path.name)
        return parse(path, source, size)

    monkeypatch.setattr(parquet_files, "_footer", parsing)
    return found


def read_everything(folder):
    config = config_from_dict(
        {
            "data": {"path": str(folder), "input": "stream"},
            "features": [{"kind": "categorical", "name": "user"}],
            "tasks": [{"name": "click", "label": "click"}],
            "training": {"batch_size": 32},
        }
    )
    splits = open_stream(config)
    encoder = splits.fit()
    rows = [splits.rows(name, encoder) for name in ("train", "validation")]
    for epoch in range(2):
        batches = list(rows[0].epoch_batches(0, epoch, 32))
        assert len(batches) == -(-len(rows[0]) // 32)
    assert sum(len(chunk) for chunk in rows[1].chunks()) == len(rows[1])


def test_a_footer_is_not_parsed_for_every_row_group(tmp_path, parsed):
    counted = []
    for groups in (10, 40):
        folder = tmp_path / str(groups)
        folder.mkdir()
        for part in range(2):
            pq.write_table(table_of(groups), folder / f"{part}.parquet", row_group_size=ROWS)
        read_everything(folder)
        counted.append(sorted(parsed))
        parsed.clear()
    assert counted[0] == counted[1]
    assert len(counted[0]) < 20


def test_only_so_many_bytes_of_footers_are_kept(tmp_path, parsed):
    files = []
    for n in range(3):
        pq.write_table(table_of(4), tmp_path / f"{n}.parquet", row_group_size=ROWS)
        files.append(DataFile(str(tmp_path / f"{n}.parquet")))
    size = pq.read_metadata(files[0].address).serialized_size
    footers = Footers(most_bytes=2 * size + size // 2)

    def read(*numbers):
        parsed.clear()
        for number in numbers:
            list(iter_parquet(files[number], ["user"], 100, 1, footers))
        return [name.removesuffix(".parquet") for name in parsed]

    assert read(0, 1, 0, 1) == ["0", "1"]
    assert read(0, 2, 0, 1, 2) == ["2", "1", "2"]
    alone = Footers(most_bytes=1)
    for _ in range(2):
        list(iter_parquet(files[0], ["user"], 100, 1, alone))
    assert read() == []


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    path, footers = tmp_path / "x.parquet", Footers()
    found = []
    for moment, groups in enumerate((4, 6)):
        pq.write_table(table_of(groups), path, row_group_size=ROWS * groups)
        os.utime(path, ns=(moment, moment))
        tables = iter_parquet(DataFile(str(path)), ["user"], 1_000, 0, footers)
        found.append(sum(table.num_rows for table in tables))
    assert found == [4 * ROWS, 6 * ROWS]

"""Rows that come twice: what is inferred, is inferred from each of them once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import load_config
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.rows.sources import load_splits


@pytest.mark.parametrize("again", [4, 900])
def test_rows_that_come_twice_are_said_and_counted_once(again, tmp_path, mmoe):
    rng, rows = np.random.default_rng(3), 2_500
    log = pa.table(
        {
            "row": np.arange(rows) * 7 + 3,
            "user": rng.integers(0, 600, rows),
            "price": rng.gamma(2, 5, rows),
            "click": rng.integers(0, 2, rows),
        }
    )
    once, _ = infer_config(log, ["click"])
    twice, reasons = infer_config(pa.concat_tables([log, log.slice(0, again)]), ["click"])
    assert [one.name for one in once.features] == [one.name for one in twice.features]
    assert dict(reasons.left_out)["row"] == "its value is different in every row"
    assert (once.data.repeated_rows, twice.data.repeated_rows) == ("keep", "together")
    pq.write_table(pa.concat_tables([log, log.slice(0, again)]), tmp_path / "log.parquet")
    out = tmp_path / "config.yaml"
    code, said, err = mmoe("init", tmp_path / "log.parquet", "--label", "click", "--out", out)
    assert code == 0, err
    first = (said + err).splitlines()[0]
    assert f"{again:,} of {rows + again:,} rows" in first
    assert "are copies of others; data.repeated_rows: together" in first
    assert load_config(out).data.repeated_rows == "together"
    assert load_splits(load_config(out)).train.num_rows > 0

"""A night to score with a run of `train_funnel`."""

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def night(funnel_table, tmp_path_factory):
    """Rows that the run was not trained on, but are like those."""
    path = tmp_path_factory.mktemp("night") / "night.parquet"
    pq.write_table(funnel_table[3000:], path, row_group_size=300)
    return path

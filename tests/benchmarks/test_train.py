"""What `benchmarks.train` compares is comparable."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.train.workloads import (
    BIG_FLOPS_PER_ROW,
    EXPERTS,
    HIDDEN,
    TOWER,
    WORKLOADS,
    World,
    write_log,
)


def test_the_workloads_have_the_sizes_that_the_readme_says():
    big, ranker = WORKLOADS["big"], WORKLOADS["ranker"]
    assert sum(big.tables.values()) * 16 == pytest.approx(39.5e6, rel=1e-2)
    per_expert = big.input_dim * HIDDEN[0] + HIDDEN[0] * HIDDEN[1]
    gates = 2 * big.input_dim * EXPERTS
    towers = 2 * (HIDDEN[1] * TOWER + TOWER)
    assert 6 * (EXPERTS * per_expert + gates + towers) == pytest.approx(BIG_FLOPS_PER_ROW, rel=1e-2)
    assert len(ranker.ids) + ranker.dense == 200
    assert len(ranker.lists) == 22
    assert len(ranker.tasks) == 6


def test_a_longer_log_begins_like_a_shorter_one(tmp_path):
    short, long = (write_log(WORKLOADS["tiny"], rows, tmp_path) for rows in (300, 500))
    again = write_log(WORKLOADS["tiny"], 300, tmp_path)
    assert again == short
    table = pq.read_table(short.train)
    assert table.num_rows == 300
    assert pq.read_table(long.train).slice(0, 300).equals(table)
    assert not pq.read_table(short.test).slice(0, 100).equals(table.slice(0, 100))


def test_labels_follow_from_the_columns():
    """Labels drawn twice for the same rows agree more often than chance would have them."""
    world = World(WORKLOADS["tiny"], seed=1)
    columns = world.draw(5_000, [1, 2])
    one, two = (world.labels(columns, [seed]) for seed in (3, 4))
    for task in range(2):
        assert np.corrcoef(one[:, task], two[:, task])[0, 1] > 0.1
    assert 0.1 < one[:, 0].mean() < 0.6
    assert (one[:, 1] <= one[:, 0]).all()

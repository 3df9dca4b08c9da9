"""`benchmarks.train` on a few rows: that it runs, and that what it compares is comparable."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.racing.harness import ProductRates
from benchmarks.train import races
from benchmarks.train.races import TARGETS, gaps, help_text, startup, streaming_memory
from benchmarks.train.workloads import (
    BATCH,
    BIG_FLOPS_PER_ROW,
    EXPERTS,
    HIDDEN,
    TOWER,
    WORKLOADS,
    Log,
    World,
    raw_config,
    write_log,
    zipf_ids,
)
from mmoe.config import config_from_dict
from tests.benchmarks.small_bench import small_bench


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(ProductRates, "measure", lambda self: None)
    monkeypatch.setattr(races, "FEWEST_ROUNDS", 2)
    return small_bench(tmp_path, rows=BATCH)


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


@pytest.mark.parametrize("name", sorted(WORKLOADS))
@pytest.mark.parametrize("encoding", ["hash", "vocabulary"])
def test_our_config_is_valid(name, encoding, tmp_path):
    work = WORKLOADS[name]
    config = config_from_dict(
        raw_config(Log(work, tmp_path, 1), precision="bf16", encoding=encoding)
    )
    assert len(config.features) == len(work.ids) + work.dense
    assert len(config.tasks) == len(work.tasks)


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


def test_every_id_can_occur_and_few_are_popular():
    ids = zipf_ids(np.random.default_rng(0), 1_000, 100_000)
    counts = np.bincount(ids, minlength=1_000)
    assert len(counts) == 1_000
    assert np.sort(counts)[-10:].sum() > 30_000
    assert (counts > 0).mean() > 0.9


@pytest.mark.torchrec
@pytest.mark.slow
def test_contestants_take_turns(bench):
    specs = {
        "mmoe": bench.spec("mmoe", "tiny", "bf16"),
        "plain torch": bench.spec("plain", "tiny", "bf16"),
    }
    found = []

    def look(running):
        found.append(running["mmoe"].ask("parts", steps=2)["step_times"])

    times = bench.race(specs, after=look)
    assert [len(seconds) for seconds in times.seconds.values()] == [2, 2]
    assert times.ratio("plain torch", "mmoe").median > 0
    parts = {part["part"]: part for part in found[0]["parts"]}
    for name in ("embeddings", "experts", "gates", "towers"):
        assert parts[name]["forward"] > 0
        assert parts[name]["backward"] > 0
    assert found[0]["operators"]


@pytest.mark.torchrec
@pytest.mark.slow
def test_a_contestant_that_dies_says_why(bench):
    specs = {"mmoe": bench.spec("mmoe", "tiny", "fp8")}
    with pytest.raises(RuntimeError, match=r"mmoe on tiny in fp8 has died: .*precision"):
        bench.race(specs)


@pytest.mark.torchrec
@pytest.mark.slow
def test_gaps_of_both_sides(bench):
    results = gaps(bench, "tiny")
    assert [result.key for result in results] == ["auc_gap", "ne_gap"]
    assert abs(results[0].spread.median) < 0.2
    assert results[0].details[0]["theirs"]["click"]["auc"] > 0.5


@pytest.mark.torchrec
@pytest.mark.slow
def test_commands(bench, monkeypatch):
    monkeypatch.setattr(races, "STARTS", 1)
    monkeypatch.setattr(races, "HELPS", 1)
    keys = {result.key for result in startup(bench, "tiny")}
    keys |= {result.key for result in help_text(bench)}
    monkeypatch.setattr(races, "LARGER", 2)
    keys |= {result.key for result in streaming_memory(bench, "tiny")}
    assert keys <= set(TARGETS)

"""`benchmarks.parallel` in small: that it runs, and that it counts what it says."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from benchmarks.parallel import races
from benchmarks.parallel.collectives import CollectiveSteps
from benchmarks.parallel.layers import Traffic, count_link
from benchmarks.parallel.races import (
    FOUR_GATES,
    GROWING,
    TARGETS,
    collective_costs,
    efficiency,
    layer_growth,
    layer_ranks,
    print_costs,
    print_wire,
    t_dispatches,
    wire_bytes,
)
from benchmarks.racing.harness import FEWEST_ROUNDS, ProductRates
from benchmarks.train import races as train_races
from benchmarks.train.workloads import BATCH
from mmoe.parallel import ensure_process_group
from tests.benchmarks.small_bench import small_bench


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(ProductRates, "measure", lambda self: None)
    monkeypatch.setattr(train_races, "FEWEST_ROUNDS", 2)
    return small_bench(tmp_path, rows=2 * BATCH)


def test_what_a_link_has_to_carry():
    # Experts 2 and 3 are on the other rank; two gates, top-2
    picks_BGK = torch.tensor(
        [
            [[0, 2], [2, 3]],  # both are asked for, 2 twice: 3 picks, 2 pairs, 2 sums
            [[0, 1], [1, 0]],  # nobody there
            [[3, 2], [0, 1]],  # by one gate: 2 picks, 2 pairs, 1 sum
        ]
    )
    link = count_link(picks_BGK, 2, 4)
    assert (link.rows, link.picks, link.pairs, link.sums) == (2, 5, 4, 3)
    # Sums come back (3 · 100 + 5 weights < 4 · 100); gradients of all but the picks come again
    assert link.bytes(row_bytes=10, output_bytes=100) == 2 * (20 + 320) + 20
    assert link.bytes(row_bytes=10, output_bytes=4) == 2 * (20 + 16) + 20


@pytest.mark.slow
def test_layers_over_ranks(bench, monkeypatch, capsys):
    monkeypatch.setattr(races, "FOUR_GATES_ROWS", (16, 8))
    monkeypatch.setattr(races, "FOUR_GATES", {**FOUR_GATES, "E": 4})
    monkeypatch.setattr(races, "GROWING", {**GROWING, "B": 16})
    sent, *rest = wire_bytes(bench, rows=24)
    assert not rest
    assert sent.key in TARGETS
    for row in sent.details:
        assert row["told"] == row["counted"] >= row["bound"] > 0
        assert row["per_gate"] > 0.9
    print_wire([sent])
    assert "top-2 of 64, correlated" in capsys.readouterr().out
    results = [*t_dispatches(bench), layer_growth(bench)]
    assert [result.key for result in results] == [
        "vs_t_dispatches",
        "vs_t_dispatches_8_rows",
        "weak_scaling_layer",
    ]
    assert all(result.spread.count == FEWEST_ROUNDS for result in results)


@pytest.mark.slow
def test_a_rank_that_dies_is_named():
    with (
        layer_ranks() as ranks,
        pytest.raises(RuntimeError, match=r"layers over ranks has died: rank 0: .*'sleep'"),
    ):
        ranks.ask_all("sleep")


@pytest.mark.torchrec
@pytest.mark.slow
def test_whole_steps_over_ranks(bench, monkeypatch, capsys):
    monkeypatch.setattr(races, "LOOKED_AT", 2)
    bench = replace(bench, rows=32 * BATCH)  # all steps are of one epoch
    results = efficiency(bench, "tiny", precision="fp32")
    assert [result.key for result in results] == [
        "two_rank_efficiency_fp32",
        "two_rank_efficiency_fp32_replicated",
        "two_rank_efficiency_fp32_spread_bf16_wire",
    ]
    print_costs(results)
    printed = capsys.readouterr().out
    (costs,) = results[0].details
    owners = {row["owner"] for row in costs["collectives"]}
    assert {"rows of experts", "rows of tables", "sums of gradients"} <= owners
    assert "others" not in owners
    assert all(owner in printed for owner in owners)
    assert all(row["waiting"] >= 0 and row["wire"] >= 0 for row in costs["collectives"])
    for row in costs["parts"]:
        assert len(row["ranks"]) == 2


def test_waiting_and_the_wire():
    def log(issued, stood, ended):
        found = {"owner": "rows", "key": "0:1", "bytes": 2_000_000}
        return {"steps": 2, "found": [{**found, "issued": issued, "stood": stood, "ended": ended}]}

    # The first rank waits from 1.0 until the second one comes at 1.3, which waits for nobody
    (row,) = collective_costs([log(1.0, 1.0, 1.4), log(1.3, 1.3, 1.4)])
    assert (row["owner"], row["calls"], row["mb"]) == ("rows", 0.5, 1.0)
    assert row["waiting"] == pytest.approx(300 / 4)
    assert row["wire"] == pytest.approx(200 / 4)
    # What goes on behind other work costs nothing
    (row,) = collective_costs([log(1.0, 1.5, 1.5), log(1.3, 1.6, 1.7)])
    assert row["waiting"] == 0
    assert row["wire"] == pytest.approx(100 / 4)


def test_collectives_are_logged_while_asked_for():
    ensure_process_group()
    plain = dist.all_reduce
    log = CollectiveSteps(steps=2)
    dist.all_reduce(torch.ones(3))
    assert log.add(1, 0.5) is None
    work = dist.all_reduce(torch.ones(5, dtype=torch.float64), async_op=True)
    assert work is not None
    work.wait()
    answer = log.add(1, 0.5)
    assert dist.all_reduce is plain
    assert answer is not None
    assert answer["step_ms"] == 500
    assert [found["bytes"] for found in answer["found"]] == [12, 40]
    assert len({found["key"] for found in answer["found"]}) == 2
    for found in answer["found"]:
        assert found["issued"] <= found["stood"] < found["ended"]


def test_what_cannot_be_counted_is_refused():
    ensure_process_group()
    with Traffic() as traffic:
        received = torch.empty(4)
        dist.all_to_all_single(received, torch.ones(4), [4], [4])
        assert traffic.bytes == 0  # to itself
        with pytest.raises(ValueError, match="got c10d::allreduce_"):
            dist.all_reduce(received)

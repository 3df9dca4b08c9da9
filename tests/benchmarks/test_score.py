"""`benchmarks.score` on a few rows: its arithmetic, what it leaves out, and that it runs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.racing.harness import NothingToMeasure, ProductRates, run_races, shares_of
from benchmarks.score import races
from benchmarks.score.__main__ import RACES, print_details
from benchmarks.score.races import (
    COMMIT,
    ENGINE_RACES,
    FLOPS_PER_ROW,
    PEER_RACES,
    TARGETS,
    Bench,
    check_there,
    config_of_size,
    memory,
    ours,
    overheads,
    share,
    versus,
    write_spread_log,
)
from benchmarks.score.spark_program import DAEMON, pss_bytes, python_processes
from benchmarks.train import races as train_races
from benchmarks.train.workloads import BATCH, DIM, EXPERTS, HIDDEN, TOWER, WORKLOADS
from mmoe.config import config_from_dict
from mmoe.config.tables import HashEncoding


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(ProductRates, "measure", lambda self: None)
    return Bench(
        folder=tmp_path / "kept",
        runs=tmp_path,
        rows=500,
        many=900,
        repeats=2,
        threads=1,
        engines=tmp_path / "python",
        table_bytes=1e6,
        wanted=list(TARGETS),
        rates=ProductRates("cpu"),
        say=lambda _: None,
    )


def answer(seconds, rows=1_000, **more):
    return {"seconds": seconds, "rows": rows, "whole": seconds + 5, "imports": 2.0, **more}


def test_every_target_has_a_race():
    assert [key for race in RACES for key in race.keys] == list(TARGETS)


def test_a_row_takes_as_many_products_as_the_model_has():
    big = WORKLOADS["big"]
    experts = EXPERTS * (big.input_dim * HIDDEN[0] + HIDDEN[0] * HIDDEN[1])
    gates = len(big.tasks) * big.input_dim * EXPERTS
    towers = len(big.tasks) * (HIDDEN[1] * TOWER + TOWER)
    assert 2 * (experts + gates + towers) == pytest.approx(FLOPS_PER_ROW, rel=1e-2)
    assert pytest.approx(1.92e6, rel=1e-2) == FLOPS_PER_ROW


def test_a_share_is_of_the_best_product_of_its_precision():
    rates = ProductRates("cpu", {"fp32": {"a": 1e9}, "bf16": {"a": 2e11, "b": 4e11}})
    given = share("gemm_share_score_bf16", "bf16", [answer(s) for s in (0.01, 0.02, 0.04)])
    (found,), without = shares_of([given], rates)
    assert not without
    assert found.spread.median == pytest.approx(1_000 / 0.02 * FLOPS_PER_ROW / 4e11)
    assert found.ours_ms == pytest.approx(0.02 / 1_000 * BATCH * 1e3)
    assert found.note == "50,000 rows/s, of 400 GFLOP/s"


def test_a_machine_without_bf16_products_has_no_such_share():
    rates = ProductRates("cpu", {"fp32": {"a": 1e9}, "bf16": {}})
    given = [share(f"gemm_share_score_{p}", p, [answer(0.01)]) for p in ("bf16", "fp32")]
    found, without = shares_of(given, rates)
    assert [result.key for result in found] == ["gemm_share_score_fp32"]
    assert list(without) == ["gemm_share_score_bf16"]


def test_theirs_alone_is_held_against_all_of_ours():
    theirs = answer(4.0, forward_seconds=1.0, forward_rows=500)
    answers = {"mmoe bf16": [answer(1.0)], "mmoe fp32": [answer(2.0)], "deepctr": [theirs]}
    found = {r.key: r.spread.median for r in versus("deepctr", answers)}
    assert found == {
        "vs_deepctr_score": pytest.approx(4),
        "vs_deepctr_score_fp32": pytest.approx(2),
        "vs_deepctr_score_forward": pytest.approx(2),
    }


def test_starts_are_taken_off_on_both_sides():
    whole = {"local few": [4.0], "ray few": [14.0], "local many": [44.0], "ray many": [64.0]}
    found = {result.key: result.spread.median for result in overheads(whole)}
    assert found["ray_overhead"] == pytest.approx(50 / 40)
    assert found["ray_overhead_with_start"] == pytest.approx(64 / 44)
    with pytest.raises(RuntimeError, match="--many"):
        overheads({**whole, "ray few": [33.0]})


def test_slots_without_rows_are_no_measurement():
    one, four = {"workers": 1, "peak": 2}, {"workers": 4, "peak": 3}
    assert memory([one, four]).spread.median == 1.5
    with pytest.raises(RuntimeError, match="3 of 4 slots"):
        memory([one, {**four, "workers": 3}])


def test_what_is_not_there_is_left_out_with_its_reason(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(train_races, "PYTHON", tmp_path / "nobody")
    races = (*PEER_RACES, *ENGINE_RACES)
    found, failed, skipped = run_races(races, bench, bench.wanted, bench.say)
    assert (found, failed) == ([], {})
    assert set(skipped) == {key for race in races for key in race.keys}
    assert "bench-peers" in skipped["vs_deepctr_score"]
    assert "--engines" in skipped["ray_overhead"]


def test_an_environment_without_the_engine_says_what_it_lacks():
    python = Path(sys.executable)
    check_there(python, "import mmoe")
    with pytest.raises(NothingToMeasure, match="No module named 'no_engine'"):
        check_there(python, "import no_engine")


def test_sources_without_their_history_cost_one_key_alone(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(races, "ROOT", tmp_path)
    monkeypatch.setattr(Bench, "score", lambda *_, **__: answer(1.0, loading=1.0, peak=2**30))
    keys = [result.key for result in ours(bench)]
    assert keys == ["gemm_share_score_bf16", "gemm_share_score_fp32"]
    assert COMMIT in bench.skipped["vs_before"]


def test_tables_have_the_size_that_was_asked_for(bench):
    config = config_from_dict(config_of_size(bench.config("fp32"), 5e7))
    encodings = [getattr(feature, "table_encoding", None) for feature in config.features]
    sizes = [one.hash_size for one in encodings if isinstance(one, HashEncoding)]
    assert len(sizes) == len(WORKLOADS["big"].ids)
    assert sum(sizes) * DIM * 4 == pytest.approx(5e7, rel=1e-3)


def test_spread_ids_are_of_the_columns_of_big(tmp_path):
    path = write_spread_log(tmp_path, 300)
    assert write_spread_log(tmp_path, 300) == path
    table = pq.read_table(path)
    assert table.num_rows == len(np.unique(table["c0"])) == 300
    assert len(table.column_names) == len(WORKLOADS["big"].ids) + WORKLOADS["big"].dense


def test_memory_is_of_spark_s_processes_alone():
    waits = "import sys; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for name, counted in ((DAEMON, True), (f"module={DAEMON}", False)):
        with subprocess.Popen([sys.executable, "-c", waits, name], **pipes) as process:
            process.stdout.readline()
            assert (process.pid in python_processes(os.getpid())) is counted
            assert pss_bytes(process.pid) > 1e6
            process.kill()
    assert pss_bytes(process.pid) == 0


@pytest.mark.slow
def test_a_scoring_in_a_process_of_its_own(bench, capsys):
    bench = Bench(**{**vars(bench), "wanted": ["gemm_share_score_bf16"]})
    for result in ours(bench):
        print_details(result)
        (details,) = result.details
        assert details["rows"] == 500
        assert 0 < details["seconds"] < details["whole"]
        assert details["peak_gib"] > 0.1
    assert "loading" in capsys.readouterr().out
    assert not list(bench.runs.glob("*.parquet"))

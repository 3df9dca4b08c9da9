"""`benchmarks.score`: its arithmetic."""

import pytest

from benchmarks.racing.harness import ProductRates, shares_of
from benchmarks.score.races import FLOPS_PER_ROW, memory, overheads, share, versus
from benchmarks.train.workloads import BATCH, EXPERTS, HIDDEN, TOWER, WORKLOADS


def answer(seconds, rows=1_000, **more):
    return {"seconds": seconds, "rows": rows, "whole": seconds + 5, "imports": 2.0, **more}


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

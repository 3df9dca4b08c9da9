"""What the races of gates that decide together take for granted."""

from dataclasses import replace

import torch

from benchmarks.mixture.workloads import correlated_logits, draw
from benchmarks.racing.clock import Clock
from benchmarks.sharing import step_races
from benchmarks.sharing.step_races import LAYER, WAYS, step_gains


def test_all_ways_mix_four_experts_a_gate_and_compute_fewer_pairs():
    work = replace(LAYER, B=64)
    logits_BGE, pairs = correlated_logits(work, 0.0), dict.fromkeys(WAYS, 0)
    visible = torch.ones(work.G, work.E, dtype=torch.bool)
    for way in WAYS:
        gate = step_races.GivenLogits(logits_BGE, 4, WAYS[way])
        assert (gate([], visible).experts >= 0).all()
        step_races._step(work, draw(work), logits_BGE, way, pairs)()
    assert pairs["alone"] > 14 * 64
    assert 6 * 64 < pairs["joint"] <= 7 * 64
    assert pairs["budget"] == 4 * 64


def test_results_have_the_keys_and_say_what_is_possible(monkeypatch):
    small = replace(LAYER, B=32, D=8, hidden=(8, 4))
    monkeypatch.setattr(step_races, "LAYER", small)
    trained = [correlated_logits(small, 0.5)]
    monkeypatch.setattr(step_races, "trained_logits", lambda *_: trained)

    results = {r.key: r for r in step_gains(Clock(device="cpu", rounds=1, seconds=1.0))}

    assert set(results) == {f"{key}{end}" for key in step_races.KEYS for end in ("", "_trained")}
    assert "4.00 pairs a row" in results["budget_step_gain"].note

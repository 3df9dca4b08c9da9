"""What the races of gates that decide together take for granted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.racing.harness import Clock
from benchmarks.racing.layers import correlated_logits, draw
from benchmarks.sharing import quality, steps
from benchmarks.sharing.quality import (
    CORRELATIONS,
    EQUAL_TIME_KEYS,
    HIDDEN,
    KEYS,
    MODELS,
    TASKS,
    draw_world,
    equal_times,
    qualities,
    time,
)
from benchmarks.sharing.steps import LAYER, WAYS, Bench, RechubForm, TzrecForm
from mmoe.config import config_from_dict


def test_all_ways_mix_four_experts_a_gate_and_compute_fewer_pairs():
    work = replace(LAYER, B=64)
    logits_BGE, pairs = correlated_logits(work, 0.0), dict.fromkeys(WAYS, 0)
    visible = torch.ones(work.G, work.E, dtype=torch.bool)
    for way in WAYS:
        gate = steps.GivenLogits(logits_BGE, 4, WAYS[way])
        assert (gate([torch.zeros(work.B, work.D)] * work.G, visible).experts >= 0).all()
        steps._step(work, draw(work), logits_BGE, way, pairs)()
    assert pairs["alone"] > 14 * 64
    assert 6 * 64 < pairs["joint"] <= 7 * 64
    assert pairs["budget"] == 4 * 64


def test_the_oracle_s_tasks_are_as_alike_as_was_asked():
    world = draw_world(seed=1, correlation=0.5, rows=4000)
    logits = np.array([np.log(p / (1 - p)) for p in world.truth.values()])
    between = np.corrcoef(logits)[np.triu_indices(len(TASKS), 1)]
    assert 0.35 < between.mean() < 0.65
    for task, p in world.truth.items():
        assert abs(world.log[task].to_numpy().mean() - p.mean()) < 0.04


def test_qualities_are_at_equal_pairs(monkeypatch):
    """Of trainings that say the rate for every row, shifted: the more pairs, the nearer."""
    pairs = {"top_k, k 1": 11.0, "top_k, k 2": 20.0, "joint": 14.0, "budget": 12.0}
    asked = []

    def train(raw, splits, seed):
        gate = raw["model"].get("gate", {})
        name = gate.get("select") or f"{gate.get('kind')}, k {gate.get('k')}"
        name = "random" if gate.get("kind") == "random_shared" else name
        asked.append(name)
        config_from_dict(raw)  # the models are such as can be trained
        rate = {task: splits.train[task].to_numpy().mean() for task in TASKS}
        count = pairs.get(name, 15.0)
        shift = 0.0 if name in ("joint", "budget") else 0.2 - count / 200
        return {t: np.full(len(splits.test), rate[t] + shift) for t in TASKS}, count

    monkeypatch.setattr(quality, "_train", train)
    clock = Clock(device="cpu", rounds=1, seconds=1.0)

    results = {r.key: r for r in qualities(Bench(clock, seeds=2, rows=1500))}

    assert set(KEYS) <= set(results)
    assert len(asked) == len(MODELS) * len(CORRELATIONS) * 2
    gains = []
    for found in results["joint_quality"].details:
        (one, pairs_one), (two, pairs_two) = found["alone, k 1"], found["alone, k 2"]
        at = one + (found["joint"][1] - pairs_one) / (pairs_two - pairs_one) * (two - one)
        gains.append(1e4 * (at - found["joint"][0]))
    assert results["joint_quality"].spread.median == pytest.approx(np.mean(gains), abs=0.1)
    assert results["joint_quality"].spread.median > 10
    assert results["joint_quality_low"].spread.median < results["joint_quality"].spread.median
    assert results["joint_over_random"].spread.median > 10


def test_sizes_of_equal_time_lie_on_the_line_between_two(monkeypatch):
    clock, now = Clock(device="cpu", rounds=1, seconds=1.0), [0.0]
    asked = []

    def train(raw, splits, seed):
        model = config_from_dict(raw).model  # such as can be trained
        asked.append(raw["model"])
        if raw["model"].get("kind") == "shared_bottom":
            now[0] += 1.0 + model.expert.hidden[0] / HIDDEN[0] / 10
        else:
            joint = raw["model"]["gate"].get("select") == "joint"
            now[0] += 6.0 if joint else 2.0 + model.num_experts / 10
        return {t: np.full(len(splits.test), 0.3) for t in TASKS}, 15.0

    monkeypatch.setattr(quality, "_train", train)
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    results = {r.key: r for r in equal_times(Bench(clock, seeds=2, rows=1500))}

    assert set(results) == set(EQUAL_TIME_KEYS)
    assert "as large as 40 experts" in results["dense_equal_time"].note
    assert "as large as 50 experts" in results["shared_bottom_equal_time"].note
    assert asked[-2]["num_experts"] == 40 and asked[-1]["expert"]["hidden"][0] == 50 * 32
    assert results["dense_equal_time"].spread.median == 0
    assert len(results["dense_equal_time"].details) == 2 * len(CORRELATIONS)


def test_other_forms_compute_the_same_function():
    torch.manual_seed(0)
    one, other, x_BD = RechubForm(12, 3), TzrecForm(12, 3), torch.randn(9, 12)
    other.load_state_dict(one.state_dict())

    torch.testing.assert_close(one(x_BD).logits_BT, other(x_BD).logits_BT)
    assert one(x_BD).logits_BT.shape == (9, 3)

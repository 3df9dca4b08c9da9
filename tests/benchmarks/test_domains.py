"""What the races of domains take for granted."""

import numpy as np
import pytest

from benchmarks.racing.harness import Clock
from benchmarks.sharing import quality
from benchmarks.sharing.quality import (
    BIG,
    DOMAIN_TASKS,
    SMALL,
    TEST_ROWS,
    draw_domains,
    small_domains,
)
from benchmarks.sharing.steps import Bench


def test_small_domains_have_one_percent_each_and_rows_of_their_own_to_test():
    world = draw_domains(seed=0, correlation=0.5, rows=4_000)
    scenes = world.log["scene"].to_numpy(zero_copy_only=False)
    assert [(scenes == scene).sum() for scene in (BIG, *SMALL)] == [3840, 40, 40, 40, 40]
    tested = world.test["scene"].to_numpy(zero_copy_only=False)
    assert {scene: (tested == scene).sum() for scene in SMALL} == dict.fromkeys(SMALL, TEST_ROWS)
    for task, p in world.truth.items():
        assert abs(world.test[task].to_numpy().mean() - p.mean()) < 0.02


def test_the_smaller_of_two_gains_is_told(monkeypatch):
    """Trainings that say the truth, or the truth with noise."""

    def predictions(config, splits, seed):
        noise = 0.0 if config["model"]["domains"] else 1.0 if len(splits.train) > 1_000 else 3.0
        rng, test = np.random.default_rng(0), splits.test
        return {t: test[t].to_numpy() + noise * rng.normal(size=len(test)) for t in DOMAIN_TASKS}

    monkeypatch.setattr(quality, "predictions", predictions)
    bench = Bench(Clock(device="cpu", rounds=1, seconds=1.0), seeds=2, rows=4_000)
    (result,) = small_domains(bench)
    found = [row["domains"] - row["one for all"] for row in result.details]
    assert result.key == "small_domain_gain"
    assert result.spread.median == pytest.approx(np.mean(found), abs=1e-4)
    assert result.spread.median > 0.1

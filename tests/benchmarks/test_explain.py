"""The benchmark of explanations, small."""

import numpy as np
import pytest

from benchmarks.explain.affinity import _spearman
from benchmarks.explain.log import TASKS, six_tasks
from benchmarks.explain.passes import largest_error, race_passes
from benchmarks.racing.clock import Clock


def test_a_race_and_the_error_have_their_keys():
    (passes,) = race_passes(Clock(device="cpu", rounds=1, seconds=0), 200)
    assert passes.key == "explain_passes" and passes.spread.median > -1
    error = largest_error(200)
    assert error.key == "explain_error" and error.spread.median <= 1e-6
    assert [one["model"] for one in error.details] == ["mmoe", "ple", "top_k"]


def test_six_tasks_are_one_experiment_whatever_the_seed():
    one, two = six_tasks(500, 0), six_tasks(500, 1)
    assert one.splits.train.num_rows == 500 and one.splits.test.num_rows == 200
    assert one.probabilities_NT.shape == (200, 6)
    assert not np.array_equal(one.probabilities_NT, two.probabilities_NT)
    # Tasks that follow the same signal go together, one that follows its opposite against them
    of_tasks = np.corrcoef(np.concatenate([one.probabilities_NT, two.probabilities_NT]).T)
    click, finish, report = (TASKS.index(task) for task in ("click", "finish", "report"))
    assert of_tasks[click, finish] > 0.5 > 0 > of_tasks[click, report]


def test_the_rank_correlation_is_over_pairs_of_two_tasks():
    rng = np.random.default_rng(3)
    predicted = rng.normal(size=(6, 6))
    helped = np.exp(predicted)
    np.fill_diagonal(helped, np.nan)
    assert _spearman(predicted, helped) == pytest.approx(1)
    assert _spearman(-predicted, helped) == pytest.approx(-1)

"""`benchmarks.first_try`: its logs, and how it judges."""

import numpy as np
import pytest

from benchmarks.first_try.logs import LOGS
from benchmarks.first_try.race import Verdict, paired_difference


@pytest.mark.parametrize("name", ["loans", "wells", "videos", "mail"])
def test_rows_follow_from_the_seed_and_labels_from_their_probabilities(name):
    log = LOGS[name]
    table, true = log.test(20_000)
    assert table.equals(log.test(20_000)[0])
    assert set(table.column_names) == {*log.kinds, *log.rates}
    for task, probability_N in true.items():
        labels_N = table[task].to_numpy(zero_copy_only=False).astype(float)
        seen_N = ~np.isnan(labels_N)
        expected = probability_N[seen_N].mean()
        error = np.sqrt(expected * (1 - expected) / seen_N.sum())
        assert abs(labels_N[seen_N].mean() - expected) < 4.5 * error


def test_training_rows_are_not_those_of_the_test():
    log = LOGS["wells"]
    training = log.training()
    assert training.num_rows == log.rows
    assert not training["flow"].slice(0, 50).equals(log.test(1_500)[0]["flow"].slice(0, 50))


@pytest.mark.parametrize(
    ("difference", "low", "high", "won"),
    [
        (0.01, 0.008, 0.012, True),
        (-0.0019, -0.003, -0.001, True),  # within what counts as near
        (-0.0024, -0.0049, 0.0001, True),  # within the noise
        (-0.0024, -0.0030, -0.0018, False),
        (-0.0024, -0.0060, 0.0012, False),  # noise that would hide too much
    ],
)
def test_a_win_is_near_or_within_the_noise(difference, low, high, won):
    assert _verdict(difference=difference, low=low, high=high).won is won


def test_the_share_of_the_gap_is_of_gaps_that_are_there():
    assert _verdict(difference=0.01, better_auc=0.8, oracle=0.84).share_of_gap == pytest.approx(
        0.25
    )
    assert _verdict(difference=0.01, better_auc=0.8, oracle=0.804).share_of_gap is None


def test_seeds_widen_the_interval():
    rng = np.random.default_rng(0)
    labels_N = rng.integers(0, 2, 2_000)
    other_N = rng.random(2_000) + 0.3 * labels_N
    ours = [rng.random(2_000) + k * labels_N for k in (0.2, 0.5, 0.8)]
    _, mean, low, high = paired_difference(labels_N, ours, other_N)
    _, _, low_1, high_1 = paired_difference(labels_N, ours[1:2], other_N)
    assert low < mean < high
    assert high - low > high_1 - low_1


def _verdict(**changed):
    names = {"log": "x", "family": "trees", "task": "y", "better": "boosted trees"}
    values = {"auc": 0.8, "better_auc": 0.8, "oracle": 0.9, "difference": 0, "low": 0, "high": 0}
    return Verdict(**{**names, **values, **changed})

"""The logs of `benchmarks.first_try`."""

import numpy as np
import pytest

from benchmarks.first_try.logs import LOGS

FAMILIES = ("additive", "trees", "factors", "shared")


def test_there_are_enough_of_each_family():
    assert len(LOGS) >= 16
    for family in FAMILIES:
        assert sum(log.family == family for log in LOGS.values()) >= 4


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

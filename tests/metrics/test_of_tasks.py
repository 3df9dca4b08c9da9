"""All metrics of a task: exact keys, observed rows only, notes and refusals."""

import numpy as np
import pytest
from sklearn import metrics as sk

from mmoe.metrics.of_tasks import higher_is_better, monitor_value, task_metrics

BINARY_KEYS = ["auc", "gauc", "pr_auc", "logloss", "ne", "gain", "calibration", "ece"]
BINARY_KEYS += ["rows", "positives", "oracle_auc", "oracle_logloss"]


def _binary(n=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.beta(1, 4, n)
    labels = (rng.random(n) < truth).astype(np.float32)
    predictions = np.clip(truth + rng.normal(0, 0.05, n), 0.001, 0.999).astype(np.float32)
    return labels, predictions, truth


def test_binary_metrics_equal_scikit_learn_on_the_observed_rows():
    labels, predictions, truth = _binary()
    observed = np.arange(400) % 3 > 0
    labels[~observed] = 7.0  # whatever stands there must not matter
    values, notes = task_metrics("binary", labels, predictions, observed, oracle=truth)
    y, p = labels[observed], predictions[observed].astype(np.float64)
    assert list(values) == BINARY_KEYS
    assert values["auc"] == pytest.approx(sk.roc_auc_score(y, p))
    assert values["pr_auc"] == pytest.approx(sk.average_precision_score(y, p))
    assert values["logloss"] == pytest.approx(sk.log_loss(y, p))
    assert values["oracle_auc"] == pytest.approx(sk.roc_auc_score(y, truth[observed]))
    assert values["oracle_logloss"] == pytest.approx(sk.log_loss(y, truth[observed]))
    assert values["calibration"] == pytest.approx(p.sum() / y.sum())
    assert (values["rows"], values["positives"]) == (observed.sum(), y.sum())
    assert values["gauc"] is None
    assert notes == []
    assert all(type(value) in (float, int, type(None)) for value in values.values())


def test_regression_metrics_equal_scikit_learn():
    rng = np.random.default_rng(0)
    labels, predictions, weights = rng.normal(size=50), rng.normal(size=50), rng.random(50)
    observed = rng.random(50) < 0.7
    labels[~observed] = np.nan
    values, notes = task_metrics("regression", labels, predictions, observed, weights)
    rows = (labels[observed], predictions[observed])
    assert list(values) == ["rmse", "mae", "r2", "gain", "rows"]
    assert values["rmse"] == pytest.approx(
        sk.root_mean_squared_error(*rows, sample_weight=weights[observed])
    )
    assert values["mae"] == pytest.approx(
        sk.mean_absolute_error(*rows, sample_weight=weights[observed])
    )
    weighed = sk.r2_score(*rows, sample_weight=weights[observed])
    assert values["r2"] == values["gain"] == pytest.approx(weighed)
    assert values["rows"] == observed.sum()
    assert notes == []


def test_gain_is_zero_of_the_mean_and_one_of_the_truth_for_both_sorts():
    click, price = np.array([0.0, 0, 0, 1]), np.array([1e6, 2e6, 3e6, 6e6])
    for right, gain in ((False, 0.0), (True, 1.0)):
        seen = [y if right else np.full(4, y.mean()) for y in (click, price)]
        of_click = task_metrics("binary", click, seen[0]).values
        of_price = task_metrics("regression", price, seen[1]).values
        assert of_click["gain"] == pytest.approx(gain, abs=1e-12)
        both = {"click": of_click, "price": of_price}
        assert monitor_value(both, "mean.gain") == pytest.approx(gain, abs=1e-12)
    assert higher_is_better("mean.gain")


def test_weights_weigh_the_metrics_but_not_the_counts():
    labels, predictions, truth = _binary()
    times = np.random.default_rng(1).integers(0, 4, 400)
    weighted = task_metrics(
        "binary", labels, predictions, weights=times, groups=np.arange(400) % 9, oracle=truth
    ).values
    repeated = task_metrics(
        "binary",
        np.repeat(labels, times),
        np.repeat(predictions, times),
        groups=np.repeat(np.arange(400) % 9, times),
        oracle=np.repeat(truth, times),
    ).values
    for key in set(BINARY_KEYS) - {"rows", "positives"}:
        assert weighted[key] == pytest.approx(repeated[key], abs=1e-12), key
    assert (weighted["rows"], weighted["positives"]) == (400, labels.sum())


def test_groups_give_gauc_and_a_note_on_what_it_rests_on():
    values, notes = task_metrics(
        "binary",
        np.array([0, 1, 0, 1, 1]),
        np.array([0.2, 0.9, 0.6, 0.4, 0.5]),
        groups=np.array(["a", "a", "b", "b", "c"]),
        name="buy",
    )
    assert values["gauc"] == 0.5
    assert notes == [
        "buy: gauc rests on 2 of 3 groups (4 of 5 rows); the others have one class only"
    ]
    one_each = task_metrics("binary", np.array([0, 1]), np.full(2, 0.5), groups=np.arange(2))
    assert one_each.values["gauc"] is None
    assert one_each.notes == ["task: gauc not computed: none of 2 groups has both classes"]


@pytest.mark.parametrize(("labels", "empty", "note"), [
    ([0, 0], {"auc", "ne", "gain", "calibration"}, "all 2 observed rows are negative"),
    ([1, 1], {"auc", "ne", "gain"}, "all 2 observed rows are positive"),
])  # fmt: skip
def test_one_class_says_what_it_cannot_compute(labels, empty, note):
    values, notes = task_metrics("binary", np.array(labels), np.array([0.2, 0.4]), name="buy")
    unknown = {"gauc", "oracle_auc", "oracle_logloss", "pr_auc"}
    assert {key for key, value in values.items() if value is None} == empty | unknown
    assert len(notes) == 1
    assert notes[0].startswith("buy: auc, ne")
    assert note in notes[0]


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_no_observed_row_and_no_weight_leave_all_empty(kind):
    labels, predictions = np.array([0.0, 1.0]), np.array([0.2, 0.4])
    values, notes = task_metrics(kind, labels, predictions, np.zeros(2, bool), name="buy")
    assert values["rows"] == 0
    assert {value for key, value in values.items() if key not in ("rows", "positives")} == {None}
    assert notes == ["buy: no metric computed: the label is observed in no row"]
    values, notes = task_metrics(kind, labels, predictions, weights=np.zeros(2), name="buy")
    assert values["rows"] == 2
    assert notes == ["buy: no metric computed: all 2 observed rows have weight 0"]
    assert task_metrics(kind, np.zeros(0), np.zeros(0)).values["rows"] == 0


@pytest.mark.parametrize(("kind", "changes", "message"), [
    ("binary", {"predictions": [0.1, np.nan, 0.3]}, r"'buy', row 1 .* nan, .*learning_rate"),
    ("regression", {"predictions": [0.1, 0.2, np.inf]}, r"'buy', row 2 .*prediction is inf"),
    ("binary", {"predictions": [0.1, 1.5, 0.3]}, r"row 1 .*1.5, expected a probability"),
    ("binary", {"labels": [0, 2, 1]}, r"row 1 .*label is 2.0, expected 0 or 1"),
    ("regression", {"labels": [0, np.nan, 1]}, r"row 1 .*label is nan, expected a finite"),
    ("binary", {"weights": [1, 1, -1]}, r"row 2 .*weight is -1.0, expected .* at least 0"),
    ("binary", {"oracle": [0, np.nan, 1]}, r"row 1 .*oracle's probability is nan"),
    ("binary", {"observed": [True]}, r"observed has shape \(1,\), labels \(3,\)"),
    ("binary", {"groups": [1, 2]}, r"groups has shape \(2,\), labels \(3,\)"),
    ("binary", {"predictions": [[0.1], [0.2], [0.3]]}, r"predictions has shape \(3, 1\)"),
    ("ranking", {}, "'buy': kind is 'ranking'; expected binary, regression"),
])  # fmt: skip
def test_refuses(kind, changes, message):
    columns = {"labels": [0, 1, 1], "predictions": [0.1, 0.2, 0.3]} | changes
    arrays = {key: np.array(column) for key, column in columns.items()}
    with pytest.raises(ValueError, match=message) as caught:
        task_metrics(kind, **arrays, name="buy")
    assert "\n" not in str(caught.value)


def test_where_unobserved_only_predictions_are_looked_at():
    observed = np.array([True, True, False])
    others = {
        "weights": np.array([1, 1, np.nan]),
        "oracle": np.array([0.1, 0.9, np.nan]),
        "observed": observed,
    }
    labels, predictions = np.array([0, 1, np.nan]), np.array([0.1, 0.8, 0.5])
    values, _ = task_metrics("binary", labels, predictions, **others)
    assert (values["auc"], values["oracle_auc"]) == (1.0, 1.0)
    predictions[2] = np.nan
    with pytest.raises(ValueError, match="task 'buy', row 2"):
        task_metrics("binary", labels, predictions, observed, name="buy")


def test_monitor_takes_one_task_or_the_mean_of_those_that_have_a_value():
    metrics = {
        "click": {"auc": 0.7, "logloss": 0.3},
        "buy": {"auc": 0.9, "logloss": None},
        "like": {"auc": None, "logloss": None},
        "watch": {"rmse": 2.0},
    }
    assert monitor_value(metrics, "buy.auc") == 0.9
    assert monitor_value(metrics, "mean.auc") == pytest.approx(0.8)
    assert monitor_value(metrics, "mean.logloss") == 0.3
    assert monitor_value(metrics, "mean.rmse") == 2.0
    assert monitor_value(metrics, "like.auc") is None
    assert monitor_value({"like": {"auc": None}}, "mean.auc") is None
    assert higher_is_better("mean.auc")
    assert not any(higher_is_better(f"click.{name}") for name in ("logloss", "ne", "rmse", "mae"))
    for monitor, message in (
        ("love.auc", "no task 'love'; tasks: click"),
        ("click.rmse", "the task has no rmse"),
        ("mean.rmse", "the task has no rmse"),
        ("click.f1", "unknown metric 'f1'; expected one of auc, logloss, ne, pr_auc, gain"),
    ):
        with pytest.raises(ValueError, match=message):
            monitor_value({"click": {"auc": 0.7}}, monitor)


def test_an_auc_says_its_interval_and_where_it_rests_on_few_rows():
    labels, predictions, _ = _binary()
    plain = task_metrics("binary", labels, predictions).values
    values, notes = task_metrics("binary", labels, predictions, intervals=True)
    assert {key: values[key] for key in plain} == plain
    assert values["auc_low"] < values["auc"] < values["auc_high"]
    assert (values["auc_few"], notes) == (None, [])
    few = np.flatnonzero(labels)[20:]
    labels[few] = 0
    values, notes = task_metrics("binary", labels, predictions, name="buy", intervals=True)
    assert values["auc_few"] == 20
    low, high = (f"{values[key]:.3f}" for key in ("auc_low", "auc_high"))
    assert notes == [
        f"buy: auc rests on 20 positive rows, so even its 95 % interval ({low} to {high}) is rough"
    ]


def test_one_positive_row_has_an_auc_without_an_interval():
    values, notes = task_metrics(
        "binary", np.array([0, 0, 1]), np.array([0.1, 0.4, 0.3]), name="buy", intervals=True
    )
    assert (values["auc"], values["auc_low"], values["auc_few"]) == (0.5, None, 1)
    assert notes == [
        "buy: auc rests on 1 positive row, too few for an interval; evaluate more rows"
    ]
    none = task_metrics("binary", np.zeros(2), np.array([0.1, 0.4]), intervals=True)
    assert (none.values["auc_low"], none.values["auc_few"], len(none.notes)) == (None, None, 1)


def test_a_task_that_is_far_off_does_not_decide_the_mean_gain_alone():
    metrics = {"click": {"gain": 0.25}, "spent": {"gain": -268.0}}
    assert monitor_value(metrics, "mean.gain") == (0.25 - 1) / 2
    assert monitor_value(metrics, "spent.gain") == -268.0

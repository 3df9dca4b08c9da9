"""`sample_weight`, `eval_set` and callbacks."""

import json

import numpy as np
import pandas as pd
import pytest

from mmoe import MultiTaskRanker
from tests.integrations.small import SMALL, rows

X, LABELS = rows(120)
Y = LABELS[["bought", "liked"]]
VALIDATION = rows(60, seed=5)
EVAL_SET = [(VALIDATION[0], VALIDATION[1][["bought", "liked"]])]
CONFIG = {
    # Hashed: which row of a table an id has does not follow from how often it comes. And a number:
    # rows of hashed ids begin so small that all predictions would be the base rate, the gradient of
    # a tower's bias a sum that is 0 but for rounding, and Adam's first step its sign
    "features": [
        {"kind": "categorical", "name": "user", "encoding": "hash", "hash_size": 50},
        {"kind": "numeric", "name": "price", "standardise": False, "outside": "keep"},
    ],
    "tasks": [{"name": "bought", "label": "bought == 'buy'"}, {"name": "liked", "label": "liked"}],
}
IN_ONE_BATCH = {**SMALL, "epochs": 3, "batch_size": 1000, "config": CONFIG}
WEIGHTS = np.random.default_rng(2).integers(0, 4, len(X))


def _fit(X, y, weights=None, **parameters):
    return MultiTaskRanker(**{**IN_ONE_BATCH, **parameters}).fit(X, y, weights, eval_set=EVAL_SET)


def test_weights_are_repetitions():
    weighted = _fit(X, Y, WEIGHTS)
    again = X.index.repeat(WEIGHTS)
    repeated = _fit(X.loc[again].reset_index(drop=True), Y.loc[again].reset_index(drop=True))
    mine, theirs = (ranker.predict_proba(X).to_numpy() for ranker in (weighted, repeated))
    assert mine == pytest.approx(theirs, abs=2e-6)
    assert np.abs(mine - _fit(X, Y).predict_proba(X).to_numpy()).max() > 1e-4
    assert weighted.score(X, Y, WEIGHTS) == pytest.approx(
        weighted.score(X.loc[again].reset_index(drop=True), Y.loc[again].reset_index(drop=True))
    )


def test_only_ratios_count_and_rows_are_matched_by_index():
    weights = pd.Series(WEIGHTS + 1.0, index=X.index)
    one = _fit(X, Y, weights).predict_proba(X)
    other = _fit(X, Y, weights.sample(frac=1) * 8).predict_proba(X)
    assert one.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-6)


def test_weights_multiply_those_of_the_config():
    tasks = [{**task, "weight_column": "w"} for task in CONFIG["tasks"]]
    config = {**CONFIG, "tasks": tasks}
    held = [(VALIDATION[0].assign(w=1), EVAL_SET[0][1])]
    X_w = X.assign(w=WEIGHTS)
    ranker = MultiTaskRanker(**{**IN_ONE_BATCH, "config": config})
    ranker.fit(X_w, Y, np.full(len(X), 2.0), eval_set=held)
    assert ranker.config_.tasks[0].weight_column == "sample_weight x w"
    expected = _fit(X, Y, WEIGHTS).predict_proba(X).to_numpy()
    assert ranker.predict_proba(X).to_numpy() == pytest.approx(expected, abs=1e-6)
    assert 0 <= ranker.score(X_w, Y) <= 1


def test_weights_with_rows_held_out():
    mine = X.assign(sample_weight=X.price)
    ranker = MultiTaskRanker(**SMALL).fit(mine, Y, WEIGHTS + 1)
    assert ranker.config_.tasks[0].weight_column == "sample_weight_"
    assert "sample_weight_" not in ranker.feature_names_in_
    assert ranker.predict(mine).shape == (120, 2)
    assert 0 <= ranker.score(mine, Y) <= 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.where(np.arange(120) == 4, -1, 1), r"sample_weight: row 5 is -1\.0, expected a finite"),
        (np.where(np.arange(120) == 4, np.nan, 1), "row 5 is nan"),
        (np.ones(7), "sample_weight: expected 120 rows, as many as X, got 7"),
        (np.ones((120, 2)), r"one number a row, got shape \(120, 2\)"),
        (np.zeros(120), "every weight is zero"),
        (pd.Series(1.0, index=range(120)), "sample_weight: its index is not that of X"),
    ],
)
def test_no_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        MultiTaskRanker(**SMALL).fit(X, Y, weights)


def test_the_eval_set_chooses_the_epoch():
    ranker = _fit(X, Y)
    assert ranker.metrics_["train"]["rows"] == len(X)
    assert ranker.metrics_["tasks"]["bought"]["rows"] == 60
    alone = MultiTaskRanker(**SMALL).fit(X, Y)
    assert alone.metrics_["train"]["rows"] == 108
    (pair,) = EVAL_SET  # also without the list
    other = MultiTaskRanker(**IN_ONE_BATCH).fit(X, Y, eval_set=pair)
    assert other.metrics_["tasks"] == ranker.metrics_["tasks"]


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        ([X, Y], r"eval_set: expected \(X, y\) or \[\(X, y\)\], .*, got list of 2"),
        ((X, Y, Y), "one pair whose rows choose the best epoch, got tuple of 3"),
        ([*EVAL_SET, *EVAL_SET], "one pair .* got list of 2"),
        ((*EVAL_SET, *EVAL_SET), "one pair .* got tuple of 2"),
        ([(VALIDATION[0], Y)], "eval_set: y: expected 60 rows, as many as X, got 120"),
        (5, "eval_set: expected"),
        ((VALIDATION[0], VALIDATION[1][["liked"]]), "validation rows: there is no column 'bought'"),
    ],
)
def test_no_eval_set(eval_set, message):
    with pytest.raises(ValueError, match=message):
        MultiTaskRanker(**SMALL).fit(X, Y, eval_set=eval_set)


def test_callbacks_see_every_epoch_and_may_stop():
    seen = []

    def stop_after_two(epoch, metrics):
        seen.append((epoch, metrics["validation"]["liked"]["logloss"], metrics["loss"]["liked"]))
        metrics.clear()
        return epoch == 2

    ranker = MultiTaskRanker(**{**SMALL, "epochs": 9})
    ranker.fit(X, Y, callbacks=[lambda *_: None, stop_after_two])
    assert [epoch for epoch, *_ in seen] == [1, 2]
    history = json.loads((ranker.run_directory_ / "history.json").read_text())
    assert [entry["validation"]["liked"]["logloss"] for entry in history["epochs"]] == [
        logloss for _, logloss, _ in seen
    ]
    with pytest.raises(ValueError, match="callbacks: expected functions"):
        ranker.fit(X, Y, callbacks=["print"])

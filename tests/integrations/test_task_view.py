"""One task of a ranker where scikit-learn wants a classifier or a regressor."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.metrics import RocCurveDisplay, roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.utils.validation import check_is_fitted

from mmoe import MultiTaskRanker
from mmoe.config import config_from_dict
from mmoe.integrations.estimator_config import with_label
from mmoe.integrations.sklearn import TaskClassifier, TaskRegressor
from tests.integrations.small import SMALL, rows

X, LABELS = rows()


@pytest.fixture(scope="module", name="ranker")
def _ranker():
    settings = {
        **SMALL["settings"],
        "training.monitor": "bought.auc",
        "training.embedding_optimizer.learning_rate": 0.1,
        "training.patience": 8,
        "tasks.liked.weight": 0.1,
    }
    longer = {"epochs": 8, "batch_size": 32, "settings": settings}
    return MultiTaskRanker(**{**SMALL, **longer}).fit(X, LABELS)


def test_a_view_says_what_the_ranker_says(ranker):
    view = ranker.task("bought")
    assert is_classifier(view) and not is_regressor(view)
    assert view.classes_.tolist() == ["buy", "skip"]
    pair = view.predict_proba(X)
    assert pair.shape == (len(X), 2)
    assert pair.sum(axis=1) == pytest.approx(1)
    whole = ranker.predict_proba(X)
    assert pair[:, 0] == pytest.approx(whole.pred_bought.to_numpy())
    assert (view.predict(X) == ranker.predict(X).bought).all()
    assert (view.predict(X) == np.where(pair[:, 0] >= 0.5, "buy", "skip")).all()
    assert ((view.decision_function(X) > 0) == (pair[:, 1] > 0.5)).all()
    assert roc_auc_score(LABELS.bought == "skip", pair[:, 1]) > 0.6
    assert view.score(X, LABELS.bought) == np.mean(view.predict(X) == LABELS.bought)


def test_labels_come_back_as_they_were(ranker):
    predicted = ranker.predict(X)
    assert set(predicted.bought) <= {"buy", "skip"}
    assert predicted.liked.dtype == bool
    assert ranker.task("liked").classes_.tolist() == [False, True]


def test_a_regressor_answers_in_the_units_of_y(ranker):
    assert ranker.config_.tasks[2].label == "watched"
    view = ranker.task("watched")
    assert is_regressor(view)
    assert view.predict(X).tolist() == ranker.predict_proba(X).pred_watched.tolist()


def test_which_task(ranker):
    with pytest.raises(ValueError, match="expected one of 'bought', 'liked', 'watched', got none"):
        ranker.task()
    with pytest.raises(ValueError, match="got 'clicked'"):
        ranker.task("clicked")


def test_a_task_is_found_by_the_column_of_its_label():
    labels = LABELS.rename(columns={"bought": "gefällt", "watched": "名前"})
    ranker = MultiTaskRanker(**SMALL).fit(X, labels)
    assert ranker.task_names_ == ["gefallt", "liked", "task_3"]
    view = ranker.task("gefällt")
    assert view.task_ == "gefallt" and view.classes_.tolist() == ["buy", "skip"]
    assert (view.predict(X) == ranker.task("gefallt").predict(X)).all()
    assert is_regressor(ranker.task("名前"))
    refit = clone(view).fit(X, labels["gefällt"], labels=labels)
    assert refit.ranker_.task_names_ == ranker.task_names_ and refit.task_ == "gefallt"
    alone = TaskClassifier(MultiTaskRanker(**SMALL)).fit(X, labels["gefällt"])
    assert set(alone.predict(X)) <= {"buy", "skip"}


def test_a_clone_fits_one_task_and_leaves_the_ranker(ranker):
    view = clone(ranker.task("bought"))
    with pytest.raises(ValueError, match="not fitted"):
        check_is_fitted(view)
    view.fit(X.to_numpy(), np.where(LABELS.bought == "buy", 1, 0))
    assert view.ranker_.task_names_ == ["bought"]
    assert view.classes_.tolist() == [0, 1]
    assert ranker.task_names_ == ["bought", "liked", "watched"]


def test_with_the_labels_of_the_others_all_are_trained(ranker):
    view = clone(ranker.task("liked")).fit(X, LABELS.liked, labels=LABELS.sample(frac=1))
    assert view.ranker_.task_names_ == ["bought", "liked", "watched"]
    assert view.classes_.tolist() == [False, True]


@pytest.mark.parametrize(("there", "trained"), [(True, ["click", "buy"]), (False, ["buy"])])
def test_with_a_config_the_others_are_trained_where_their_labels_are(there, trained):
    config = {
        "features": [{"kind": "categorical", "name": "item"}],
        "tasks": [
            {"name": "click", "label": "liked"},
            {"name": "buy", "label": "bought == 'buy'", "observed_when": "click", "after": "click"},
        ],
        "model": {"transfer": "dbmtl"},
        "training": {"monitor": "click.auc"},
    }
    settings = {**SMALL["settings"], "tasks.click.weight": 2}
    ranker = MultiTaskRanker(**{**SMALL, "settings": settings}, config=config)
    frame = X.assign(**LABELS) if there else X
    view = TaskClassifier(ranker, "buy").fit(frame, LABELS.bought)
    assert view.ranker_.task_names_ == trained
    assert view.classes_.tolist() == ["buy", "skip"]
    encoded = clone(view).fit(frame, np.where(LABELS.bought == "buy", 0, 1))
    assert encoded.classes_.tolist() == [0, 1]
    assert ranker.config == config


def test_what_takes_a_classifier_takes_it(ranker):
    view = ranker.task("bought")
    calibrated = CalibratedClassifierCV(FrozenEstimator(view)).fit(X, LABELS.bought)
    assert calibrated.predict_proba(X).shape == (len(X), 2)
    importance = permutation_importance(
        view, X, LABELS.bought, scoring="roc_auc", n_repeats=1, random_state=0
    )
    assert importance.importances_mean.argmax() == 1
    display = RocCurveDisplay.from_estimator(view, X, LABELS.bought, pos_label="buy")
    assert display.roc_auc == pytest.approx(
        roc_auc_score(LABELS.bought == "buy", ranker.predict_proba(X).pred_bought), abs=1e-3
    )


@pytest.mark.parametrize("tasks", [["bought"], ["watched", "liked"]])
def test_a_ranker_in_place_of_a_classifier_says_which_view(tasks):
    ranker, y = MultiTaskRanker(**SMALL), LABELS[tasks]
    line = r"^MultiTaskRanker has no classes_: .* give a task of a fitted ranker, ranker\.task\("
    with pytest.raises(AttributeError, match=line):
        cross_val_predict(ranker, X, y, cv=2, method="predict_proba")
    with pytest.raises(AttributeError, match=rf"{line}'{tasks[-1]}'\)$"):
        CalibratedClassifierCV(FrozenEstimator(ranker.fit(X, y))).fit(X, y[tasks[-1]])
    assert not hasattr(ranker, "classes_") and not hasattr(MultiTaskRanker(), "classes_")


@pytest.mark.parametrize(
    ("made", "count"), [(MultiTaskRanker, 400), (TaskClassifier, 2), (TaskRegressor, 400)]
)
def test_moments_are_no_label(made, count):
    when = pd.date_range("2026-01-01", periods=count, freq="h")
    y = pd.Series(np.resize(when, len(X)), X.index, name="when")
    for values in (y, y.to_numpy(), y - y.min(), y.dt.tz_localize("UTC")):
        with pytest.raises(ValueError, match=r"^y: column '(when|label)' holds .*, expected 0 and"):
            made().fit(X, values)


def test_cross_validation(ranker):
    quick = {"ranker__epochs": 1, "ranker__batch_size": 256}
    view = clone(ranker.task("bought")).set_params(**quick)
    crossed = cross_val_predict(
        view, X, LABELS.bought, cv=2, method="predict_proba", params={"labels": LABELS}
    )
    assert crossed.shape == (len(X), 2)
    assert set(cross_val_predict(view, X, LABELS.bought, cv=2)) <= {"buy", "skip"}
    numbers = cross_val_predict(clone(view).set_params(task="x"), X, LABELS.liked, cv=2)
    assert numbers.dtype == bool
    regressor = clone(ranker.task("watched")).set_params(**quick)
    numbers = cross_val_predict(regressor, X, LABELS.watched, cv=2)
    assert np.isfinite(numbers).all()


def test_a_loaded_ranker_knows_the_texts(ranker, tmp_path):
    loaded = MultiTaskRanker.load(ranker.save(tmp_path / "saved"))
    assert loaded.predict(X).equals(ranker.predict(X))
    view = pickle.loads(pickle.dumps(ranker.task("bought")))
    assert (view.predict(X) == ranker.predict(X).bought).all()
    assert loaded.task("bought").classes_.tolist() == ["buy", "skip"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        (LABELS, "expected the label of one task, got 3 columns"),
        (["a", "b", "c", "d"] * 100, "Only binary classification is supported.*y has 3|4 values"),
        (["a"] * 400, "expected two classes, got one class only"),
        (LABELS.watched, "Unknown label type"),
    ],
)
def test_no_label_of_a_classifier(y, message):
    with pytest.raises(ValueError, match=message):
        TaskClassifier(MultiTaskRanker(**SMALL)).fit(X, y)


def test_a_number_of_two_values_is_a_number_to_a_regressor():
    view = TaskRegressor(MultiTaskRanker(**SMALL)).fit(X, pd.Series(LABELS.liked * 4 + 1.0))
    assert view.ranker_.config_.tasks[0].kind == "regression"
    assert len(np.unique(view.predict(X))) > 2
    with pytest.raises(ValueError, match="is no number"):
        TaskRegressor(MultiTaskRanker(**SMALL)).fit(X, LABELS.bought)


def test_a_task_alone_leaves_what_others_share():
    raw = {
        "features": [{"kind": "categorical", "name": "place"}, {"kind": "numeric", "name": "age"}],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "buy", "label": "buy", "kind": "entire_space", "after": "click",
             "counterfactual": "ips"},
            {"name": "list", "label": "click", "kind": "softmax", "group": "session"},
        ],
        "model": {"bias": {"features": ["place"], "tasks": ["click"]}},
        "training": {"monitor": "click.auc"},
    }  # fmt: skip
    flags = pa.chunked_array([pa.array([0, 1, 1])])
    alone = config_from_dict(with_label(raw, "buy", "buy", flags, {"place", "age"}))
    assert [(task.name, task.kind) for task in alone.tasks] == [("buy", "binary")]
    assert alone.model.bias is None
    click = config_from_dict(with_label(raw, "click", "click", flags, {"place", "age"}))
    assert click.model.bias is not None and click.model.bias.tasks == ["click"]
    # All labels, but not the column of the third task's groups
    there = {"place", "age", "click", "buy"}
    assert len(with_label(raw, "click", "click", flags, there)["tasks"]) == 1
    assert len(with_label(raw, "click", "click", flags, there | {"session"})["tasks"]) == 3

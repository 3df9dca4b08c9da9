"""Whole runs of every kind of task: learnt, evaluated, scored, drawn, continued."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.compare import ComparisonSettings, compare_models
from mmoe.config import config_from_dict, prediction_columns, set_values
from mmoe.predictor import load_predictor
from mmoe.report import write_report
from mmoe.run import RunDirectory
from mmoe.score import score_files
from mmoe.train import WarmStart, evaluate_run, train_run
from tests.tasks.kinds_log import NEW, TASKS, kinds_log, kinds_splits, raw_config

ALL = list(TASKS)


@pytest.fixture(name="splits", scope="module")
def _splits():
    return kinds_splits()


@pytest.fixture(name="runs", scope="module")
def _runs(splits, tmp_path_factory):
    """A trained run of each new kind beside a binary task, made when it is asked for."""
    made = {}

    def run(kind: str):
        if kind not in made:
            config = config_from_dict(raw_config([kind, "binary"]))
            made[kind] = train_run(config, tmp_path_factory.mktemp("runs") / kind, splits=splits)
        return made[kind]

    return run


@pytest.mark.parametrize("kind", NEW)
def test_it_beats_the_mean_is_scored_as_evaluated_and_drawn(runs, splits, kind, tmp_path):
    run = runs(kind)
    _scored_as_evaluated(run, splits, kind, tmp_path)
    page = write_report(run.directory.path, tmp_path / "report.html").read_text()
    assert kind in page
    curves = json.loads(run.directory.curves_file.read_text())["tasks"][kind]
    assert len(curves["calibration"]) > 5
    found = run.metrics["tasks"][kind]
    if kind == "multiclass":
        counts = pd.Series(splits.test["genre"].to_pylist()).value_counts(normalize=True)
        assert found["accuracy"] > counts.max() + 0.1
        assert found["macro_auc"] > 0.7
        return
    train, labels = (part[TASKS[kind]["label"]].to_numpy() for part in (splits.train, splits.test))
    if "observed_when" in TASKS[kind]:
        train, labels = train[train > 0], labels[labels > 0]
    mean = train.mean()
    assert found["rmse"] < np.sqrt(((labels - mean) ** 2).mean())
    assert found.get("gini", 1) > 0.4
    if kind == "ordinal":
        assert found["kappa"] > 0.5


def _scored_as_evaluated(run, splits, kind, tmp_path):
    pq.write_table(splits.test, tmp_path / "test.parquet")
    score_files(run.directory, tmp_path / "test.parquet", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")
    assert scores.column_names == prediction_columns(run.directory.config().tasks)
    seen = load_predictor(run.directory)[0].predict(splits.test)
    loaded = mmoe.load(run.directory.path)
    assert loaded.predict(splits.test).equals(scores)
    assert loaded.predict(splits.test.to_pylist()[:3]) == scores[:3].to_pylist()
    for p, name in enumerate(scores.column_names):
        if scores[name].type == pa.float32():
            assert np.array_equal(scores[name].to_numpy(), seen[:, p]), name
    if kind == "multiclass":
        likeliest = [TASKS[kind]["classes"][c] for c in seen[:, 2:5].argmax(axis=1)]
        assert scores["pred_multiclass"].to_pylist() == likeliest
        assert np.allclose(seen[:, 2:5].sum(axis=1), 1)
    if kind == "ordinal":
        assert np.allclose(seen[:, 2:7].sum(axis=1), 1)
        assert np.allclose(seen[:, 2:7] @ np.arange(1, 6), seen[:, 0], atol=1e-4)
    metrics = evaluate_run(run.directory, tmp_path / "test.parquet")["tasks"]
    assert metrics == run.metrics["tasks"]


def test_a_warm_start_begins_where_the_other_ended(splits, tmp_path):
    """In another order, with a task in front: what it predicts at first is what it did."""
    overrides = ["model.interaction=fm", "training.epochs=1"]
    kinds = [kind for kind in ALL if kind != "binary"]
    before = config_from_dict(set_values(raw_config(kinds), overrides))
    one = train_run(before, tmp_path / "one", splits=splits)
    still = [*overrides, "training.optimizer.learning_rate=1e-30",
             "training.embedding_optimizer.learning_rate=1e-30"]  # fmt: skip
    now = config_from_dict(set_values(raw_config(["binary", *kinds[::-1]]), still))
    start = WarmStart(tmp_path / "one")
    two = train_run(now, tmp_path / "two", splits=splits, warm_start=start)
    for kind in kinds:
        old, new = one.metrics["tasks"][kind], two.metrics["tasks"][kind]
        assert {k: v for k, v in new.items() if v} == pytest.approx(
            {k: v for k, v in old.items() if v}, rel=1e-4
        ), kind
    other = config_from_dict(
        set_values(raw_config(["ordinal"]), ["tasks.0.highest=6", "model.interaction=fm"])
    )
    with pytest.raises(ValueError, match=r"tasks\.ordinal\.highest is 5 there and 6 here"):
        train_run(other, tmp_path / "no", splits=splits, warm_start=start)


def test_a_wide_part_leaves_kinds_without_one_alone(splits, tmp_path):
    kinds = ["regression", "multiclass", "ordinal", "binary"]
    settings = ["model.wide=true", "training.monitor=multiclass.logloss"]
    config = config_from_dict(set_values(raw_config(kinds), settings))
    run = train_run(config, tmp_path / "wide", splits=splits)
    assert run.metrics["tasks"]["binary"]["auc"] > 0.8
    assert run.metrics["tasks"]["multiclass"]["macro_auc"] > 0.7
    predictor, _, _ = load_predictor(RunDirectory(tmp_path / "wide"))
    wide = predictor.ranker.wide
    assert wide.dense_TF[[1, 2]].abs().max() == 0
    assert wide.dense_TF[[0, 3]].abs().min() > 0


BAD = {
    "d2q": ("duration", 0.0, r"row 2\b.*'duration'.*task 'd2q'.* is 0, expected a number above 0"),
    "watch_time": ("watch", -3.0, r"row 2\b.*watch.*is -3, expected 0 or more"),
    "ziln": ("spend", -1.0, r"row 2\b.*spend.*is -1, expected 0 or more"),
    "huber": ("score", float("inf"), r"row 2\b.*score.*is inf, expected a finite number"),
    "ordinal": ("stars", 6, r"row 2\b.*stars.*is 6, expected a whole number from 1 to 5"),
    "multiclass": ("genre", "jazz", r"row 2\b.*genre.*is jazz.*none of its classes \(drama, news"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_labels_are_refused_by_their_row(tmp_path, kind):
    column, value, message = BAD[kind]
    frame = kinds_log(500).to_pandas()
    frame[column] = frame[column].astype(object)
    frame.loc[1, column] = value
    frame[column] = frame[column].infer_objects()
    raw = raw_config([kind])
    splits = kinds_splits(500)
    bad = type(splits)(train=pa.Table.from_pandas(frame), validation=splits.validation,
                       test=splits.test, origin="log")  # fmt: skip
    with pytest.raises(ValueError, match=message):
        train_run(config_from_dict(raw), tmp_path / "run", splits=bad)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("label", "said"), [("0 * watch", "nothing is watched"), ("watch + 1", "negatives: all")]
)
def test_nothing_watched_and_all_watched(tmp_path, label, said):
    papers = [f"tasks.0.label={label}", "tasks.0.negatives=unwatched"]
    config = config_from_dict(set_values(raw_config(["watch_time"]), papers))
    with pytest.raises(ValueError, match=said):
        train_run(config, tmp_path / "run", splits=kinds_splits(500))


def test_columns_of_scores_differ():
    raw = raw_config(["ziln", "binary"])
    raw["tasks"][1]["name"] = "ziln_positive"
    raw["training"]["monitor"] = "ziln.rmse"
    with pytest.raises(
        ValueError, match="predictions column 'pred_ziln_positive' is defined twice"
    ):
        config_from_dict(raw)


def test_the_estimator_gives_classes_levels_and_probabilities():
    kinds = ["multiclass", "ordinal", "ziln", "d2q", "binary"]
    log = kinds_log().to_pandas()
    X = log[["user", "item", "x", "duration"]]
    y = log[["genre", "stars", "spend", "watch"]]
    ranker = mmoe.MultiTaskRanker(config=raw_config(kinds, epochs=2)).fit(X[:2500], y[:2500])
    probabilities, decided = ranker.predict_proba(X[2500:]), ranker.predict(X[2500:])
    assert list(probabilities) == prediction_columns(ranker.config_.tasks)
    assert (probabilities["pred_multiclass"] == decided["multiclass"]).all()
    assert (decided["multiclass"] == y.genre[2500:]).mean() > 0.5
    assert set(decided["ordinal"].unique()) <= {1, 2, 3, 4, 5}
    with pytest.raises(ValueError, match="kind multiclass, which has no view"):
        ranker.task("multiclass")
    assert ranker.task("ordinal").predict(X[2500:2510]).shape == (10,)


def test_a_comparison_has_simple_models_of_every_kind(tmp_path):
    pq.write_table(kinds_log(1500), tmp_path / "log.parquet")
    config = config_from_dict(
        set_values(raw_config(ALL, epochs=1), [f"data.path={tmp_path / 'log.parquet'}"])
    )
    settings = ComparisonSettings(models=("mmoe",), seeds=1)
    result = compare_models(config, tmp_path / "out", settings)
    for model in result["models"]:
        found = {key: value["mean"] for key, value in model["results"].items()}
        assert found["multiclass.accuracy"] > 0.4, model["name"]
        assert found["ordinal.rmse"] < 1.6, model["name"]

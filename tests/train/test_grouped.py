"""Tasks that compare rows of a group, by every way that a model goes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.labels.encode import encode_labels
from mmoe.metrics.of_tasks import task_metrics
from mmoe.report import write_report
from mmoe.score import score_files
from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train import evaluate_run
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.step import Step, backward, forward
from tests.runs import Listens


def kind(name, *more):
    return [f"tasks.click.kind={name}", *more]


@pytest.mark.parametrize("name", ["bpr", "jrc"])
def test_scores_are_evaluated_bit_for_bit(train, splits, tmp_path, name):
    """With a second such task, whose label is cut, a bias tower and a wide part."""
    more = ["model.bias={features: [tags]}", "model.wide=true"] if name == "jrc" else []
    finished = train(
        "run", *kind(name, "tasks.buy.kind=softmax", "training.monitor=click.auc"), *more
    )
    run, test = finished.directory, splits.test
    pq.write_table(test, tmp_path / "test.parquet")
    score_files(run, tmp_path / "test.parquet", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")["pred_click"].to_numpy()
    found = evaluate_run(run, tmp_path / "test.parquet")["tasks"]["click"]
    labels, users = test["click"].to_numpy().astype(float), test["user"].to_numpy()
    expected, _ = task_metrics(name, labels, scores, groups=users)
    assert found["auc"] == expected["auc"] > 0.6
    assert found["gauc"] == expected["gauc"] > 0.6
    assert found == finished.metrics["tasks"]["click"]
    calibrated = {"logloss", "ne", "calibration", "ece"}
    assert calibrated & set(found) == (calibrated if name == "jrc" else set())
    assert not calibrated & set(finished.metrics["tasks"]["buy"])
    if name == "jrc":
        assert (
            found["logloss_with_bias"] > 0 and "auc_with_bias" in finished.metrics["tasks"]["buy"]
        )
    page = write_report(run.path).read_text()
    assert "ranked rows" in page


def test_accumulated_batches_are_one_large_batch(funnel_config, splits):
    """The gradient of a step does not depend on how its groups lie in batches."""
    config = config_from_dict(set_values(funnel_config, kind("jrc", "model.expert.dropout=0")))
    data = prepare(config, splits=splits)
    gradients = []
    for size in (3000, 1000):
        ranker = training_state(config, data).ranker.train()
        step = Step.of(list(data.train.epoch_batches(0, 0, size)))
        forward(ranker, step, TaskLosses(config.trained_tasks))
        backward(step, TaskLosses(config.trained_tasks))
        gradients.append([weight.grad for weight in ranker.network.parameters()])
    assert len(step.batches) == 3
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_batches_keep_groups_whole(funnel_config, splits):
    config = config_from_dict(set_values(funnel_config, kind("bpr")))
    data = prepare(config, splits=splits)
    users = splits.train["user"].to_numpy()
    counts = np.sort(np.unique(users, return_counts=True)[1])
    found = []
    for batch in data.train.epoch_batches(3, 1, 256):
        assert batch.groups_B is not None and len(batch) < 512
        found += np.bincount(batch.groups_B.numpy()).tolist()
    assert sorted(found) == counts.tolist()


def test_a_group_larger_than_a_batch_is_cut_and_said(train):
    said = Listens()
    train("run", *kind("softmax", "training.batch_size=64", "training.epochs=1"), reporter=said)
    [line] = [line for line in said.lines if "cut, anew" in line]
    assert line.startswith("note: 3") and "groups of user with more than 64 rows" in line


def test_group_column_that_is_missing(funnel_table, funnel_config, tmp_path, mmoe):
    pq.write_table(funnel_table, tmp_path / "log.parquet")
    raw = set_values(funnel_config, kind("bpr", "tasks.click.group=session"))
    (tmp_path / "config.yaml").write_text(json.dumps(raw))
    train = ["train", tmp_path / "config.yaml", "--data", tmp_path / "log.parquet", "--out", "run"]
    code, _, err = mmoe(*train)
    assert code == 2 and "no column 'session', which group of tasks needs" in err
    raw["data"] |= {"streaming": {"above_mb": 0}}
    raw["tasks"][0]["group"] = "user"
    (tmp_path / "config.yaml").write_text(json.dumps(raw))
    code, _, err = mmoe(*train)
    assert code == 2 and "set data.input: memory" in err and "\n" not in err.strip()


@pytest.mark.parametrize("session", ["unique", "missing", "of one class"])
def test_groups_with_nothing_to_compare_are_refused(session):
    click = np.tile([0, 1, 0], 40)
    keys = {
        "unique": pa.array(np.arange(120)),
        "missing": pa.array([None] * 120, pa.int64()),
        "of one class": pa.array(click),
    }[session]
    config = config_from_dict({
        "data": {"group_column": "session"},
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [{"name": "click", "label": "click", "kind": "bpr"}],
    })  # fmt: skip
    log = pa.table({"x": np.arange(120.0), "click": click, "session": keys})
    with pytest.raises(ValueError, match=r"'click' \(bpr\) compares rows of the same 'session'"):
        encode_labels(config, log, "log", training=True)


def test_jrc_is_calibrated(train, splits):
    means = []
    train("jrc", *kind("jrc", "training.epochs=6", "training.patience=6"),
          on_test=lambda p, _: means.append(p[:, 0].mean()))  # fmt: skip
    assert abs(means[0] - np.mean(splits.test["click"].to_numpy())) < 0.05

"""Runs of requests that go on: warm starts, frozen parts, fewer experts."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict
from mmoe.explain.prune import prune_run
from mmoe.predictor import load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.train import WarmStart, train_run
from tests.datasets.request_log import SPLIT, log_of_requests, nested_log
from tests.runs import scores
from tests.train.request_runs import MODEL, raw_config

PLAIN = {**MODEL, "num_experts": 4}
STILL = {"optimizer": {"learning_rate": 1e-12}, "embedding_optimizer": {"learning_rate": 1e-12}}
FREEZE = ["experts", "gates", "towers", "tables", "encoder", "sequences"]


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(150)


@pytest.fixture(name="data", scope="module")
def _data(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    pq.write_table(log, folder / "flat.parquet", row_group_size=100)
    return {"path": str(folder / "flat.parquet"), "split": SPLIT}


@pytest.fixture(name="run", scope="module")
def _run(data, tmp_path_factory):
    """With experts of the request."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train_run(config_from_dict(raw_config("flat", data, epochs=1)), folder)
    return folder


def test_a_run_without_requests_goes_on_with_them(data, log, tmp_path):
    train_run(config_from_dict(raw_config("plain", data, PLAIN, epochs=1)), tmp_path / "plain")
    raw = raw_config("flat", data, PLAIN, epochs=1, **STILL)
    train_run(config_from_dict(raw), tmp_path / "with", warm_start=WarmStart(tmp_path / "plain"))
    np.testing.assert_allclose(*(scores(tmp_path / n, log) for n in ("plain", "with")), atol=1e-6)


def test_a_task_comes_to_frozen_experts_of_requests(run, data, log, tmp_path):
    raw = raw_config("flat", data, epochs=1, freeze=FREEZE)
    raw["tasks"].append({"name": "again", "label": "click"})
    train_run(config_from_dict(raw), tmp_path / "after", warm_start=WarmStart(run))
    assert np.array_equal(scores(run, log)[:, 0], scores(tmp_path / "after", log)[:, 0])


def test_features_do_not_come_to_frozen_parts(run, data, tmp_path):
    raw = raw_config("flat", data, epochs=1, freeze=[*FREEZE, "projections"])
    raw["features"].append({"kind": "categorical", "name": "at"})
    raw["tasks"].append({"name": "again", "label": "click"})
    with pytest.raises(ValueError, match=r"training.freeze: features that come to frozen gates"):
        train_run(config_from_dict(raw), tmp_path / "after", warm_start=WarmStart(run))


def _renamed(features, old, new):
    return [{**one, "name": new} if one["name"] == old else one for one in features]


@pytest.mark.parametrize("level", ["request", "row"])
def test_columns_of_a_run_that_goes_on_are_told_by_their_names(run, data, log, tmp_path, level):
    """A number in the place of another: it is read with weights of zero at first."""
    raw = raw_config("flat", data, epochs=1, **STILL)
    old, column = ("age", "user_age") if level == "request" else ("price", "other_price")
    of_row = np.arange(len(log)) if level == "row" else log["request"].to_numpy()
    other = log.append_column(column, pa.array((of_row * 7 % 11).astype(float)))
    pq.write_table(other, tmp_path / "log.parquet")
    raw["data"]["path"] = str(tmp_path / "log.parquet")
    raw["features"] = _renamed(raw["features"], old, column)
    train_run(config_from_dict(raw), tmp_path / "on", warm_start=WarmStart(run))
    constant = pa.array(np.full(len(log), 3.0))
    moved = other.set_column(other.column_names.index(column), column, constant)
    one, two = (scores(tmp_path / "on", rows) for rows in (other, moved))
    if level == "row":  # of the request it has buckets too, whose table is new
        np.testing.assert_allclose(one, two, atol=1e-6)
    weights = CheckpointFolder(RunDirectory(tmp_path / "on").checkpoint).model("best")
    pools = "network.levels.0.mixture.experts.pools"
    new = (weights[f"{pools}.0.weights.0"].abs() < 1e-6).all(2).any()
    assert new == (level == "request")
    assert (weights[f"{pools}.1.weights.0"].abs() < 1e-6).all(2).any()


@pytest.mark.parametrize("more", ["task", "experts", "domains"])
def test_what_comes_to_experts_of_requests(run, data, log, tmp_path, more):
    counts = dict.fromkeys(("request", "row"), 2 + (more == "experts"))
    model = {**MODEL, "num_experts": counts}
    scene = log.append_column("scene", pa.array(np.array(["a", "b"])[np.arange(len(log)) % 2]))
    pq.write_table(scene, tmp_path / "log.parquet")
    if more == "domains":
        model["domains"] = {"column": "scene"}
    raw = raw_config("flat", {**data, "path": str(tmp_path / "log.parquet")}, model, epochs=1,
                     **STILL)  # fmt: skip
    if more == "task":
        raw["tasks"].append({"name": "again", "label": "click"})
    train_run(config_from_dict(raw), tmp_path / "on", warm_start=WarmStart(run))
    if more != "experts":  # an expert that comes takes its share of the weights
        np.testing.assert_allclose(
            scores(run, scene)[:, 0], scores(tmp_path / "on", scene)[:, 0], atol=1e-6
        )
    old, new = (
        CheckpointFolder(RunDirectory(folder).checkpoint).model("best")
        for folder in (run, tmp_path / "on")
    )
    for pool in ("request", "row"):  # those that were there are first
        name = f"network.levels.0.mixture.experts.pools.{int(pool == 'row')}.weights.0"
        assert len(new[name]) == counts[pool]
        torch.testing.assert_close(new[name][:2], old[name], rtol=0, atol=1e-6)


def test_requests_and_domains_train_and_score_together(data, log, tmp_path):
    """A domain differs inside a request, and no feature reads it."""
    scene = log.append_column("scene", pa.array(np.array(["a", "b", "c"])[np.arange(len(log)) % 3]))
    pq.write_table(nested_log(scene), tmp_path / "log.parquet", row_group_size=50)
    model = {**MODEL, "domains": {"column": "scene", "towers": "own"}}
    raw = raw_config("nested", {**data, "path": str(tmp_path / "log.parquet")}, model, epochs=1)
    raw["tasks"].append({"name": "like", "label": "click", "domains": ["a", "b"]})
    train_run(config_from_dict(raw), tmp_path / "run")
    found = scores(tmp_path / "run", scene)
    assert np.array_equal(np.isnan(found[:, 1]), np.arange(len(log)) % 3 == 2)
    order = np.random.default_rng(0).permutation(len(log))
    again = scores(tmp_path / "run", scene.take(pa.array(order)))
    assert np.array_equal(again, found[order], equal_nan=True)


def test_experts_of_both_sorts_are_pruned_but_one_of_each(run, log, tmp_path):
    for gone, left in ((1, 1), (4, 2)):
        prune_run(RunDirectory(run), [gone], tmp_path / f"without {gone}")
        predictor, _, config = load_predictor(RunDirectory(tmp_path / f"without {gone}"))
        assert (config.model.num_experts, config.model.request_experts) == (3, left)
        assert np.isfinite(predictor.predict(log)).all()
    with pytest.raises(ValueError, match="no expert of the request would be left"):
        prune_run(RunDirectory(run), [1, 2], tmp_path / "pruned")
    with pytest.raises(ValueError, match=r"request_experts is 2 of num_experts 2"):
        prune_run(RunDirectory(run), [3, 4], tmp_path / "pruned")

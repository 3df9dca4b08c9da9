"""Runs of requests that go on: warm starts, frozen parts, fewer experts."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.explain.prune import prune_run
from mmoe.predictor import load_predictor
from mmoe.run.directory import RunDirectory
from mmoe.train import WarmStart, train_run
from tests.datasets.request_log import log_of_requests
from tests.train.request_runs import MODEL, SPLIT, raw_config

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


def scores(folder, log):
    return load_predictor(RunDirectory(folder))[0].predict(log)


def test_a_run_without_requests_goes_on_with_them(data, log, tmp_path):
    train_run(config_from_dict(raw_config("plain", data, PLAIN, epochs=1)), tmp_path / "plain")
    raw = raw_config("flat", data, PLAIN, epochs=1, **STILL)
    train_run(config_from_dict(raw), tmp_path / "with", warm_start=WarmStart(tmp_path / "plain"))
    np.testing.assert_allclose(*(scores(tmp_path / n, log) for n in ("plain", "with")), atol=1e-6)


@pytest.mark.parametrize("experts", [4, 5])
def test_frozen_parts_keep_their_bits(data, log, tmp_path, experts):
    train_run(config_from_dict(raw_config("flat", data, PLAIN, epochs=1)), tmp_path / "before")
    raw = raw_config("flat", data, {**PLAIN, "num_experts": experts}, epochs=1, freeze=FREEZE)
    raw["tasks"].append({"name": "again", "label": "click"})
    train_run(config_from_dict(raw), tmp_path / "after", warm_start=WarmStart(tmp_path / "before"))
    before, after = (scores(tmp_path / name, log)[:, 0] for name in ("before", "after"))
    assert np.array_equal(before, after)


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


@pytest.mark.parametrize(("gone", "left"), [([1], 1), ([4], 2)])
def test_experts_of_both_sorts_are_pruned(run, log, tmp_path, gone, left):
    prune_run(RunDirectory(run), gone, tmp_path / "pruned")
    predictor, _, config = load_predictor(RunDirectory(tmp_path / "pruned"))
    assert (config.model.num_experts, config.model.request_experts) == (3, left)
    assert np.isfinite(predictor.predict(log)).all()


def test_one_expert_of_each_sort_stays(run, tmp_path):
    with pytest.raises(ValueError, match="no expert of the request would be left"):
        prune_run(RunDirectory(run), [1, 2], tmp_path / "pruned")
    with pytest.raises(ValueError, match="request_experts is 2 of num_experts 2"):
        prune_run(RunDirectory(run), [3, 4], tmp_path / "pruned")

"""Runs that are evaluated and scored with tables in fewer bits than they were trained in."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from mmoe.config import config_from_dict
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.run import RunDirectory
from mmoe.score import load_predictor, score_files
from mmoe.train import evaluate_run
from mmoe.train.evaluate import _cost_of_precision
from tests.ranks import launch

TASKS = ["pred_click", "pred_buy"]


@pytest.fixture(
    scope="module",
    name="run",
    params=["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)],
)
def _run(request, funnel_config, train_funnel):
    """On TorchRec users come and go, and items are trained in fp16."""
    raw = {**funnel_config, "training": {**funnel_config["training"], "epochs": 2}}
    raw["training"]["embedding_backend"] = request.param
    if request.param == "torchrec":
        user = {"kind": "categorical", "name": "user", "table": "user"}
        raw["features"] = [user, *funnel_config["features"][1:]]
        raw["tables"] = [{"name": "user", "encoding": "managed", "rows": 30, "evict_every": 5}]
        raw["parallel"] = {"per_table": {"item": {"precision": "fp16"}}}
    return train_funnel(raw)


@pytest.fixture(name="log")
def _log(funnel_table, tmp_path):
    pq.write_table(funnel_table[3300:], tmp_path / "log.parquet", row_group_size=200)
    return tmp_path / "log.parquet"


def _predictions(run, table, **options):
    predictor, encoder, _ = load_predictor(run, **options)
    return predictor.predict(EncodedData(features=encoder.encode(table, "log")))


def _scores(path):
    table = pq.read_table(path)
    return np.stack([table[name].to_numpy() for name in TASKS], axis=1)


@pytest.mark.parametrize(("precision", "most"), [("int8", 2e-2), ("fp16", 1e-3)])
def test_predictions_and_auc_hardly_change(run, funnel_table, log, precision, most):
    as_trained = _predictions(run, funnel_table)
    narrow = _predictions(run, funnel_table, table_precision=precision)
    assert 0 < np.abs(narrow - as_trained).max() < most
    before = evaluate_run(run, log)["tasks"]
    after = evaluate_run(run, log, table_precision=precision)["tasks"]
    for task in ("click", "buy"):
        assert after[task]["rows"] == before[task]["rows"]
        assert abs(after[task]["auc"] - before[task]["auc"]) < 5e-3


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_scores_equal_evaluation_bit_for_bit(run, funnel_table, log, tmp_path, precision):
    expected = _predictions(run, funnel_table[3300:], table_precision=precision)
    out = tmp_path / "scores.parquet"
    assert score_files(run, log, out, table_precision=precision) == 700
    assert np.array_equal(_scores(out), expected)
    shuffled = np.random.default_rng(5).permutation(700)
    again = _predictions(run, funnel_table[3300:].take(shuffled), table_precision=precision)
    assert np.array_equal(again, expected[shuffled])


def test_a_checkpoint_of_another_model_is_refused(run, tmp_path):
    other = RunDirectory(tmp_path / "other")
    shutil.copytree(run.path, other.path)
    (file,) = other.checkpoint.glob("*/model.safetensors")
    tensors = load_file(file)
    tensors["tables.item"] = tensors["tables.item"][1:].clone()
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"'tables.item' has shape .* in the checkpoint and .* in"):
        load_predictor(other, table_precision="int8")
    tensors["tables.more"] = tensors.pop("tables.item")
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"the checkpoint has no tensor 'tables.item'"):
        load_predictor(other, table_precision="int8")


def test_the_command_line_says_what_it_takes_and_costs(mmoe, run, log, tmp_path):
    narrow = ("--table-precision", "int8")
    code, out, err = mmoe("evaluate", run.path, "--data", log, "--json", *narrow)
    assert code == 0, err
    assert json.loads(out)["tasks"] == evaluate_run(run, log, table_precision="int8")["tasks"]
    assert "parameters in int8, " in err
    assert "KiB in fp32)" in err
    assert "as trained" not in err  # metrics of the run are of other rows
    code, out, err = mmoe(
        "score", run.path, "--input", log, "--output", tmp_path / "s.parquet", *narrow
    )
    assert code == 0, err
    assert "tables: " in err
    code, out, err = mmoe("evaluate", run.path, "--data", log, "--table-precision", "int4")
    assert code == 2
    assert "'int4' is not one of 'fp16', 'int8'" in " ".join(err.replace("│", " ").split())


def test_evaluation_of_the_test_split_compares_with_the_run(mmoe, tmp_path):
    settings = ["data.options.rows=4000", "training.epochs=1", "training.embedding_backend=plain"]
    code, _, err = mmoe(
        "train", "synthetic-funnel", "--out", tmp_path / "run", "--quiet", "--set", *settings
    )
    assert code == 0, err
    code, _, err = mmoe("evaluate", tmp_path / "run", "--table-precision", "fp16")
    assert code == 0, err
    for task, metrics in RunDirectory.open(tmp_path / "run").metrics()["tasks"].items():
        assert f"{task}: AUC 0." in err
        assert f" with tables in fp16, {metrics['auc']:.5f} as trained (" in err


def test_a_change_too_small_to_print_has_no_minus():
    task = {"name": "click", "label": "click"}
    config = config_from_dict({"features": [{"kind": "numeric", "name": "x"}], "tasks": [task]})
    trained, metrics = {"click": {"auc": 0.7}}, {"click": {"auc": 0.7 - 1e-9}}
    lines = _cost_of_precision(config, trained, metrics, "fp16")
    assert [*lines] == ["click: AUC 0.70000 with tables in fp16, 0.70000 as trained (+0.00000)"]


@pytest.mark.parametrize("run", ["torchrec"], indirect=True)
def test_two_ranks_share_the_tables_out(run, log, tmp_path):
    narrow = ["--table-precision", "int8"]
    alone = _scores_of(run, log, tmp_path / "alone.parquet")
    ended = launch(["score", run.path, "--input", log, "--output", tmp_path / "two", *narrow], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    (scored,) = (tmp_path / "two").glob("*.parquet")
    np.testing.assert_allclose(_scores(scored), alone, rtol=0, atol=1e-6)
    assert "tables: " in ended[0].err
    assert "tables: " not in ended[1].err
    first, _ = launch(["evaluate", run.path, "--data", log, "--json", "-q", *narrow], 2)
    tasks, expected = json.loads(first.out)["tasks"], evaluate_run(run, log, table_precision="int8")
    for task, metrics in expected["tasks"].items():
        assert tasks[task] == pytest.approx(metrics, abs=1e-6)


def _scores_of(run, log, path):
    score_files(run, log, path, table_precision="int8")
    return _scores(path)

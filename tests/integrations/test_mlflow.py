"""A run as a model of MLflow: the files it is made of, and MLflow loading them."""

from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from mmoe.checkpoint.folder import copy_to_score
from mmoe.config import config_from_dict, set_values
from mmoe.integrations.mlflow import _load_pyfunc, save_model
from mmoe.run import RunDirectory, write_json
from mmoe.score import load_predictor
from mmoe.train import train_run
from mmoe.train.loggers import open_mlflow_run


@pytest.fixture(scope="module")
def run(funnel_config, funnel_table, tmp_path_factory):
    config = config_from_dict(set_values(funnel_config, ["training.epochs=1"]))
    out = tmp_path_factory.mktemp("mlflow") / "run"
    return train_run(config, out, data=funnel_table).directory


@pytest.fixture
def frame(funnel_table):
    frame = funnel_table.select(["user", "item", "price", "tags"]).to_pandas()[:50]
    return frame.set_index(np.arange(50) + 7)


def expected(run, frame):
    return load_predictor(run)[0].predict(frame)


def test_the_files_of_a_model(run, frame, tmp_path):
    copy_to_score(run, RunDirectory(tmp_path / "model"))
    files = {p.relative_to(tmp_path / "model").as_posix() for p in tmp_path.rglob("*.safetensors")}
    assert len(files) == 1 and "model.safetensors" in files.pop()
    model = _load_pyfunc(str(tmp_path / "model"))
    predictions = model.predict(frame)
    assert list(predictions.columns) == ["pred_click", "pred_buy"]
    assert predictions.index.equals(frame.index)
    assert np.array_equal(predictions.to_numpy(), expected(run, frame))
    for rows in (frame.to_dict("records"), frame.to_dict("list"), pa.table(frame)):
        assert np.array_equal(model.predict(rows).to_numpy(), predictions.to_numpy())
    assert model.predict(frame[:0]).shape == (0, 2)


def test_what_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.integrations.mlflow.import_extra", lambda module: None)
    with pytest.raises(ValueError, match="there is no such run directory"):
        save_model(RunDirectory(tmp_path / "none").path, tmp_path / "model")


def test_an_example_that_lacks_a_column(run, frame, tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.integrations.mlflow.import_extra", lambda module: None)
    with pytest.raises(ValueError, match="input_example: there is no column 'price'"):
        save_model(run.path, tmp_path / "model", input_example=frame.drop(columns="price"))


@pytest.mark.parametrize("theirs", [None, "open"])
def test_the_run_of_training_is_gone_on_with_where_none_is_open(tmp_path, theirs):
    write_json(tmp_path / "mlflow.json", {"tracking_uri": "file:there", "run_id": "7"})
    told = []
    mlflow = SimpleNamespace(
        active_run=lambda: theirs,
        get_tracking_uri=lambda: "file:here",
        set_tracking_uri=told.append,
        start_run=lambda run_id: nullcontext(told.append(run_id)),
    )
    with open_mlflow_run(mlflow, tmp_path):
        told.append("logged")
    ours = ["file:there", "7", "logged", "file:here"]
    assert told == (ours if theirs is None else ["logged"])


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_without_mlflow(run, tmp_path):
    with pytest.raises(ValueError, match=r"pip install 'mmoe\[mlflow\]'"):
        save_model(run.path, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: mmoe[mlflow]")
@pytest.mark.parametrize("with_example", [False, True])
def test_mlflow_loads_it(run, frame, tmp_path, with_example):
    import mlflow

    example = frame[:3].assign(other=1) if with_example else None
    save_model(run.path, tmp_path / "model", input_example=example)
    assert not list((tmp_path / "model").rglob("*.pkl"))
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    names = [column.name for column in model.metadata.signature.inputs]
    assert names == ["user", "item", "price", "tags"]
    predictions = model.predict(frame)
    assert np.array_equal(predictions.to_numpy(), expected(run, frame))
    with pytest.raises(Exception, match="price"):
        model.predict(frame.drop(columns="price"))

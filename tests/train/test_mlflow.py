"""`training.loggers: [mlflow]`: what MLflow is told, by a client that remembers it; and MLflow."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.run import RunDirectory
from mmoe.train import train_run
from mmoe.train.loggers import MlflowLog, open_loggers
from tests.runs import Listens

SETTINGS = ("training.loggers=[mlflow]", "training.epochs=2")


class Client:
    """What is used of an MlflowClient."""

    runs: dict

    def __init__(self, tracking_uri=None):
        self.fails = False

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return f"of {name}"

    def create_run(self, experiment, run_name):
        number = f"run-{len(self.runs)}"
        self.runs[number] = {"experiment": experiment, "name": run_name, "status": "RUNNING"}
        self.runs[number] |= {"params": {}, "metrics": {}, "artifacts": []}
        return self.get_run(number)

    def get_run(self, number):
        data = SimpleNamespace(params=self.runs[number]["params"])
        return SimpleNamespace(info=SimpleNamespace(run_id=number), data=data)

    def update_run(self, number, status):
        self.runs[number]["status"] = status

    set_terminated = update_run

    def log_batch(self, number, params=(), metrics=()):
        if metrics and getattr(Client, "broken", False):
            raise ConnectionError("the store\nis gone")
        self.runs[number]["params"].update((p.key, p.value) for p in params)
        for metric in metrics:
            self.runs[number]["metrics"][metric.key, metric.step] = metric.value

    def log_artifact(self, number, path):
        self.runs[number]["artifacts"].append(path.rpartition("/")[2])


@pytest.fixture
def runs(monkeypatch):
    """The runs of a stand-in for MLflow."""
    for variable in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Client, "runs", {}, raising=False)
    mlflow, tracking, entities = map(ModuleType, ("mlflow", "tracking", "entities"))
    mlflow.__spec__ = ModuleSpec("mlflow", None)
    mlflow.active_run, mlflow.get_tracking_uri = lambda: None, lambda: "file:here"
    tracking.MlflowClient = Client
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, step=step
    )
    modules = {"mlflow": mlflow, "mlflow.tracking": tracking, "mlflow.entities": entities}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Client.runs


@pytest.fixture
def config(funnel_config):
    return config_from_dict(set_values(funnel_config, SETTINGS))


def test_what_mlflow_is_told(runs, config, funnel_table, tmp_path):
    finished = train_run(config, tmp_path / "mine", data=funnel_table)
    (found,) = runs.values()
    assert (found["experiment"], found["name"], found["status"]) == (
        "of funnel",
        "mine",
        "FINISHED",
    )
    assert found["params"]["model.num_experts"] == "3"
    features = "user (categorical), item (categorical), price (numeric), tags (list)"
    assert found["params"]["features"] == features
    assert all(len(value) <= 500 for value in found["params"].values())
    steps = {step for name, step in found["metrics"] if name == "validation/click/auc"}
    assert steps == {1, 2} and ("train/buy/loss", 2) in found["metrics"]
    assert found["metrics"]["test/click/auc", 0] == finished.metrics["tasks"]["click"]["auc"]
    assert {"config.yaml", "metrics.json", "history.json"} <= set(found["artifacts"])
    assert not {"mmoe.json", "mlflow.json"} & set(found["artifacts"])
    assert not finished.directory.tensorboard.exists()
    # Resumed, though nothing is left to do, it is the same run of MLflow
    train_run(config, tmp_path / "mine", data=funnel_table, resume=True)
    assert list(runs) == ["run-0"] and found["status"] == "FINISHED"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (OSError, "FAILED")])
def test_a_run_that_ends_early(runs, config, tmp_path, error, status):
    run = RunDirectory(tmp_path)
    (log,) = open_loggers(config, run, 0, print)
    with pytest.raises(error), log:
        raise error
    assert [found["status"] for found in runs.values()] == [status]
    with MlflowLog.open(config, run, print):
        assert [found["status"] for found in runs.values()] == ["RUNNING"]


def test_a_run_of_the_callers_is_left_open(runs, config, tmp_path):
    theirs = Client().create_run("0", "theirs")
    sys.modules["mlflow"].active_run = lambda: theirs
    log = MlflowLog.open(config, RunDirectory(tmp_path), print)
    log.finish({"tasks": {"click": {"auc": 0.5, "gauc": None}}})
    (found,) = runs.values()
    assert found["status"] == "RUNNING" and found["metrics"] == {("test/click/auc", 0): 0.5}
    assert not (tmp_path / "mlflow.json").exists()


def test_a_store_that_fails_does_not_end_training(
    runs, config, funnel_table, tmp_path, monkeypatch
):
    monkeypatch.setattr(Client, "broken", True, raising=False)
    reporter = Listens()
    train_run(config, tmp_path / "run", data=funnel_table, reporter=reporter)
    said = [line for line in reporter.lines if "mlflow" in line]
    words = "warning: mlflow fails, and is told no more of this run: the store is gone"
    assert said == [words, words]  # while it trains, and at the end


def test_a_store_that_cannot_be_reached(runs, config, funnel_table, tmp_path, monkeypatch):
    def fails(*_):
        raise ConnectionError("no such host")

    monkeypatch.setattr(Client, "create_experiment", fails)
    with pytest.raises(ValueError, match=r"mlflow cannot log to file:here \(no such host\); check"):
        train_run(config, tmp_path / "run", data=funnel_table)
    assert not (tmp_path / "run").exists()


def test_without_mlflow(config, funnel_table, tmp_path, monkeypatch):
    monkeypatch.setattr("mmoe.train.loggers.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"mlflow is not installed; pip install 'mmoe\[mlflow\]'"):
        train_run(config, tmp_path / "run", data=funnel_table)
    assert not (tmp_path / "run").exists()


def test_no_loggers(funnel_config, tmp_path):
    config = config_from_dict(set_values(funnel_config, ["training.loggers=[]"]))
    assert open_loggers(config, RunDirectory(tmp_path), 0, print) == []
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"training\.loggers.*'tensorboard' or 'mlflow'"):
        config_from_dict(set_values(funnel_config, ["training.loggers=[wandb]"]))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: mmoe[mlflow]")
def test_with_mlflow_itself(config, funnel_table, tmp_path, monkeypatch):
    import mlflow

    store = f"sqlite:///{tmp_path}/store.db" if find_spec("sqlalchemy") else str(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(store)
    finished = train_run(config, tmp_path / "run", data=funnel_table)
    run_id = finished.directory.mlflow_file.read_text().split('"run_id": "')[1].split('"')[0]
    found = mlflow.get_run(run_id)
    assert found.info.status == "FINISHED" and found.data.params["seed"] == "3"
    auc = finished.metrics["tasks"]["click"]["auc"]
    assert found.data.metrics["test/click/auc"] == pytest.approx(auc)
    files = {file.path for file in mlflow.MlflowClient().list_artifacts(run_id)}
    assert {"config.yaml", "metrics.json"} <= files

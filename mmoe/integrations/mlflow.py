"""A run as a model of MLflow: `mlflow.pyfunc.load_model(…).predict(frame)`.

MLflow stores files of the run and the name of this module, which loads them: no pickle.
"""

import json
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa

from mmoe import __version__
from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import RunConfig
from mmoe.datasets.rows.frames import TableLike
from mmoe.datasets.rows.locations import missing_column
from mmoe.datasets.rows.projection import required_columns
from mmoe.plugins import import_extra
from mmoe.run import RunDirectory, open_run
from mmoe.score import LoadedRun, load
from mmoe.score.columns import output_schema

_MODULE = "mmoe.integrations.mlflow"
_TYPES = MappingProxyType({"float": "float", "int64": "long", "string": "string"})  # of Arrow


def save_model(
    run_dir: str | Path, path: str | Path, *, input_example: Any = None, **arguments: Any
) -> None:
    """Writes a run's best model as a folder that `mlflow.pyfunc.load_model` loads.

    Args:
        run_dir: A trained run.
        path: The folder to make.
        input_example: A few rows (a DataFrame): the signature then has their types, and MLflow
            refuses others. Without them it has the columns' names, of any type.
        arguments: Of `mlflow.pyfunc.save_model`.

    Raises:
        ValueError: There is no such run, or MLflow is not installed.
    """
    import_extra("mlflow.pyfunc")
    mlflow = import_extra("mlflow")
    with _model(mlflow, run_dir, input_example) as model:
        mlflow.pyfunc.save_model(path=str(path), **(model | arguments))


def log_model(
    run_dir: str | Path, name: str = "model", *, input_example: Any = None, **arguments: Any
) -> Any:
    """Logs a run's best model to MLflow; returns what `mlflow.pyfunc.log_model` returns.

    Logged to the run of MLflow that is open, else to the one that `training.loggers` made.

    Args:
        run_dir: A trained run.
        name: Of the model.
        input_example: As for `save_model`.
        arguments: Of `mlflow.pyfunc.log_model`, such as `registered_model_name`.

    Raises:
        ValueError: There is no such run, or MLflow is not installed.
    """
    import_extra("mlflow.pyfunc")
    mlflow = import_extra("mlflow")
    with _model(mlflow, run_dir, input_example) as model, _open_run(mlflow, run_dir):
        return mlflow.pyfunc.log_model(name=name, **(model | arguments))


class _Pyfunc:
    """What MLflow calls: rows in, a column `pred_TASK` for each task out."""

    def __init__(self, loaded: LoadedRun) -> None:
        self.loaded, self.columns = loaded, loaded.columns

    def predict(
        self, model_input: TableLike, params: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Returns predictions for every row, with the rows' index."""
        answer = self.loaded.predict(model_input)
        return answer.to_pandas() if isinstance(answer, pa.Table) else pd.DataFrame(answer)


def _load_pyfunc(data_path: str) -> _Pyfunc:
    """Called by MLflow, which knows this module and name."""
    return _Pyfunc(load(RunDirectory.open(data_path)))


@contextmanager
def _model(mlflow: Any, run_dir: str | Path, example: Any) -> Generator[dict[str, Any]]:
    """What `mlflow.pyfunc` is given: the files that scoring reads, while it copies them."""
    run = open_run(run_dir)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "run"
        _copy_scoring_files(run, data)
        config = RunDirectory.open(data).config()
        rows = None if example is None else _rows(config, example)
        yield {
            "loader_module": _MODULE,
            "data_path": str(data),
            "signature": _signature(mlflow, config, rows),
            "pip_requirements": [f"mmoe=={__version__}"],
        } | ({} if rows is None else {"input_example": rows})


def _copy_scoring_files(run: RunDirectory, to: Path) -> None:
    """Config, vocabulary and the best weights; no optimizer state, and nothing of the log."""
    best = CheckpointFolder(run.checkpoint).step("best")
    step = to / run.checkpoint.name / best.name
    others = [path.name for path in best.iterdir() if not path.name.startswith("model")]
    shutil.copytree(best, step, ignore=lambda *_: others)
    index = {"latest": best.name, "best": best.name, "kept": [best.name]}
    (step.parent / "index.json").write_text(json.dumps(index), encoding="utf-8")
    shutil.copytree(run.vocabulary, to / run.vocabulary.name)
    for path in (run.config_file, run.metrics_file):
        if path.exists():
            shutil.copy2(path, to)


def _rows(config: RunConfig, example: Any) -> pd.DataFrame:
    """Of an example, the columns that features read."""
    frame = example if isinstance(example, pd.DataFrame) else pa.table(example).to_pandas()
    columns = required_columns(config, labels=False)
    for column in columns:
        if column not in frame.columns:
            raise ValueError(missing_column(column, frame.columns, "input_example"))
    return frame.loc[:, columns]


def _signature(mlflow: Any, config: RunConfig, rows: pd.DataFrame | None) -> Any:
    """Of the columns that features read, and of the predictions."""
    types = import_module("mlflow.types.schema")
    columns = required_columns(config, labels=False)
    any_types = [types.ColSpec(types.AnyType(), name, required=False) for name in columns]
    outputs = [
        types.ColSpec(_TYPES[str(field.type)], field.name) for field in output_schema(config.tasks)
    ]
    inputs = types.Schema(any_types)
    if rows is not None:
        inputs = mlflow.models.infer_signature(rows).inputs
    return mlflow.models.ModelSignature(inputs=inputs, outputs=types.Schema(outputs))


@contextmanager
def _open_run(mlflow: Any, run_dir: str | Path) -> Generator[None]:
    """The caller's, or the one that training made."""
    remembered = RunDirectory(Path(run_dir)).mlflow_file
    if mlflow.active_run() is not None or not remembered.exists():
        yield
        return
    stored = json.loads(remembered.read_text(encoding="utf-8"))
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(stored["tracking_uri"])
    try:
        with mlflow.start_run(run_id=stored["run_id"]):
            yield
    finally:
        mlflow.set_tracking_uri(before)

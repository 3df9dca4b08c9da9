"""A run as a model of MLflow: `mlflow.pyfunc.load_model(…).predict(frame)`.

MLflow stores files of the run and the name of this module, which loads them: no pickle.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from mmoe import __version__
from mmoe.checkpoint.folder import copy_to_score
from mmoe.datasets.rows.locations import check_columns
from mmoe.datasets.rows.projection import column_uses
from mmoe.plugins import import_extra
from mmoe.run import RunDirectory, open_run
from mmoe.score import LoadedRun, load
from mmoe.score.columns import output_schema
from mmoe.train.loggers import open_mlflow_run


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
    with _model(run_dir, input_example) as (mlflow, model):
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
    with _model(run_dir, input_example) as (mlflow, model), open_mlflow_run(mlflow, run_dir):
        return mlflow.pyfunc.log_model(name=name, **(model | arguments))


class _Pyfunc(LoadedRun):
    """Model that MLflow calls: rows in, a column `pred_TASK` for each task out."""

    def predict(self, rows: Any, params: Any = None) -> pd.DataFrame:
        """Returns predictions for every row, with the rows' index."""
        answer = super().predict(rows)
        return answer.to_pandas() if isinstance(answer, pa.Table) else pd.DataFrame(answer)


def _load_pyfunc(data_path: str) -> _Pyfunc:
    """Called by MLflow, which knows this module and name."""
    return _Pyfunc(load(data_path).scorer)


@contextmanager
def _model(run_dir: str | Path, example: Any) -> Generator[tuple[Any, dict[str, Any]]]:
    """MLflow, and what `pyfunc` is given: the files that scoring reads, while it copies them."""
    import_extra("mlflow.pyfunc")
    mlflow, run = import_extra("mlflow"), open_run(run_dir)
    uses = column_uses(run.config(), labels=False)
    made: dict[str, Any] = {"loader_module": __name__, "pip_requirements": [f"mmoe=={__version__}"]}
    if example is not None:
        rows = example if isinstance(example, pd.DataFrame) else pa.table(example).to_pandas()
        check_columns(uses, list(rows.columns), "input_example")
        made["input_example"] = rows.loc[:, list(uses)]
    types = mlflow.types.schema
    inputs = types.Schema([types.ColSpec(types.AnyType(), name, required=False) for name in uses])
    if example is not None:
        inputs = mlflow.models.infer_signature(made["input_example"]).inputs
    kinds = {"float": "float", "int64": "long", "string": "string"}  # of Arrow, and of MLflow
    fields = output_schema(run.config().tasks)
    outputs = types.Schema([types.ColSpec(kinds[str(f.type)], f.name) for f in fields])
    signature = mlflow.models.ModelSignature(inputs=inputs, outputs=outputs)
    with tempfile.TemporaryDirectory() as folder:
        copy_to_score(run, data := RunDirectory(Path(folder) / "run"))
        yield mlflow, {**made, "data_path": str(data.path), "signature": signature}

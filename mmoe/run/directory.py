"""Files of a run directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmoe.alarms import Distribution, PredictedFile, TrainingColumns
from mmoe.config import RunConfig, Stored, load_config, read_model
from mmoe.run.atomic_files import read_json
from mmoe.run.folder_claim import FolderMark


class _Metrics(Stored):
    """The keys of metrics.json that are read."""

    tasks: dict[str, dict[str, float | None]]
    validation: dict[str, dict[str, float | None]]
    train: dict[str, Any]


class _Below:
    """Path of a file or folder, by its name in the run's."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunDirectory | None", _: type) -> Path:
        if run is None:
            raise AttributeError(f"{self.name}: expected a run's folder, got the class")
        return run.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run's files. `open` checks a folder; a `FolderClaim` makes new ones."""

    path: Path

    config_file = _Below("config.yaml")
    """File of the resolved config."""
    metrics_file = _Below("metrics.json")
    """Metrics of the test and validation split; written last, so it marks a finished run."""
    history_file = _Below("history.json")
    """One entry an epoch: losses, validation metrics, seconds."""
    curves_file = _Below("curves.json")
    """File of what the report draws: ROC, calibration, gates."""
    warm_start_file = _Below("warm_start.json")
    """File of what a warm start kept; absent where there was none."""
    data_file = _Below("data.json")
    """File of what the rows came from; copies for scoring have none."""
    maturity_file = _Below("maturity.json")
    """File of when labels were collected; of runs with `matures_after` alone."""
    columns_file = _Below("columns.json")
    """File of what each column was like in training, for alarms; may be absent."""
    predictions_file = _Below("predictions.json")
    """File of how predictions of the test split are distributed; may be absent."""
    plan_file = _Below("plan.json")
    """File of which rank holds which tables; of runs on several ranks alone."""
    vocabulary = _Below("vocabulary")
    """Folder of the fitted encoder."""
    checkpoint = _Below("checkpoint")
    """Weights and training state."""
    tensorboard = _Below("tensorboard")
    """TensorBoard events."""
    mlflow_file = _Below("mlflow.json")
    """File of which run of MLflow this one is logged to; only with `training.loggers`."""
    profile = _Below("profile")
    """Folder of where a step's time goes; only with `mmoe train --profile`."""

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Opens an existing run.

        Raises:
            ValueError: `path` is not the folder of a run that got as far as a checkpoint.
        """
        run = cls(Path(path))
        if not run.path.is_dir():
            raise ValueError(f"{path}: there is no such run directory; `mmoe train` makes one")
        for needed in (run.config_file, run.vocabulary, run.checkpoint / "index.json"):
            if not needed.exists():
                raise ValueError(
                    f"{path}: is not the directory of a trained run, it has no "
                    f"{needed.relative_to(run.path)}; name the folder that `mmoe train` printed"
                )
        return run

    def config(self) -> RunConfig:
        """Reads the config that the run was trained with.

        Raises:
            ValueError: It is damaged, or names a module that has to be imported first (`--import`).
        """
        return load_config(self.config_file, of_run=True)

    def training_columns(self) -> TrainingColumns | None:
        """Reads what each column was like in training; None: there is no such file, or a later one.

        Raises:
            ValueError: The file is damaged.
        """
        if not self.columns_file.exists():
            return None
        found = read_model(self.columns_file, TrainingColumns, "train again")
        return found if found.format == TrainingColumns.FORMAT else None

    def predicted(self) -> dict[str, Distribution]:
        """Reads how the predictions of the test split were distributed; empty if that is not known.

        Raises:
            ValueError: The file is damaged.
        """
        if not self.predictions_file.exists():
            return {}
        return read_model(self.predictions_file, PredictedFile, "train again").columns

    def metrics(self) -> dict[str, Any]:
        """Reads metrics.json.

        Raises:
            ValueError: The run has not finished.
        """
        if not self.metrics_file.exists():
            mark = FolderMark.read(self.path)
            if mark is not None and mark.diverged is not None:
                raise ValueError(
                    f"{self.path}: the run has no metrics.json, because training diverged "
                    f"({mark.diverged}); train with another --out"
                )
            raise ValueError(
                f"{self.path}: the run has no metrics.json, so its training was interrupted; "
                f"finish it with `mmoe train … --out {self.path} --resume`"
            )
        return read_json(self.metrics_file, _Metrics)

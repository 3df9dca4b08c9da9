"""Loggers beside a run's own folder, `training.loggers`: TensorBoard, MLflow."""

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from mmoe.config import RunConfig, Stored
from mmoe.run import RunDirectory, read_json, write_json
from mmoe.run.folder_claim import MARK

_Metrics = Mapping[str, Mapping[str, Any]]  # by task


def open_loggers(
    config: RunConfig, run: RunDirectory, step: int, say: Callable[[str], None]
) -> "list[EventLog | MlflowLog]":
    """Opens the loggers that a config names; context managers.

    Args:
        config: Of the run.
        run: Its folder.
        step: Steps done before, by a run that is resumed.
        say: Told where a logger fails that training can do without.

    Raises:
        ValueError: A place cannot be logged to.
    """
    return [
        EventLog(run.tensorboard, step)
        if name == "tensorboard"
        else MlflowLog.open(config, run, say)
        for name in config.training.loggers
    ]


def check_loggers(config: RunConfig) -> None:
    """Refuses a logger whose package is missing, before a run's folder is made.

    Raises:
        ValueError: Says what to install.
    """
    if "mlflow" in config.training.loggers and find_spec("mlflow") is None:
        raise ValueError(
            "training.loggers: mlflow is not installed; pip install 'mmoe[mlflow]', or leave it out"
        )


def log_finished(
    config: RunConfig, run: RunDirectory, metrics: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Logs what is known when all is written: the test split's metrics, and the run's files."""
    if "mlflow" not in config.training.loggers:
        return
    try:
        MlflowLog.open(config, run, say).finish(metrics)
    except ValueError as error:  # the run itself is done
        say(f"warning: {error}")


# One training point every so many steps keeps event files small; seconds until a point is on disk
_STEPS_BETWEEN_POINTS, _FLUSH_SECONDS = 10, 30.0


class EventLog:
    """Writes losses while training and metrics after every epoch; a context manager.

    Written here and now, not by a thread as torch's `SummaryWriter` does: what is wrong with the
    file (a full disk) is then an error of the run, where that thread would die with a traceback.

    Args:
        folder: Of the event files.
        step: Steps done before; points after it from an interrupted run are hidden.

    Raises:
        OSError: The file cannot be written; names it.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.flushed = folder, time.monotonic()
        # Imported where they are used: torch.utils.tensorboard would take a fifth of a second more
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / f"{name}.{time.monotonic_ns()}").open("xb")
        self.records = RecordWriter(self.file)
        # Made by protobuf: no types
        self.events, self.summaries = cast(Any, event_pb2), cast(Any, summary_pb2)
        self._write(file_version="brain.Event:2")
        if step:
            start = self.events.SessionLog(status=self.events.SessionLog.START)
            self._write(step=step + 1, session_log=start)
        self._flush()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        with self._named() if kind is None else suppress(OSError):
            self.file.close()

    def losses(self, step: int, losses: Mapping[str, float], dropped: int | None) -> None:
        """Writes the training loss of each task, and picks that the capacity dropped."""
        if step % _STEPS_BETWEEN_POINTS:
            return
        for task, loss in losses.items():
            self._scalar(f"train/{task}/loss", loss, step)
        if dropped is not None:
            self._scalar("train/dropped_picks", dropped, step)
        if time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self._flush()

    def epoch(self, step: int, metrics: _Metrics, rows_per_second: float) -> None:
        """Writes the validation metrics of each task."""
        self._scalar("train/rows_per_second", rows_per_second, step)
        for task, values in metrics.items():
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._scalar(f"validation/{task}/{name}", value, step)
        self._flush()

    def _scalar(self, tag: str, value: float, step: int) -> None:
        point = self.summaries.Summary.Value(tag=tag, simple_value=value)
        self._write(step=step, summary=self.summaries.Summary(value=[point]))

    def _write(self, **fields: Any) -> None:
        event = self.events.Event(wall_time=time.time(), **fields)
        with self._named():
            self.records.write(event.SerializeToString())

    def _flush(self) -> None:
        self.flushed = time.monotonic()
        with self._named():
            self.file.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{self.folder}: TensorBoard's events cannot be written"
            raise OSError(f"{what}: {error}") from error


_LONGEST_VALUE = 500  # characters of a parameter, which stores of any version take
_MOST_AT_ONCE = 100  # parameters, likewise
_LARGEST_ARTIFACT = 16 << 20  # bytes: the run's folder has the rest


class _Remembered(Stored):
    """mlflow.json."""

    tracking_uri: str
    run_id: str


class _History(Stored):
    """The keys of history.json that are read."""

    epochs: list[Any]


class MlflowLog:
    """A run of MLflow: parameters, metrics of every epoch, the run's small files.

    Where the caller has a run of its own open (`mlflow.start_run`), that one is logged to, and left
    open. Otherwise one is made in the experiment that MLflow is set to (`MLFLOW_EXPERIMENT_NAME`,
    `mlflow.set_experiment`), else in one called as the config; a resumed run goes on in its own.
    Only MLflow's client is used, so nothing global is changed.

    Args:
        client: An `MlflowClient`.
        run_id: The run of MLflow.
        directory: The run's folder.
        ours: The run of MLflow was made here, and ends here.
        say: Told once where MLflow fails while training goes on.
    """

    def __init__(
        self,
        client: Any,
        run_id: str,
        directory: RunDirectory,
        *,
        ours: bool,
        say: Callable[[str], None],
    ) -> None:
        self.client, self.run_id, self.directory = client, run_id, directory
        self.ours, self.say = ours, say
        self.epochs = 0
        self.failed = False
        self.last_losses: dict[str, float] = {}

    @classmethod
    def open(
        cls, config: RunConfig, directory: RunDirectory, say: Callable[[str], None]
    ) -> "MlflowLog":
        """Finds the run of MLflow that this one is logged to, or makes it.

        Raises:
            ValueError: MLflow is not installed, or cannot be logged to.
        """
        try:
            mlflow, client_of = import_module("mlflow"), import_module("mlflow.tracking")
        except ImportError as error:
            raise ValueError(
                f"training.loggers: mlflow cannot be imported ({error}); pip install 'mmoe[mlflow]'"
            ) from None
        active, file = mlflow.active_run(), directory.mlflow_file
        try:
            remembered: dict[str, Any] = {}
            if active is None and file.exists():
                remembered = read_json(file, _Remembered)
            client = client_of.MlflowClient(tracking_uri=remembered.get("tracking_uri"))
            if active is not None:
                run_id = active.info.run_id
            elif remembered:
                run_id = remembered["run_id"]
                client.update_run(run_id, status="RUNNING")
            else:
                made = client.create_run(_experiment(client, config), run_name=directory.path.name)
                run_id = made.info.run_id
            log = cls(client, run_id, directory, ours=active is None, say=say)
            if not remembered:
                log._log_config(config)
            if active is None and not remembered:
                uri = mlflow.get_tracking_uri()
                write_json(file, {"tracking_uri": uri, "run_id": run_id})
        except Exception as error:  # each store raises its own kind
            raise ValueError(
                f"training.loggers: mlflow cannot log to {mlflow.get_tracking_uri()} "
                f"({_one_line(error)}); check MLFLOW_TRACKING_URI, or leave mlflow out"
            ) from None
        return log

    def __enter__(self) -> "MlflowLog":
        file = self.directory.history_file
        self.epochs = len(read_json(file, _History)["epochs"]) if file.exists() else 0
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: Any) -> None:
        if error is not None and self.ours:
            status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            self._try(lambda: self.client.set_terminated(self.run_id, status=status))

    def losses(self, step: int, losses: Mapping[str, float], dropped: int | None) -> None:
        """Remembers the losses of a step: those of an epoch's last are logged."""
        self.last_losses = dict(losses)

    def epoch(self, step: int, metrics: _Metrics, rows_per_second: float) -> None:
        """Logs an epoch: step is its number in MLflow, where curves of runs are compared."""
        self.epochs += 1
        values = {"train/rows_per_second": rows_per_second, "train/steps": float(step)}
        values |= {f"train/{task}/loss": loss for task, loss in self.last_losses.items()}
        values |= _flat_metrics("validation", metrics)
        self._try(lambda: self._log_metrics(values, self.epochs))

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Logs the test split's metrics and the run's small files, and ends the run of MLflow."""
        self._try(lambda: self._log_metrics(_flat_metrics("test", metrics["tasks"]), 0))
        for path in _small_files(self.directory.path):
            self._try(lambda path=path: self.client.log_artifact(self.run_id, str(path)))
        if self.ours:
            self._try(lambda: self.client.set_terminated(self.run_id, status="FINISHED"))

    def _log_config(self, config: RunConfig) -> None:
        entities = import_module("mlflow.entities")
        known = self.client.get_run(self.run_id).data.params
        found = dict(_flat(config.model_dump(mode="json")))
        new = [
            entities.Param(key, value[:_LONGEST_VALUE])
            for key, value in found.items()
            if key not in known
        ]
        for start in range(0, len(new), _MOST_AT_ONCE):
            self.client.log_batch(self.run_id, params=new[start : start + _MOST_AT_ONCE])

    def _log_metrics(self, values: Mapping[str, float], step: int) -> None:
        entities = import_module("mlflow.entities")
        now = int(time.time() * 1000)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        metrics = [entities.Metric(name, value, now, step) for name, value in finite.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def _try(self, call: Callable[[], None]) -> None:
        """A store that fails must not end hours of training; what it lacks is in the folder."""
        if self.failed:
            return
        try:
            call()
        except Exception as error:  # each store raises its own kind
            self.failed = True
            self.say(f"warning: mlflow fails, and is told no more of this run: {_one_line(error)}")


@contextmanager
def open_mlflow_run(mlflow: Any, folder: str | Path) -> Iterator[None]:
    """Opens the run of MLflow that a run was logged to, unless the caller has one open."""
    file = RunDirectory(Path(folder)).mlflow_file
    if mlflow.active_run() is not None or not file.exists():
        yield
        return
    stored, before = read_json(file, _Remembered), mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(stored["tracking_uri"])
    try:
        with mlflow.start_run(run_id=stored["run_id"]):
            yield
    finally:
        mlflow.set_tracking_uri(before)


def _experiment(client: Any, config: RunConfig) -> str:
    """The one that MLflow is set to; `mlflow.set_experiment` sets its variables too."""
    if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return number
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", config.name)
    found = client.get_experiment_by_name(name)
    return client.create_experiment(name) if found is None else found.experiment_id


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys, as `--set` has them; lists are JSON, those of sections names and kinds."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(v, Mapping) and "name" in v for v in value)
        ):
            kinds = [one.get("kind") or one.get("encoding", "") for one in value]
            named = [f"{one['name']} ({kind})" for one, kind in zip(value, kinds, strict=True)]
            yield f"{prefix}{name}", ", ".join(named)
        elif value not in (None, [], {}):
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _flat_metrics(split: str, tasks: _Metrics) -> dict[str, float]:
    return {
        f"{split}/{task}/{name}": float(value)
        for task, values in tasks.items()
        for name, value in values.items()
        if isinstance(value, int | float)
    }


def _small_files(folder: Path) -> list[Path]:
    """Files that say how the run was made and how good it is; no weights."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".json", ".yaml")
        and path.name not in (MARK, "mlflow.json")
        and path.stat().st_size <= _LARGEST_ARTIFACT
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

"""Where a run is logged beside its own folder: `training.loggers`."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from mmoe.config import RunConfig
from mmoe.run.directory import RunDirectory
from mmoe.train.mlflow_log import MlflowLog
from mmoe.train.tensorboard import EventLog


class Loggers:
    """All that a config names, as one.

    Args:
        config: Of the run.
        run: Its folder; None logs nothing: of several ranks only one does.
        step: Steps done before, by a run that is resumed.
        say: Told where a logger fails that training can do without.

    Raises:
        ValueError: A place cannot be logged to.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory | None,
        step: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.all: list[EventLog | MlflowLog] = []
        self._stack = ExitStack()
        for name in config.training.loggers if run is not None else ():
            assert run is not None
            if name == "tensorboard":
                self.all.append(EventLog(run.tensorboard, step))
            else:
                self.all.append(MlflowLog.open(config, run, say))

    def __enter__(self) -> "Loggers":
        for logger in self.all:
            self._stack.enter_context(logger)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def losses(self, step: int, losses: Mapping[str, float], dropped: int | None = None) -> None:
        """Hands the losses of a step on."""
        for logger in self.all:
            logger.losses(step, losses, dropped)

    def epoch(
        self, step: int, metrics: Mapping[str, Mapping[str, Any]], rows_per_second: float
    ) -> None:
        """Hands the metrics of an epoch on."""
        for logger in self.all:
            logger.epoch(step, metrics, rows_per_second)


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
    config: RunConfig,
    run: RunDirectory,
    metrics: Mapping[str, Any],
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Logs what is known when all is written: the test split's metrics, and the run's files."""
    if "mlflow" not in config.training.loggers:
        return
    try:
        MlflowLog.open(config, run, say).finish(metrics)
    except ValueError as error:  # the run itself is done
        say(f"warning: {error}")

"""One trial: a run that ends early where it is not worth going on."""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from mmoe.config import RunConfig
from mmoe.errors import Diverged
from mmoe.metrics.of_tasks import higher_is_better
from mmoe.run.atomic_files import read_json
from mmoe.run.console import InnerReporter, Tracker
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import FolderMark
from mmoe.train.fit import train_run
from mmoe.train.prepare import PreparedData
from mmoe.tune.study import Outcome


class _Ends(Exception):
    """A trial ends, `state` says why."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


def run_trial(
    trial: Any,
    config: RunConfig,
    settings: Mapping[str, Any],
    folder: Path,
    *,
    shared: PreparedData | None,
    deadline: float,
    tracker: Tracker,
    warn: Callable[[str], None],
) -> Outcome:
    """Trains until the last epoch, or until the pruner or the clock ends it.

    The test split is never looked at: a trial ends before a run would do that.

    Args:
        trial: Optuna's; told the best value after every epoch.
        config: With the settings of the trial.
        settings: Key → value.
        folder: Its run directory; an interrupted one is resumed.
        shared: Rows that are prepared already.
        deadline: Of `time.monotonic`.
        tracker: Of all trials.
        warn: Told of notes and warnings.

    Raises:
        ValueError: The data or the folder cannot be used.
    """
    start = time.monotonic()
    watch = _Watch(trial, config, RunDirectory(folder), deadline)
    inner = InnerReporter(tracker, folder.name, warn, watch.check_time)
    try:
        train_run(
            config,
            folder,
            resume=folder.exists(),
            shared=shared,
            reporter=inner,
            on_epoch=watch.see,
        )
        state = "finished"  # a run that had been killed after its last epoch
        watch.catch_up()
    except _Ends as end:
        state = end.state
    except Diverged:
        state = "diverged"
    seconds = time.monotonic() - start
    return Outcome(
        state=state,
        value=watch.best,
        epochs=watch.epochs,
        seconds=seconds,
        settings=dict(settings),
    )


class _Watch:
    """Looks at a trial after every epoch."""

    def __init__(self, trial: Any, config: RunConfig, run: RunDirectory, deadline: float) -> None:
        self.trial, self.training, self.run, self.deadline = trial, config.training, run, deadline
        self.higher = higher_is_better(config.training.monitor)
        self.best: float | None = None
        self.best_epoch = self.epochs = 0

    def check_time(self) -> None:
        """Ends the trial where the time is up."""
        if time.monotonic() > self.deadline:
            raise _Ends("out of time")

    def see(self, number: int, entry: Mapping[str, Any]) -> None:
        """Reports an epoch; ends the trial where it is done, or not worth going on with."""
        if (not self.epochs or number > self.epochs + 1) and self.run.history_file.exists():
            self.catch_up()
        self._report(entry)
        since_best = self.epochs - self.best_epoch
        if self.epochs >= self.training.epochs or since_best >= self.training.patience:
            raise _Ends("finished")
        if self.best is not None and self.trial.should_prune():
            raise _Ends("pruned")
        if time.monotonic() + entry["seconds"] > self.deadline:
            raise _Ends("out of time")

    def catch_up(self) -> None:
        """Reports what the run's history has: one that was killed had epochs before.

        A model that begins as its wide part is kept as it began where no epoch is better.
        """
        history = read_json(self.run.history_file, ("epochs",))
        if not self.epochs and "start" in history:
            self.best = history["start"]["monitor"]
        for entry in history["epochs"][self.epochs :]:
            self._report(entry)

    def _report(self, entry: Mapping[str, Any]) -> None:
        """Tells the pruner the best value so far, which is that of the kept checkpoint."""
        value, self.epochs = entry["monitor"], entry["epoch"]
        if value is None:  # nothing to compare by; the newest weights are kept
            self.best_epoch = self.epochs
        elif self.best is None or (value > self.best if self.higher else value < self.best):
            self.best, self.best_epoch = value, self.epochs
        if self.best is not None:
            self.trial.report(self.best, self.epochs)


def trial_folder(out: Path, settings: Mapping[str, Any]) -> Path:
    """Returns a trial's folder, by what is tried in it: one that was killed is found again."""
    digest = sha256(dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:8]
    return out / "trials" / f"trial-{digest}"


def remove_trial(folder: Path) -> None:
    """Removes a trial's run: its outcome is in the journal, and the best one is trained anew."""
    mark = FolderMark.read(folder) if folder.is_dir() and not folder.is_symlink() else None
    if mark is not None and mark.kind == "run":
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds other trials, or is a link
        folder.parent.rmdir()

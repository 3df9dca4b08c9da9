"""A search from start to end: rows, trials, the best config and the table of trials."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from mmoe.config import Count, RunConfig, Stored, dump_config
from mmoe.config.json_files import Measured
from mmoe.datasets.files.fingerprint import print_data
from mmoe.datasets.stream import wants_stream
from mmoe.errors import Diverged
from mmoe.metrics import higher_is_better
from mmoe.metrics.columns import NONE
from mmoe.run import (
    FolderClaim,
    FolderMark,
    Reporter,
    RunDirectory,
    SilentReporter,
    Tracker,
    read_json,
    write_json,
    write_text,
)
from mmoe.run.console import InnerReporter, once
from mmoe.train import PreparedData, prepare, train_run
from mmoe.train.claim import begin_planned, with_absolute_paths
from mmoe.tune.study import Dimension, Outcome, Study, import_optuna, search_space, with_values

BEST, RESULT = "best.yaml", "tune.json"


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Length of a search.

    Attributes:
        trials: So many at most, those of earlier calls among them.
        minutes: Of this call, reading included.

    Raises:
        ValueError: Fewer trials than one, or no minutes.
    """

    trials: int = 20
    minutes: float = 15

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"--trials: expected 1 or more, got {self.trials}")
        if not self.minutes > 0:
            raise ValueError(f"--minutes: expected more than 0, got {self.minutes:g}")


def tune_config(
    config: RunConfig,
    out: Path,
    settings: TuneSettings | None = None,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    numbered: bool = False,
    reporter: Reporter | None = None,
    on_folder: Callable[[Path], None] = lambda _: None,
) -> dict[str, Any]:
    """Tries settings around those of a config, and writes the best ones as a config.

    Trials are proposed by Optuna's TPE and cut short by successive halving over epochs. They are
    judged by `training.monitor` on the validation split; the test split is not looked at. The
    config itself is the first, so what comes out is never worse on the validation split.

    Args:
        config: Where the search begins.
        out: Gets best.yaml, tune.json and Optuna's journal; must be empty or absent, unless
            `resume`.
        settings: How long.
        data: Overrides data.path.
        resume: Go on in `out`.
        numbered: Where `out` exists, take the first of out-2, out-3, … that does not.
        reporter: Told of progress.
        on_folder: Given the folder, once it is known.

    Returns:
        What tune.json holds: the trials, and which is the best.

    Raises:
        ValueError: Optuna is not installed; config, data, settings or folder cannot be used; or
            the time was up before the config itself had an epoch.
        Interrupted: A KeyboardInterrupt that knows the folder, once there is one.
    """
    settings, reporter = settings or TuneSettings(), reporter or SilentReporter()
    deadline = time.monotonic() + 60 * settings.minutes
    import_optuna()
    config = with_absolute_paths(config, data)
    with FolderClaim("search", reporter.say) as claim:
        if not numbered:
            claim.go_on(out, resume=resume)
        shared = None if wants_stream(config) else prepare(config)
        seen = print_data(config) if shared is None else shared.data
        out = begin_planned(claim, out, config, seen, numbered=numbered)
        on_folder(out)
        return _Search(config, out, shared, deadline, reporter, claim).run(settings.trials)


class _Search:
    """The trials of one call."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        shared: PreparedData | None,
        deadline: float,
        reporter: Reporter,
        claim: FolderClaim,
    ) -> None:
        self.config, self.out, self.shared = config, out, shared
        self.deadline, self.reporter, self.claim = deadline, reporter, claim
        self.warn = once(reporter.say)
        self.space = search_space(config, None if shared is None else len(shared.train))
        self.study = Study(out, self.space, config)
        self.outcomes = self.study.outcomes()
        for outcome in self.outcomes:  # of a process that was killed before it could
            remove_trial(_trial_folder(out, outcome.settings))

    def run(self, trials: int) -> dict[str, Any]:
        """Tries until there are so many trials, or the time is up."""
        done = len(self.outcomes)
        with self.reporter.track("tuning", trials, "trials", done=done) as tracker:
            while len(self.outcomes) < trials and self._try_next(tracker):
                tracker.advance(1)
        return self.write()

    def _try_next(self, tracker: Tracker) -> bool:
        """Runs a trial; False where the time is up."""
        self.claim.check()
        if time.monotonic() > self.deadline and self.outcomes:
            return False
        trial, values = self.study.ask()
        known = next((one for one in self.outcomes if one.settings == values), None)
        outcome = known or self._outcome(trial, values, tracker)
        if outcome.state == "out of time" and outcome.value is None:
            self.study.give_back(trial)
            if not self.outcomes:
                raise ValueError(
                    f"--minutes: the time was up after {outcome.seconds:.0f} s, before the config "
                    "itself had trained one epoch, so there is nothing to compare with; give more "
                    "--minutes and say --resume, or fewer rows"
                )
            return False
        self.study.tell(trial, outcome)
        self.outcomes.append(outcome)
        self.write()
        remove_trial(_trial_folder(self.out, values))
        self._say(outcome)
        return outcome.state != "out of time"

    def _outcome(self, trial: Any, values: dict[str, Any], tracker: Tracker) -> Outcome:
        """Trains until the last epoch, or until the pruner or the clock ends it.

        The test split is never looked at: a trial ends before a run would do that. One that was
        killed is resumed. Optuna's `trial` is told the best value after every epoch.
        """
        try:
            config = with_values(self.config, values)
        except ValueError as error:
            self.warn(f"note: a trial was left out, as its settings do not go together: {error}")
            return Outcome(state="left out", value=None, epochs=0, seconds=0, settings=values)
        start, folder = time.monotonic(), _trial_folder(self.out, values)
        watch = _Watch(trial, config, RunDirectory(folder), self.deadline)
        inner = InnerReporter(tracker, folder.name, self.warn, watch.check_time)
        try:
            train_run(
                config,
                folder,
                resume=folder.exists(),
                shared=self.shared,
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
            state=state, value=watch.best, epochs=watch.epochs, seconds=seconds, settings=values
        )

    def write(self) -> dict[str, Any]:
        """Writes what has been found so far: a search that is killed leaves its best config."""
        result = search_result(self.config, self.space, self.outcomes)
        if result["best"] is not None:
            changed = result["best"]["changed"]
            was = {key: result["own"][key] for key in changed}
            text = commented_config(with_values(self.config, changed), was, _header(result))
            write_text(self.out / BEST, text)
        write_json(self.out / RESULT, result)
        return result

    def _say(self, outcome: Outcome) -> None:
        number, monitor = len(self.outcomes), self.config.training.monitor
        changed = _changed(self.space, outcome)
        value = "no value" if outcome.value is None else f"{monitor} {outcome.value:.5g}"
        self.reporter.say(
            f"trial {number}: {value}, {outcome.state} after {outcome.epochs} epoch(s), "
            f"{outcome.seconds:.1f} s: {changes(changed)}"
        )


def _header(result: dict[str, Any]) -> list[str]:
    best, first = result["best"], result["trials"][0]
    monitor, count = result["monitor"], len(result["trials"])
    lines = [f"The best of {count} trial(s) of mmoe tune, by {monitor} on the validation split:"]
    own = "none" if first["value"] is None else f"{first['value']:.5g}"
    if best["changed"]:
        lines.append(f"{best['value']:.5g} here, {own} of the config as it was. Every key is here.")
    else:
        lines.append(f"that of the config as it was, {own}. Every key is here.")
    return lines


class _Ends(Exception):
    """A trial ends, `state` says why."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class _Epoch(Stored):
    epoch: Count
    monitor: Measured | None


class _History(Stored):
    """The keys of history.json that are read."""

    start: dict[str, Any] | None = None
    epochs: list[_Epoch]


class _Watch:
    """Looks at a trial after every epoch."""

    def __init__(self, trial: Any, config: RunConfig, run: RunDirectory, deadline: float) -> None:
        self.trial, self.training, self.run, self.deadline = trial, config.training, run, deadline
        self.higher = higher_is_better(config.training.monitor)
        self.best: float | None = None
        self.start: float | None = None  # monitored before the first epoch
        self.values: list[float | None] = []  # after each
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
        waits = self.training.waits(self.best_epoch, self.start, self.values)
        ends = self.epochs >= self.training.epochs or self.epochs - self.best_epoch >= waits
        if ends or "exploded" in entry:  # its run would go on to the test split
            raise _Ends("finished")
        if self.best is not None and self.trial.should_prune():
            raise _Ends("pruned")
        if time.monotonic() + entry["seconds"] > self.deadline:
            raise _Ends("out of time")

    def catch_up(self) -> None:
        """Reports what the run's history has: one that was killed had epochs before.

        A model that begins as its wide part is kept as it began where no epoch is better.
        """
        history = read_json(self.run.history_file, _History)
        if not self.epochs and "start" in history:
            self.start = self.best = history["start"]["monitor"]
        for entry in history["epochs"][self.epochs :]:
            self._report(entry)

    def _report(self, entry: Mapping[str, Any]) -> None:
        """Tells the pruner the best value so far, which is that of the kept checkpoint."""
        value, self.epochs = entry["monitor"], entry["epoch"]
        self.values.append(value)
        if value is None:  # nothing to compare by; the newest weights are kept
            self.best_epoch = self.epochs
        elif self.best is None or (value > self.best if self.higher else value < self.best):
            self.best, self.best_epoch = value, self.epochs
        if self.best is not None:
            self.trial.report(self.best, self.epochs)


def _trial_folder(out: Path, settings: Mapping[str, Any]) -> Path:
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


def search_result(
    config: RunConfig, space: Sequence[Dimension], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Returns what tune.json holds.

    Args:
        config: That was tuned.
        space: What was searched over.
        outcomes: Of the trials, the config's own first.
    """
    higher = higher_is_better(config.training.monitor)
    own = {dimension.key: dimension.values[dimension.own] for dimension in space}
    trials = [
        {
            "trial": number,
            "state": one.state,
            "value": one.value,
            "epochs": one.epochs,
            "seconds": one.seconds,
            "changed": _changed(space, one),
        }
        for number, one in enumerate(outcomes, start=1)
    ]
    # The first of those with the best value, so that a tie leaves the config as it is
    judged = [trial for trial in trials if trial["value"] is not None]
    sign = -1 if higher else 1
    return {
        "name": config.name,
        "monitor": config.training.monitor,
        "higher_is_better": higher,
        "space": {dimension.key: list(dimension.values) for dimension in space},
        "own": own,
        "trials": trials,
        "best": min(judged, key=lambda trial: sign * trial["value"], default=None),
    }


def _changed(space: Sequence[Dimension], outcome: Outcome) -> dict[str, Any]:
    own = {each.key: each.values[each.own] for each in space}
    return {key: value for key, value in outcome.settings.items() if value != own[key]}


def search_table(result: Mapping[str, Any]) -> Table:
    """Makes a table of trials, in their order; a star stands at the best.

    Args:
        result: What tune.json holds.
    """
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("trial", f"validation {result['monitor']}", "epochs", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("", "changed"):
        table.add_column(title, overflow="fold")
    best = result["best"]
    for trial in result["trials"]:
        star = "*" if best is not None and trial["trial"] == best["trial"] else ""
        value = NONE if trial["value"] is None else f"{trial['value']:.5g}"
        table.add_row(
            f"{star}{trial['trial']}",
            value,
            str(trial["epochs"]),
            f"{trial['seconds']:.1f}",
            trial["state"],
            changes(trial["changed"]),
        )
    return table


def changes(changed: Mapping[str, Any]) -> str:
    """Says what a trial changed.

    Example:
        >>> changes({"training.batch_size": 512, "model.expert.hidden": [64, 32]})
        'batch_size 512, expert.hidden 64-32'
    """
    if not changed:
        return "the config itself"
    return ", ".join(f"{key.partition('.')[2]} {_short(value)}" for key, value in changed.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["kind"])
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def commented_config(config: RunConfig, was: Mapping[str, Any], header: Sequence[str]) -> str:
    """Writes a config with every default spelled out, and a comment where a key has changed.

    Args:
        config: Complete; read back the text gives the same.
        was: Changed key, with dots → its value before.
        header: Lines at the top.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "numeric", "name": "age"}], "seed": 7,
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> print(commented_config(config, {"seed": 0}, ["Tuned."]).splitlines()[:3])
        ['# Tuned.', 'name: run', 'seed: 7  # was 0']
    """
    text = dump_config(config)
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, before in was.items():
        line = _line_of(root, key.split("."))
        lines[line] += f"  # was {_inline(before)}"
    return "\n".join([*(f"# {line}" for line in header), *lines]) + "\n"


def _line_of(node: Any, names: Sequence[str]) -> int:
    line = 0
    for name in names:
        key, node = next(pair for pair in node.value if pair[0].value == name)
        line = key.start_mark.line
    return line


def _inline(value: Any) -> str:
    plain = yaml.safe_dump(value, default_flow_style=True).strip()
    return plain.removesuffix("...").strip()

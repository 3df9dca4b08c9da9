"""A search from start to end: rows, trials, the best config."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmoe.config import RunConfig
from mmoe.datasets.files.fingerprint import print_data
from mmoe.datasets.stream import wants_stream
from mmoe.errors import Interrupted
from mmoe.metrics.of_tasks import higher_is_better
from mmoe.run.atomic_files import write_json, write_text
from mmoe.run.console import Reporter, SilentReporter, Tracker, once
from mmoe.run.folder_claim import FolderClaim
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.run_folder.claim import begin_planned
from mmoe.train.run_folder.start import with_absolute_paths
from mmoe.tune.best_config import commented_config
from mmoe.tune.result import changes, search_result
from mmoe.tune.space import Dimension, search_space, with_values
from mmoe.tune.study import Outcome, Study, import_optuna
from mmoe.tune.trial import remove_trial, run_trial, trial_folder

BEST, RESULT = "best.yaml", "tune.json"


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How long a search goes on.

    Attributes:
        trials: So many at most, those of earlier calls among them.
        minutes: Of this call, reading included.
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
        search = _Search(config, out, shared, deadline, reporter, claim)
        try:
            return search.run(settings.trials)
        except KeyboardInterrupt as stop:
            raise Interrupted(out, saved=True) from stop


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
        rows = None if shared is None else len(shared.train)
        self.space: list[Dimension] = search_space(config, rows)
        self.higher = higher_is_better(config.training.monitor)
        self.study = Study(
            out,
            self.space,
            config.seed,
            epochs=config.training.epochs,
            higher_is_better=self.higher,
        )
        self.outcomes = self.study.outcomes()
        for outcome in self.outcomes:  # of a process that was killed before it could
            remove_trial(trial_folder(out, outcome.settings))

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
        outcome = self._known(values) or self._outcome(trial, values, tracker)
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
        remove_trial(trial_folder(self.out, values))
        self._say(outcome)
        return outcome.state != "out of time"

    def _known(self, values: dict[str, Any]) -> Outcome | None:
        """What the same settings came to before."""
        return next((one for one in self.outcomes if one.settings == values), None)

    def _outcome(self, trial: Any, values: dict[str, Any], tracker: Tracker) -> Outcome:
        try:
            config = with_values(self.config, values)
        except ValueError as error:
            self.warn(f"note: a trial was left out, as its settings do not go together: {error}")
            return Outcome(state="left out", value=None, epochs=0, seconds=0, settings=values)
        return run_trial(
            trial,
            config,
            values,
            trial_folder(self.out, values),
            shared=self.shared,
            deadline=self.deadline,
            tracker=tracker,
            warn=self.warn,
        )

    def write(self) -> dict[str, Any]:
        """Writes what has been found so far: a search that is killed leaves its best config."""
        result = search_result(self.config, self.space, self.outcomes, higher_is_better=self.higher)
        best = result["best"]
        if best is not None:
            was = {key: result["own"][key] for key in best["changed"]}
            config = with_values(self.config, best["changed"])
            text = commented_config(config, was, _header(result))
            write_text(self.out / BEST, text)
        write_json(self.out / RESULT, result)
        return result

    def _say(self, outcome: Outcome) -> None:
        number, own = len(self.outcomes), {each.key: each.values[each.own] for each in self.space}
        changed = {key: value for key, value in outcome.settings.items() if value != own[key]}
        monitor = self.config.training.monitor
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

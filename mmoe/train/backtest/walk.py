"""The walk of a backtest: one run a day, its predictions, and metrics of all days together."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmoe.config import RunConfig, config_from_dict
from mmoe.errors import Interrupted
from mmoe.parallel import from_first, join_ranks, rank
from mmoe.run.atomic_files import read_json, write_json
from mmoe.run.console import Reporter, SilentReporter
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import (
    MARK,
    FolderClaim,
)
from mmoe.run.locks import LOCK
from mmoe.train.backtest.log_end import as_of_log
from mmoe.train.backtest.same_days import days_that_grew
from mmoe.train.backtest.steps import BacktestSettings, Step, backtest_steps, day_column
from mmoe.train.backtest.tested import total_metrics, write_tested
from mmoe.train.fit import train_run
from mmoe.train.run_folder.start import first_difference, same_on_all_ranks, with_absolute_paths
from mmoe.train.warm_start import WarmStart

_STEPS, _RESULT, _TESTED = "plan.json", "backtest.json", "predictions.parquet"


@dataclass(frozen=True)
class _Start:
    """How a walk was asked for; see `backtest`."""

    out: Path
    data: str | Path | None
    resume: bool
    numbered: bool
    changed_data: bool


def backtest(
    config: RunConfig,
    out: Path,
    settings: BacktestSettings,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    numbered: bool = False,
    on_folder: Callable[[Path], None] = lambda _: None,
    changed_data: bool = False,
) -> dict[str, Any]:
    """Trains day d, tests day d + 1, walking forward; each model continues the one before.

    Several ranks train every day together; rank 0 lays out the walk, and writes.

    Args:
        config: What to train; its split's validation share is drawn from the days trained on.
        out: Gets a run directory for each day and, last, backtest.json; must be empty or absent,
            unless `resume`.
        settings: Which days, and how.
        data: Overrides data.path.
        resume: Go on with the first unfinished day; days that have come since are walked too.
        reporter: Told of progress.
        numbered: Where `out` exists, take the first of out-2, out-3, … that does not.
        on_folder: Given the folder, once it is known.
        changed_data: Resume also where files of days that were begun have changed; what is
            finished stays as it is.

    Returns:
        What backtest.json holds: for each tested day its metrics by task, and those of all tested
        rows together.

    Raises:
        ValueError: Config, data or directory cannot be used; names the day where there is one.
        Interrupted: A KeyboardInterrupt that knows the folder, once there is one.
    """
    reporter = reporter or SilentReporter()
    with FolderClaim("backtest", reporter.say, known_by=[_STEPS]) as claim:
        start = _Start(out, data, resume, numbered, changed_data)
        return _walk(claim, config, start, settings, reporter, on_folder)


def _walk(
    claim: FolderClaim,
    config: RunConfig,
    start: _Start,
    settings: BacktestSettings,
    reporter: Reporter,
    on_folder: Callable[[Path], None],
) -> dict[str, Any]:
    join_ranks(config.parallel.timeout_seconds)
    config = with_absolute_paths(config, start.data)
    options = {"--resume": start.resume, "--changed-data": start.changed_data}
    out = same_on_all_ranks(config, start.out, {**options, **settings.options()})
    start = replace(start, out=out)
    if rank() > 0:
        reporter = SilentReporter()
    column = day_column(config, settings)
    header = {"column": column, **settings.as_dict()}
    steps, out, changed = from_first(
        lambda: _begin(claim, config, start, settings, header), takes_long=True
    )
    on_folder(out)
    days = []
    try:
        for number, step in enumerate(steps):
            before = steps[number - 1] if number and not settings.from_scratch else None
            grew = step.name in changed
            days.append(
                _run_day(config, column, out, step, before, reporter, grew, is_first=not number)
            )
    except KeyboardInterrupt as stop:
        _leave_nothing_of_no_day(claim, out)
        if not out.exists():
            raise
        raise Interrupted(out, saved=True) from stop
    except BaseException:  # the launcher's too, where another rank has failed
        _leave_nothing_of_no_day(claim, out)
        raise

    def finish() -> dict[str, Any]:
        total, notes = total_metrics(config, [out / step.name / _TESTED for step in steps])
        for note in notes:
            reporter.say(f"note, total: {note}")
        result = {**header, "days": days, "total": total}
        claim.check()
        write_json(out / _RESULT, result)
        return result

    return from_first(finish, takes_long=True)


def _begin(
    claim: FolderClaim,
    config: RunConfig,
    start: _Start,
    settings: BacktestSettings,
    header: dict[str, Any],
) -> tuple[list[Step], Path, Collection[str]]:
    """Looks at the folder and the days, and writes plan.json.

    Returns:
        The steps, the folder that the walk took, and the names of days whose data has grown.
    """
    out = start.out
    if not start.numbered:
        claim.go_on(out, resume=start.resume)
    steps = backtest_steps(config, settings)
    changed: Collection[str] = ()
    if claim.lock is None:
        out = claim.create(out, numbered=start.numbered)
    else:
        known = _check_steps(out, config, header, steps)
        changed = days_that_grew(out, steps, known, allowed=start.changed_data)
    write_json(out / _STEPS, _as_stored(config, header, steps))
    return steps, out, changed


def _as_stored(config: RunConfig, header: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """What plan.json holds."""
    return {
        **header,
        "steps": [step.as_dict() for step in steps],
        "config": config.model_dump(mode="json"),
    }


def _check_steps(out: Path, config: RunConfig, header: dict[str, Any], steps: list[Step]) -> int:
    """How many of the steps a walk that is resumed had before.

    Raises:
        ValueError: The walk was begun with another config, other settings or other days.
    """
    if not (out / _STEPS).exists():
        return 0
    content = _as_stored(config, header, steps)
    old = read_json(out / _STEPS, content)
    before = old.pop("steps")
    # Of an earlier version it may lack keys, whose defaults say what they did then
    begun = config_from_dict(old["config"], f"{out / _STEPS}: config", of_run=True)
    old["config"] = begun.model_dump(mode="json")
    difference = first_difference(old, {**header, "config": content["config"]})
    if content["steps"][: len(before)] != before:
        difference = difference or _other_days(before, content["steps"])
    if difference:
        raise ValueError(
            f"{out}: was begun otherwise ({difference}); resume with the same settings, or "
            "choose another --out"
        )
    return len(before)


def _other_days(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """How the steps of plan.json and those of today differ; the first ones should be the same."""
    tested, here = ([step["test_day"] for step in steps] for steps in (before, now))
    begun, found = f"it tested {tested[0]} to {tested[-1]}", f"{here[0]} to {here[-1]}"
    if tested[0] in here[1:]:
        days = f"--days {len(here) - here.index(tested[0])}"
        return f"{begun}, and {found} is asked for now: it goes on with fewer days, {days}"
    if here[0] in tested[1:]:
        days = f"--days {len(here) + tested.index(here[0])}"
        return f"{begun}, and {found} is asked for now: it goes on with {days}"
    return f"{begun}, and the data now holds other days or trains on others, {found}"


def _leave_nothing_of_no_day(claim: FolderClaim, out: Path) -> None:
    """A walk that never got through a day must not stand in the mended command's way."""
    if claim.lock is None or claim.mark is None or not claim.lock.is_mine():
        return  # another rank than the first, or no folder any more
    others = {path.name for path in out.iterdir()} - {_STEPS, MARK, LOCK}
    if not others:
        (out / _STEPS).unlink(missing_ok=True)
        claim.withdraw()


def _run_day(
    config: RunConfig,
    column: str,
    out: Path,
    step: Step,
    before: Step | None,
    reporter: Reporter,
    changed: bool,
    *,
    is_first: bool,
) -> dict[str, Any]:
    """One entry of backtest.json; a finished day is read, an unfinished one resumed.

    Its data may have changed since it was begun; `changed` says that this was looked at. The last
    days of a log are younger than any window, and so are those they are tested on.
    """
    run, tested = RunDirectory(out / step.name), out / step.name / _TESTED
    if step.gap:
        reporter.say(
            f"no rows between {step.train[-1]} and {step.test}: the model of {step.train[-1]} is "
            f"tested on {step.test}"
        )
    finished, begun = from_first(lambda: _standing(run, tested))
    if not finished:
        trained = f"{step.train[0]} to {step.train[-1]}" if step.train[1:] else f"{step.train[0]}"
        reporter.say(f"training on {trained}, testing on {step.test}")
        stored = from_first(lambda: run.config().data.time if begun else None)
        whole = from_first(lambda: as_of_log(config, stored), takes_long=True)
        day_config = step.config(whole, column)
        try:
            train_run(
                day_config,
                run.path,
                resume=begun,
                changed_data=changed,
                warm_start=None if before is None else WarmStart(out / before.name),
                reporter=reporter,
                leaves_young=not is_first,
                on_test=lambda predictions_NP, labels: write_tested(
                    tested, day_config, predictions_NP, labels
                ),
            )
        except ValueError as error:
            raise ValueError(f"backtest, day {trained} (tested on {step.test}): {error}") from None
    tasks = from_first(lambda: run.metrics()["tasks"])
    return {**step.as_dict(), "run": step.name, "tasks": tasks}


def _standing(run: RunDirectory, tested: Path) -> tuple[bool, bool]:
    """Whether a day is finished, and whether it has begun."""
    finished = run.metrics_file.exists() and tested.exists()
    return finished, run.path.exists()

"""The walk: one run a day, a file of its predictions, and what they amount to together."""

from pathlib import Path
from typing import Any

from mmoe.config import RunConfig
from mmoe.parallel import from_first, join_ranks, rank
from mmoe.score.console import Reporter, SilentReporter
from mmoe.score.run_directory import RunDirectory
from mmoe.score.text_files import read_json, write_json
from mmoe.train.backtest.plan import BacktestSettings, Step, day_column, plan_steps
from mmoe.train.backtest.tested import total_metrics, write_tested
from mmoe.train.fit import train_run
from mmoe.train.run_start import first_difference, same_on_all_ranks, with_absolute_paths
from mmoe.train.warm_start import WarmStart

_PLAN, _RESULT, _TESTED = "plan.json", "backtest.json", "predictions.parquet"


def backtest(
    config: RunConfig,
    out: Path,
    settings: BacktestSettings,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
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

    Returns:
        What backtest.json holds: for each tested day its metrics by task, and those of all tested
        rows together.

    Raises:
        ValueError: Config, data or directory cannot be used; names the day where there is one.
    """
    reporter = reporter or SilentReporter()
    join_ranks(config.parallel.timeout_seconds)
    config = with_absolute_paths(config, data)
    out = same_on_all_ranks(config, out, {"--resume": resume, **settings.options()})
    if rank() > 0:
        reporter = SilentReporter()
    column = day_column(config, settings)
    header = {"column": column, **settings.as_dict()}
    steps = from_first(lambda: _begin(config, out, settings, header, resume), takes_long=True)
    days = []
    try:
        for number, step in enumerate(steps):
            before = steps[number - 1] if number and not settings.from_scratch else None
            days.append(_run_day(config, column, out, step, before, reporter))
    except BaseException:  # the launcher's too, where another rank has failed
        if rank() == 0:
            _leave_nothing_of_no_day(out)
        raise

    def finish() -> dict[str, Any]:
        total, notes = total_metrics(config, [out / step.name / _TESTED for step in steps])
        for note in notes:
            reporter.say(f"note, total: {note}")
        result = {**header, "days": days, "total": total}
        write_json(out / _RESULT, result)
        return result

    return from_first(finish, takes_long=True)


def _begin(
    config: RunConfig,
    out: Path,
    settings: BacktestSettings,
    header: dict[str, Any],
    resume: bool,
) -> list[Step]:
    """Looks at the folder and the days, and writes plan.json."""
    _check_folder(out, resume)
    steps = plan_steps(config, settings)
    _write_plan(out, config, header, steps)
    return steps


def _check_folder(out: Path, resume: bool) -> None:
    """Before anything is read; also removes what a killed process had not yet moved to its name."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out}: is a file; choose another --out, a folder")
    if resume:
        for name in (_PLAN, _RESULT):
            for stray in out.glob(f".{name}.*.tmp"):
                stray.unlink()
    if not any(out.iterdir()) or (resume and (out / _PLAN).exists()):
        return
    if resume:
        raise ValueError(
            f"{out}: holds no backtest to continue (there is no {_PLAN}); choose another --out"
        )
    raise ValueError(f"{out}: exists already; continue it with --resume, or choose another --out")


def _write_plan(out: Path, config: RunConfig, header: dict[str, Any], steps: list[Step]) -> None:
    """Writes plan.json; of a walk that is resumed, checks that it is the same one.

    Raises:
        ValueError: The walk was begun with another config, other settings or other days.
    """
    content = {
        **header,
        "steps": [step.as_dict() for step in steps],
        "config": config.model_dump(mode="json"),
    }
    path = out / _PLAN
    if path.exists():
        old = read_json(path, content)
        before = old.pop("steps")
        difference = first_difference(old, {**header, "config": content["config"]})
        if content["steps"][: len(before)] != before:
            difference = difference or _other_days(before, content["steps"])
        if difference:
            raise ValueError(
                f"{out}: was begun otherwise ({difference}); resume with the same settings, or "
                "choose another --out"
            )
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


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


def _leave_nothing_of_no_day(out: Path) -> None:
    """A walk that never got through a day must not stand in the mended command's way."""
    if [path.name for path in out.iterdir()] == [_PLAN]:
        (out / _PLAN).unlink()
        out.rmdir()


def _run_day(
    config: RunConfig,
    column: str,
    out: Path,
    step: Step,
    before: Step | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """One entry of backtest.json; a finished day is read, an unfinished one resumed."""
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
        day_config = step.config(config, column)
        try:
            train_run(
                day_config,
                run.path,
                resume=begun,
                warm_start=None if before is None else WarmStart(out / before.name),
                reporter=reporter,
                on_test=lambda predictions_NT, labels: write_tested(
                    tested, day_config, predictions_NT, labels
                ),
            )
        except ValueError as error:
            raise ValueError(f"backtest, day {trained} (tested on {step.test}): {error}") from None
    tasks = from_first(lambda: run.metrics()["tasks"])
    return {**step.as_dict(), "run": step.name, "tasks": tasks}


def _standing(run: RunDirectory, tested: Path) -> tuple[bool, bool]:
    """Whether a day is finished, and whether it has begun."""
    finished = run.metrics_file.exists() and tested.exists()
    if not finished:
        for stray in run.path.glob(f".{_TESTED}.*.tmp"):
            stray.unlink()  # of a process that was killed while it wrote
    return finished, run.path.exists()

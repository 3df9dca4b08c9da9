"""Backtests: train on day d, test on day d + 1, walking forward to the last day."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from mmoe.config import Count, RunConfig, SplitConfig, Stored, config_from_dict, prediction_columns
from mmoe.config.data import TimeConfig
from mmoe.datasets import EncodedLabels
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import DataPrint, data_changes, print_files, shown
from mmoe.datasets.files.lake import own_source
from mmoe.datasets.labels.maturity import found_maturity, moment_text, time_of
from mmoe.datasets.rows.locations import find_column
from mmoe.datasets.rows.projection import text_cells
from mmoe.datasets.rows.sources import one_path
from mmoe.datasets.rows.splits import Day, days_of
from mmoe.datasets.stream import open_stream
from mmoe.datasets.stream.open import times_in
from mmoe.datasets.stream.source import survey
from mmoe.datasets.values.hashing import hash_keys
from mmoe.datasets.values.keys import missing_mask, to_keys
from mmoe.datasets.values.text import TextCells
from mmoe.parallel import from_first, join_ranks, rank
from mmoe.run import FolderClaim, Reporter, RunDirectory, SilentReporter, read_json, write_json
from mmoe.run.atomic_files import read_table, write_table
from mmoe.run.folder_claim import MARK, is_lock_file
from mmoe.train.claim import first_difference, same_on_all_ranks, with_absolute_paths
from mmoe.train.fit import train_run
from mmoe.train.measure import metrics_of
from mmoe.train.run_data import RunData
from mmoe.train.warm_start import WarmStart

# Numbers from here on may be written YYYYMMDD, where the end of a month is no gap
_FIRST_YYYYMMDD = 10_000_000


@dataclass(frozen=True, kw_only=True)
class BacktestSettings:
    """Days that a backtest tests, and on how many each model trains.

    Attributes:
        column: Holds the day; None: `data.split.column` of a split by time or day.
        days: Days to test, the last ones; None: all but the first.
        from_scratch: Train every day's model anew, instead of continuing the one before.
        window: Days to train on, up to the day before the tested one. None: a model that continues
            another trains on one day, and one that begins anew (the first one, or from scratch
            every one) on all days so far.
    """

    column: str | None = None
    days: int | None = None
    from_scratch: bool = False
    window: int | None = None

    def options(self) -> dict[str, Any]:
        """Returns the settings as the command line calls them, for errors."""
        return {f"--{name.replace('_', '-')}": value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One model of a backtest: days it trains on, day it is tested on, files that hold them.

    Attributes:
        train: In order.
        test: The day after them, or the next one that has rows.
        files: That hold any of these days, in the order of the data set.
        test_files: That hold the tested one.
    """

    train: tuple[Day, ...]
    test: Day
    files: tuple[str, ...]
    test_files: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its run directory, by the last day it trains on."""
        return f"trained-{self.train[-1]}"

    @property
    def gap(self) -> bool:
        """Whether days without rows lie before the tested one."""
        one, two = self.train[-1], self.test
        counted = one.dated or two.number < _FIRST_YYYYMMDD
        return counted and two.number - one.number > 1

    def config(self, config: RunConfig, column: str) -> RunConfig:
        """Returns the config of the run that trains and tests it."""
        split = SplitConfig(
            by="day",
            column=column,
            format=_format(config, column),
            validation=config.data.split.validation,
            train_days=[str(day) for day in self.train],
            test_days=[str(self.test)],
        )
        data = config.data.model_copy(update={"split": split, "path": list(self.files)})
        return config.model_copy(update={"data": data})

    def as_dict(self) -> dict[str, Any]:
        """Returns its days for JSON."""
        return {"train_days": [str(day) for day in self.train], "test_day": str(self.test)}


def _day_column(config: RunConfig, settings: BacktestSettings) -> str:
    """The name of the column that holds the day."""
    data = config.data
    if data.source != "files":
        raise ValueError(
            f"backtest reads the days of data.path, but data.source is {data.source}; give "
            "--set data.source=files and --data PATH"
        )
    if data.split.by == "file":
        raise ValueError(
            "backtest reads the days of data.path, but the split is by file; set data.split.by: "
            "random and data.path"
        )
    if settings.column is not None:
        return settings.column
    if data.split.by in ("time", "day") and data.split.column is not None:
        return data.split.column
    raise ValueError(
        "backtest needs to know which column holds the day; give --column NAME, or split by time"
    )


def backtest_steps(config: RunConfig, settings: BacktestSettings) -> list[Step]:
    """Lays out the walk, from the column of days; nothing else is read.

    Args:
        config: `data.path`, absolute or as seen from here.
        settings: How to walk.

    Raises:
        ValueError: The column is missing or holds no days, there is one day only, or there are
            fewer days than asked for.
    """
    for name, value in (("days", settings.days), ("window", settings.window)):
        if value is not None and value < 1:
            raise ValueError(f"--{name}: expected 1 or more, got {value}")
    column = _day_column(config, settings)
    files, order, origin = _files_by_day(config, column)
    days = sorted(files)
    if len(days) < 2:
        raise ValueError(
            f"{origin}: column {column!r} holds one day ({days[0]}), but a backtest needs two or "
            "more: one to train on, one to test; give more data, or name another column"
        )
    if settings.days is not None and settings.days > len(days) - 1:
        raise ValueError(
            f"--days: expected at most {len(days) - 1}, as {origin} holds {len(days)} days from "
            f"{days[0]} to {days[-1]} and the first one only trains, got {settings.days}"
        )
    first = 1 if settings.days is None else len(days) - settings.days
    steps = []
    for place in range(first, len(days)):
        anew = settings.from_scratch or place == first
        window = settings.window or (place if anew else 1)
        train, test = days[max(0, place - window) : place], days[place]
        mine = {file for day in [*train, test] for file in files[day]}
        in_order = tuple(file for file in order if file in mine)
        tested = tuple(files[test])
        steps.append(Step(train=tuple(train), test=test, files=in_order, test_files=tested))
    return steps


def _format(config: RunConfig, column: str) -> str | None:
    """The format of the column's text, where the split names one."""
    split = config.data.split
    return split.format if column == split.column else None


def _files_by_day(
    config: RunConfig, column: str
) -> tuple[dict[Day, dict[str, None]], list[str], str]:
    """The files that hold rows of each day; all in the order of the data set; and its name."""
    paths = one_path(config, None)
    use = {column: "backtest --column"}
    form = _format(config, column)
    cells = TextCells(as_text=frozenset([column] if form is not None else []))
    source = survey(paths, use, config.data.streaming.chunk_rows, cells=cells)
    found: dict[Day, dict[str, None]] = defaultdict(dict)
    kinds: set[bool] = set()
    for piece in source.pieces:
        for _, table in source.read(piece, [column]):
            days_N, dated = days_of(table, column, source.origin, form)
            kinds.add(dated)
            for number in np.unique(days_N).tolist():
                found[Day(number, dated)][own_source(piece.file)] = None
    if len(kinds) > 1:
        raise ValueError(
            f"{source.origin}: column {column!r} holds plain numbers in one place and moments "
            "since 1970 in another; write one of them"
        )
    return dict(found), list(dict.fromkeys(map(own_source, source.sizes))), source.origin


def _as_of_log(config: RunConfig, begun: TimeConfig | None = None) -> RunConfig:
    """The config of a walk whose data.time.as_of is the newest time of the whole log.

    A day is tested on the labels that the log has, which may have come long after it. `begun`, the
    `data.time` of a day that is resumed, stays as it is.
    """
    if not config.delayed_tasks or (config.data.time and config.data.time.as_of):
        return config
    time = begun
    if time is None:
        column = time_of(config).column
        assert column is not None, "a config with matures_after has one"
        uses = {column: "data.time (for matures_after)"}
        chunk, cells = config.data.streaming.chunk_rows, text_cells(config)
        source = survey(one_path(config, None), uses, chunk, cells=cells)
        newest = found_maturity(config, times_in(config, [source])).as_of
        time = time_of(config).model_copy(update={"as_of": moment_text(newest)})
    data = config.data.model_copy(update={"time": time})
    return config.model_copy(update={"data": data})


def _days_that_grew(
    out: Path, steps: Sequence[Step], known: int, *, allowed: bool
) -> dict[str, list[str]]:
    """Finds, by run directory, what of days' files has changed since they were begun.

    The first `known` steps are those that the walk had before. A file that now holds a new day too,
    as that of a log in one file does, has to be another one; other changes are refused unless they
    are `allowed`.
    """
    new = {str(Path(file).absolute()) for step in steps[known:] for file in step.test_files}
    found: dict[str, list[str]] = {}
    looked_at: dict[DataFile, tuple[int, str]] = {}  # days of a walk share files
    for step in steps[:known]:
        remembered = RunData.read(RunDirectory(out / step.name))
        if remembered is None:
            continue
        now = print_files({"all": step.files}, looked_at)
        changes = data_changes(remembered.data, now)
        if changes:
            found[step.name] = changes
        folder, before = now.folder, remembered.data
        changes = data_changes(_without(before, folder, new), _without(now, folder, new))
        if changes and not allowed:
            raise ValueError(
                f"{out}: the data of {step.train[0]} to {step.test} has changed since "
                f"{step.name} was begun, in {now.folder}: {shown(changes)}; bring back what was "
                "there, choose another --out, or say --changed-data to keep what is finished"
            )
    return found


def _without(data: DataPrint, folder: str, files: Collection[str]) -> DataPrint:
    """Its files but for some."""
    splits = {
        split: [one for one in rows if f"{folder}/{one.name}" not in files]
        for split, rows in data.parts.items()
    }
    return data.model_copy(update={"parts": splits})


_GROUP = "group_hash"  # of the GAUC group: codes of one day mean nothing on another


def _write_tested(
    path: Path, config: RunConfig, predictions_NP: np.ndarray, labels: EncodedLabels
) -> None:
    """Writes a day's predictions, labels (empty where unobserved), weights and groups."""
    columns: dict[str, pa.Array] = {}
    for p, name in enumerate(prediction_columns(config.tasks)):
        columns[name] = pa.array(predictions_NP[:, p])
    for t, task in enumerate(config.tasks):
        missing_N = ~labels.observed_NT[:, t]
        columns[f"label_{task.name}"] = pa.array(labels.labels_NT[:, t], mask=missing_N)
        columns[f"weight_{task.name}"] = pa.array(labels.weights_NT[:, t])
    if config.data.group_column is not None:
        columns[_GROUP] = _groups(config, config.data.group_column)
    write_table(path, columns)


def _total_metrics(
    config: RunConfig, paths: list[Path]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Metrics by task over the rows of all files, and notes on what is missing."""
    names, tasks = prediction_columns(config.tasks), [task.name for task in config.tasks]
    of_labels = [f"{what}_{task}" for what in ("label", "weight") for task in tasks]
    grouped = [] if config.data.group_column is None else [_GROUP]
    tables = [read_table(path, [*names, *of_labels, *grouped]) for path in paths]
    rows, groups_N = pa.concat_tables(tables), None
    if grouped:
        hashes_N = rows[_GROUP].fill_null(0).to_numpy().view(np.int64)
        codes_N = np.unique(hashes_N, return_inverse=True)[1].astype(np.int64)
        groups_N = np.where(rows[_GROUP].is_null().to_numpy(), -1, codes_N)
    predictions_NP, labels_NT, weights_NT = (
        np.stack([rows[name].fill_null(0).to_numpy() for name in columns], axis=1)
        for columns in (names, of_labels[: len(tasks)], of_labels[len(tasks) :])
    )
    observed_NT = np.stack([rows[f"label_{task}"].is_valid().to_numpy() for task in tasks], axis=1)
    labels = EncodedLabels(
        labels_NT=labels_NT, observed_NT=observed_NT, weights_NT=weights_NT, groups_N=groups_N
    )
    return metrics_of(config, predictions_NP, labels)


def _groups(config: RunConfig, column: str) -> pa.Array:
    """A hash of each test row's group; the same for 7 and "7", as files may differ in type."""
    test, origin = open_stream(config).test, f"column {column!r}"
    hashes: list[np.ndarray] = []
    missing: list[np.ndarray] = []
    for piece, count in enumerate(test.counts_P):
        for table in test.tables(piece, [column]) if count else ():
            values = find_column(table, column, origin, "data.group_column")
            hashes.append(hash_keys(to_keys(values, "text", origin)))
            missing.append(missing_mask(values, "text"))
    return pa.array(np.concatenate(hashes), mask=np.concatenate(missing))


_STEPS, _RESULT, _TESTED = "plan.json", "backtest.json", "predictions.parquet"


class _PlannedDays(Stored):
    train_days: list[str]
    test_day: str


class _Plan(Stored):
    """plan.json."""

    column: str
    from_scratch: bool
    window: Count | None
    steps: list[_PlannedDays] = Field(min_length=1)
    config: dict[str, Any]


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
    with FolderClaim("backtest", reporter.say) as claim:
        join_ranks(config.parallel.timeout_seconds)
        config = with_absolute_paths(config, data)
        asked = {"--resume": resume, "--changed-data": changed_data, **settings.options()}
        out = same_on_all_ranks(config, out, asked)
        reporter = reporter if rank() == 0 else SilentReporter()
        walk = _Walk(claim, config, settings, reporter)
        if not numbered:
            from_first(lambda: claim.go_on(out, resume=resume), takes_long=True)
        steps, folder, changed = from_first(
            lambda: walk.begin(out, numbered, changed_data), takes_long=True
        )
        claim.begun = folder
        on_folder(folder)
        days = walk.days(folder, steps, changed)
        return from_first(lambda: walk.finish(folder, steps, days), takes_long=True)


class _Walk:
    """The days of one call."""

    def __init__(
        self, claim: FolderClaim, config: RunConfig, settings: BacktestSettings, reporter: Reporter
    ) -> None:
        self.claim, self.config, self.settings, self.reporter = claim, config, settings, reporter
        self.column = _day_column(config, settings)
        # Of plan.json and backtest.json; without `days`: a walk may be made longer
        own = {"from_scratch": settings.from_scratch, "window": settings.window}
        self.header = {"column": self.column, **own}

    def begin(
        self, out: Path, numbered: bool, changed_data: bool
    ) -> tuple[list[Step], Path, Collection[str]]:
        """Lays out the steps, writes plan.json, and names the days whose data has grown."""
        steps, changed = backtest_steps(self.config, self.settings), ()
        if self.claim.lock is None:
            out = self.claim.create(out, numbered=numbered)
        else:
            known = _check_steps(out, self.config, self.header, steps)
            changed = _days_that_grew(out, steps, known, allowed=changed_data)
        write_json(out / _STEPS, _as_stored(self.config, self.header, steps))
        return steps, out, changed

    def days(
        self, out: Path, steps: Sequence[Step], changed: Collection[str]
    ) -> list[dict[str, Any]]:
        """Trains and tests day by day; `changed` names those whose data has grown."""
        days, before = [], None
        try:
            for step in steps:
                days.append(self._day(out, step, before, changed=step.name in changed))
                before = step
        except BaseException:  # the launcher's too, where another rank has failed
            self._leave_nothing_of_no_day(out)
            raise
        return days

    def _leave_nothing_of_no_day(self, out: Path) -> None:
        """A walk that never got through a day must not stand in the mended command's way."""
        claim = self.claim
        if claim.lock is None or claim.mark is None or not claim.lock.is_mine():
            return  # another rank than the first, or no folder any more
        names = {path.name for path in out.iterdir()} - {_STEPS, MARK}
        if all(is_lock_file(name) for name in names):
            (out / _STEPS).unlink(missing_ok=True)
            claim.withdraw()

    def _day(self, out: Path, step: Step, before: Step | None, *, changed: bool) -> dict[str, Any]:
        """Runs one day of a backtest; a finished day is read, an unfinished one resumed.

        Its data may have changed since it was begun; `changed` says that this was looked at. The
        last days of a log are younger than any window, and so are those they are tested on.
        """
        continues = not self.settings.from_scratch
        run, tested = RunDirectory(out / step.name), out / step.name / _TESTED
        if step.gap:
            self.reporter.say(
                f"no rows between {step.train[-1]} and {step.test}: the model of {step.train[-1]} "
                f"is tested on {step.test}"
            )
        finished, begun = from_first(
            lambda: (run.metrics_file.exists() and tested.exists(), run.path.exists())
        )
        if not finished:
            trained = " to ".join(map(str, dict.fromkeys((step.train[0], step.train[-1]))))
            self.reporter.say(f"training on {trained}, testing on {step.test}")
            stored = from_first(lambda: run.config().data.time if begun else None)
            whole = from_first(lambda: _as_of_log(self.config, stored), takes_long=True)
            day_config = step.config(whole, self.column)
            try:
                train_run(
                    day_config,
                    run.path,
                    resume=begun,
                    changed_data=changed,
                    warm_start=WarmStart(out / before.name) if continues and before else None,
                    reporter=self.reporter,
                    leaves_young=before is not None,
                    on_test=lambda predictions_NP, labels: _write_tested(
                        tested, day_config, predictions_NP, labels
                    ),
                )
            except ValueError as error:
                raise ValueError(
                    f"backtest, day {trained} (tested on {step.test}): {error}"
                ) from None
        tasks = from_first(lambda: run.metrics()["tasks"])
        return {**step.as_dict(), "run": step.name, "tasks": tasks}

    def finish(
        self, out: Path, steps: Sequence[Step], days: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Measures the rows of all days, and writes backtest.json."""
        total, notes = _total_metrics(self.config, [out / step.name / _TESTED for step in steps])
        for note in notes:
            self.reporter.say(f"note, total: {note}")
        result = {**self.header, "days": days, "total": total}
        self.claim.check()
        write_json(out / _RESULT, result)
        return result


def _as_stored(config: RunConfig, header: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """The content of plan.json."""
    return {
        **header,
        "steps": [step.as_dict() for step in steps],
        "config": config.model_dump(mode="json"),
    }


def _check_steps(out: Path, config: RunConfig, header: dict[str, Any], steps: list[Step]) -> int:
    """The number of steps that a resumed walk had before."""
    if not (out / _STEPS).exists():
        return 0
    content = _as_stored(config, header, steps)
    old = read_json(out / _STEPS, _Plan)
    before = old.pop("steps")
    # Read as any run's config: what it names is not imported
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
    """The difference of plan.json's steps to today's; the first ones should be the same."""
    tested, here = ([step["test_day"] for step in steps] for steps in (before, now))
    begun, found = f"it tested {tested[0]} to {tested[-1]}", f"{here[0]} to {here[-1]}"
    if tested[0] in here[1:]:
        days = f"--days {len(here) - here.index(tested[0])}"
        return f"{begun}, and {found} is asked for now: it goes on with fewer days, {days}"
    if here[0] in tested[1:]:
        days = f"--days {len(here) + tested.index(here[0])}"
        return f"{begun}, and {found} is asked for now: it goes on with {days}"
    return f"{begun}, and the data now holds other days or trains on others, {found}"

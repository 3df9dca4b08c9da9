"""Which days a backtest trains on and tests, and which files hold them."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmoe.config import RunConfig, SplitConfig
from mmoe.datasets.files.lake import own_source
from mmoe.datasets.rows.days import Day, days_of
from mmoe.datasets.rows.sources import one_path
from mmoe.datasets.stream.survey import survey
from mmoe.datasets.values.missing_words import TextCells

# Numbers from here on may be written YYYYMMDD, where the end of a month is no gap
_FIRST_YYYYMMDD = 10_000_000


@dataclass(frozen=True, kw_only=True)
class BacktestSettings:
    """How a backtest walks: which days, on how many each model trains.

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

    def as_dict(self) -> dict[str, Any]:
        """Returns what backtest.json holds; not `days`: a walk may be made longer."""
        return {"from_scratch": self.from_scratch, "window": self.window}

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


def day_column(config: RunConfig, settings: BacktestSettings) -> str:
    """Returns the name of the column that holds the day.

    Raises:
        ValueError: Neither the settings nor the config name one, or rows come from no path.
    """
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
    column = day_column(config, settings)
    files, origin = _files_by_day(config, column)
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
        mine = {file: None for day in [*train, test] for file in files[day]}
        in_order = [file for file in _all(files) if file in mine]
        tested = tuple(files[test])
        steps.append(Step(train=tuple(train), test=test, files=tuple(in_order), test_files=tested))
    return steps


def _all(files: dict[Day, dict[str, int]]) -> list[str]:
    """Every file once, in the order of the data set."""
    numbered = {file: number for named in files.values() for file, number in named.items()}
    return sorted(numbered, key=lambda file: numbered[file])


def _format(config: RunConfig, column: str) -> str | None:
    """How the column's text says a datetime, where the split says so."""
    split = config.data.split
    return split.format if column == split.column else None


def _files_by_day(config: RunConfig, column: str) -> tuple[dict[Day, dict[str, int]], str]:
    """For each day the files that hold rows of it, each with its place; and the data's name."""
    paths = one_path(config, None)
    use = {column: "backtest --column"}
    form = _format(config, column)
    cells = TextCells(as_text=frozenset([column] if form is not None else []))
    source = survey(paths, use, config.data.streaming.chunk_rows, cells=cells)
    order = {file: number for number, file in enumerate(source.sizes)}
    found: dict[Day, dict[str, int]] = defaultdict(dict)
    kinds: set[bool] = set()
    for piece in source.pieces:
        for _, table in source.read(piece, [column]):
            days_N, dated = days_of(table, column, source.origin, form)
            kinds.add(dated)
            for number in np.unique(days_N).tolist():
                found[Day(number, dated)][own_source(piece.file)] = order[piece.file]
    if len(kinds) > 1:
        raise ValueError(
            f"{source.origin}: column {column!r} holds plain numbers in one place and moments "
            "since 1970 in another; write one of them"
        )
    return dict(found), source.origin

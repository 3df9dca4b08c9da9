"""Rows of a run, as its folder remembers them: where they came from, and when they were labelled.

They are compared with what is there today; users whose model may have been trained on the rows that
it is evaluated on get a note.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from mmoe.config import Count, RunConfig, read_model
from mmoe.config.data import moment_of
from mmoe.config.json_files import Share
from mmoe.config.kinds import Strict
from mmoe.datasets import BatchSource, EncodedLabels, FeatureEncoder, load_test
from mmoe.datasets.files.fingerprint import (
    DataPrint,
    RowsPrint,
    data_changes,
    print_data,
    print_files,
    print_splits,
    print_tables,
    same_rows,
    shown,
)
from mmoe.datasets.labels.maturity import (
    STEPS,
    DelayCurve,
    Masked,
    Maturity,
    describe_most,
    masked_counts,
    maturity_of,
    moment_text,
)
from mmoe.datasets.rows.batch_source import HeldSplits
from mmoe.datasets.rows.frames import TableLike, holds_rows
from mmoe.datasets.rows.sources import HeldOut, at_versions, generated_splits
from mmoe.datasets.stream import every_row, open_stream, wants_stream
from mmoe.parallel import from_first
from mmoe.run import Reporter, RunDirectory, write_json
from mmoe.train.state import Position

_LEAK = "test rows may have been trained on"


class RunData(Strict):
    """Content of data.json: what a run's rows came from.

    Attributes:
        data: What the rows come from.
        earlier: What they came from before a resume that was asked to take changed data.
        continued: What the runs of a warm start were trained on, as far as test rows of this one
            may be among it.
        since: Step of the checkpoint that the last such resume went on from.
    """

    data: DataPrint
    earlier: list[DataPrint] = Field(default_factory=list)
    continued: list[DataPrint] = Field(default_factory=list)
    since: int | None = None

    @classmethod
    def read(cls, run: RunDirectory) -> "RunData | None":
        """Reads a run's data.json; None: it keeps none, as a copy for scoring does.

        Raises:
            ValueError: The file is damaged.
        """
        if not run.data_file.exists():
            return None
        return read_model(
            run.data_file,
            cls,
            "remove it, and nobody can tell any more whether the data has changed, or train again",
        )

    def save(self, run: RunDirectory) -> None:
        """Writes data.json."""
        write_json(run.data_file, self.model_dump(mode="json"))

    def trained_on(self) -> list[DataPrint]:
        """Lists all that the run has read rows from, the first one first."""
        return [*self.earlier, self.data]

    def changes(self, now: DataPrint | None = None) -> list[str]:
        """Lists how today's rows differ from those that the run was trained on."""
        now = now or self.data
        differ = (data_changes(one, now) for one in self.trained_on() if not same_rows(one, now))
        return next(differ, [])


def _resumed(
    run: RunDirectory, now: DataPrint, *, allowed: bool
) -> tuple[RunData | None, bool, str | None]:
    """The data to remember from now on, whether that changes, and why other data are refused."""
    try:
        remembered = RunData.read(run)
    except ValueError as error:
        return None, False, str(error)
    changes = data_changes(remembered.data, now) if remembered is not None else []
    if remembered is None or not changes:
        return remembered, False, None
    if not allowed:
        mend = (
            "give the files their names back"
            if same_rows(remembered.data, now)
            else "its splits would hold other rows, and test rows may have been trained on: bring "
            "back what was there, start anew in another folder"
        )
        go_on = "--changed-data" if now.kind == "files" else "changed_data=True"
        why = f"{run.path}: the data has changed since the run began{where(now)}: {shown(changes)}"
        return None, False, f"{why}: {mend}, or say {go_on} to go on"
    update = {"data": now, "earlier": remembered.trained_on()}
    return remembered.model_copy(update=update), True, None


class ResumedData:
    """Checks that an interrupted run goes on with the rows that it began with.

    Args:
        run: That is resumed; None: a new one, of which nothing is asked.
        config: Of the run.
        allowed: The rows may be others.
        reporter: Told where they are.
    """

    def __init__(
        self, run: RunDirectory | None, config: RunConfig, allowed: bool, reporter: Reporter
    ) -> None:
        self.run, self.config, self.allowed, self.reporter = run, config, allowed, reporter
        self.remembered: RunData | None = None
        self.changes = False

    def check(self, now: DataPrint) -> None:
        """Checks before anything is read; all ranks together.

        Raises:
            ValueError: The rows are others, or data.json is damaged; the same text on every rank.
        """
        run = self.run
        if run is None:
            return
        self.remembered, self.changes, refusal = from_first(
            lambda: _resumed(run, now, allowed=self.allowed)
        )
        if refusal is not None:
            raise ValueError(refusal)
        if self.remembered is None:
            self.reporter.say(forgotten(run))
        elif self.changes:
            leak = f", and {_LEAK}" if _goes_by_number(self.config) else ""
            self.reporter.say(
                f"the data has changed since the run began{where(now)}: "
                f"{shown(self.remembered.changes())}; the interrupted epoch begins again{leak}"
            )

    def take_in(self, position: Position) -> None:
        """Writes down what has changed, and lets training go on with it."""
        run, remembered = self.run, self.remembered
        # A process may have died after it took other data in, and before its first checkpoint
        again = remembered is not None and remembered.since == position.step
        if run is None or not (self.allowed or again):
            return
        position.train_rows, position.fingerprint = 0, ""  # not to be compared
        if self.changes or again:
            position.batch = 0
        if remembered is not None and self.changes:
            update = remembered.model_copy(update={"since": position.step})
            from_first(lambda: update.save(run))


def _goes_by_number(config: RunConfig) -> bool:
    """Returns whether a row's split depends on the rows before it, or on their number."""
    return config.data.split.by in ("random", "time") or config.data.source not in (
        "files",
        "synthetic-funnel",
    )


def forgotten(run: RunDirectory) -> str:
    """Returns the note about a run without data.json."""
    return (
        f"note: {run.path} does not remember its data, so nobody can tell whether that has changed"
    )


def where(now: DataPrint) -> str:
    """Returns the folder of the data, for a sentence."""
    return f" in {now.folder}" if now.folder else ""


def describe_own_split(
    run: RunDirectory, config: RunConfig, now: DataPrint
) -> tuple[list[str], str | None]:
    """Returns notes on what has changed where a run's own test split is evaluated again.

    Returns:
        The changes, and a line for the user.
    """
    remembered = RunData.read(run)
    if remembered is None:
        return [], forgotten(run)
    if config.data.split.by == "file" and all(
        same_rows(one, now, "test") for one in remembered.trained_on()
    ):
        return [], None  # the other parts are not evaluated on
    changes = remembered.changes(now)
    if not changes:
        return [], describe_continued(remembered, config)
    return changes, (
        f"{_consequence(config, remembered, now)} (the data has changed since training"
        f"{where(now)}: {shown(changes)})"
    )


def describe_other_rows(run: RunDirectory, config: RunConfig, now: DataPrint) -> str | None:
    """Returns a note where rows are evaluated on that the run was trained on."""
    remembered = RunData.read(run)
    if remembered is None:
        return None
    names = _trained_on(config, remembered, now.rows)
    if not names:
        return None
    return (
        f"note: the run was trained on rows of {shown(names)}, so these metrics are better than "
        "those of new rows; leave --data out to evaluate on its test split alone"
    )


def continued_data(earlier: RunDirectory, config: RunConfig, now: DataPrint) -> list[DataPrint]:
    """Lists what a run that a new one continues was trained on.

    Left out is what holds no row that the new one tests: the same rows split the same way, keys or
    days that are not tested, and the past of a split by time.

    Args:
        earlier: Its folder.
        config: Of the new run.
        now: What the new run's rows come from.
    """
    remembered, before = RunData.read(earlier), earlier.config()
    split = config.data.split
    if remembered is None or split.by == "time":
        return []
    if split.by == "day" and not {*(split.test_days or ())} & {
        *(before.data.split.train_days or ())
    }:
        return []
    same_split = (before.data.split, before.split_seed) == (split, config.split_seed)
    return [
        one
        for one in (*remembered.continued, *remembered.trained_on())
        if not (same_split and (split.by == "hash" or same_rows(one, now)))
    ]


def describe_continued(remembered: RunData, config: RunConfig) -> str | None:
    """Returns a note where a warm start's run was trained on rows that are tested now."""
    rows = remembered.data.rows
    if config.data.split.by == "file":
        rows = remembered.data.parts.get("test", [])
    seen = {(one.size, one.digest) for data in remembered.continued for one in data.rows}
    names = [one.name for one in rows if (one.size, one.digest) in seen]
    if not names:
        return None
    return (
        f"warning: the run of the warm start was trained on rows of {shown(names)} and held out "
        f"others than this one, so {_LEAK}, and its metrics be too good: give a warm start new "
        "rows alone (--data PATH), or split by time"
    )


def _consequence(config: RunConfig, remembered: RunData, now: DataPrint) -> str:
    """The consequence of a changed test split, which depends on what rows are split by."""
    split = config.data.split.by
    leak = (
        f"{_LEAK}, and these metrics be too good: evaluate on rows that came later (--data PATH), "
        "or train anew"
    )
    if split == "time" and _goes_by_number(config):
        return f"warning: the cut between past and future may have moved, so {leak}"
    if split == "file" and (names := _trained_on(config, remembered, now.parts.get("test", []))):
        return f"warning: the run was trained on rows of {shown(names)}, so {leak}"
    if not _goes_by_number(config):
        why = {
            "hash": ", as rows are split by key (rows without one: by number)",
            "day": ", as days are split",
            "file": "",
        }[split]
        return (
            "note: the test split holds other rows than the one of metrics.json, though none that "
            f"were trained on{why}"
        )
    return f"warning: rows are split by their number, so {leak}"


def _trained_on(config: RunConfig, remembered: RunData, rows: Sequence[RowsPrint]) -> list[str]:
    """Names of those files that held rows to train on, whatever they were called then."""
    parts = ("train",) if config.data.split.by == "file" else None
    seen = {
        (one.size, one.digest)
        for data in remembered.trained_on()
        for part, prints in data.parts.items()
        if data.kind == "files" and (parts is None or part in parts)
        for one in prints
    }
    return [one.name for one in rows if (one.size, one.digest) in seen]


class _StoredCurve(Strict):
    window: Count
    shares: list[Share] = Field(min_length=STEPS, max_length=STEPS)


class RunMaturity(Strict):
    """Content of maturity.json; its own labels' run is evaluated and resumed by it.

    Attributes:
        as_of: In words.
        micros: The same in microseconds since 1970.
        masked: How many labels of each split and task are masked.
        delays: Of tasks with `immature: weight`, the share of events by each step of the window.
        leaves_young: As in `Maturity`.
    """

    as_of: str
    micros: int
    masked: dict[str, dict[str, dict[str, Count]]]
    delays: dict[str, _StoredCurve]
    leaves_young: bool = False

    @classmethod
    def of(cls, maturity: Maturity, masked: Masked) -> "RunMaturity":
        """Returns what is to be stored."""
        delays = {
            task: _StoredCurve(window=curve.window, shares=curve.shares_J.tolist())
            for task, curve in maturity.curves.items()
        }
        as_of = moment_text(maturity.as_of)
        return cls(
            as_of=as_of,
            micros=maturity.as_of,
            masked=masked,
            delays=delays,
            leaves_young=maturity.leaves_young,
        )

    @classmethod
    def read(cls, run: RunDirectory, config: RunConfig) -> "RunMaturity | None":
        """Reads a run's maturity.json; None: no label of it matures.

        Raises:
            ValueError: The file is gone or damaged.
        """
        if not config.delayed_tasks:
            return None
        return read_model(
            run.maturity_file,
            cls,
            "it says when the run's labels were collected: put it back, or train again",
        )

    @classmethod
    def resumed(cls, run: RunDirectory | None, config: RunConfig) -> tuple[Maturity, Masked] | None:
        """Reads what a run goes on with, as `prepare` takes it; None: of a new run."""
        stored = None if run is None else cls.read(run, config)
        return None if stored is None else (stored.maturity(), stored.masked)

    def save(self, run: RunDirectory) -> None:
        """Writes maturity.json."""
        write_json(run.maturity_file, self.model_dump(mode="json"))

    def maturity(self) -> Maturity:
        """Returns it as labels are encoded with it."""
        curves = {
            task: DelayCurve(curve.window, np.array(curve.shares))
            for task, curve in self.delays.items()
        }
        return Maturity(as_of=self.micros, curves=curves, leaves_young=self.leaves_young)


def is_own_split(config: RunConfig, data: str | Path | TableLike | None) -> bool:
    """Returns whether the rows are the run's own test split.

    Of a bundled source `data` is the folder of its raw files, which are split again.
    """
    return data is None or (config.data.source != "files" and not holds_rows(data))


def held_out_rows(
    run: RunDirectory,
    config: RunConfig,
    encoder: FeatureEncoder,
    data: str | Path | TableLike | None,
    as_of: str | None,
) -> tuple[BatchSource, dict[str, np.ndarray] | None, DataPrint, Maturity | None]:
    """Returns the rows to evaluate on; streamed where those of training were.

    Args:
        run: Its folder.
        config: Of the run.
        encoder: Likewise.
        data: As for `evaluate_run`.
        as_of: Likewise.

    Returns:
        The rows, the oracle's probabilities where there are any, what the rows came from, and when
        their labels were collected where that matters.

    Raises:
        ValueError: The rows cannot be read, or their labels have no times.
    """
    if holds_rows(data):
        rows, held_out, maturity = _all_rows(config, encoder, data, as_of)
        return rows, None, print_splits({"all": held_out.table}), maturity
    if not is_own_split(config, data):
        assert data is not None, "it would be the own split"
        seen = from_first(lambda: print_files({"all": data}))
        if wants_stream(config, data):
            rows, maturity = every_row(config, encoder, data, as_of)
            return rows, None, seen, maturity
        rows, _, maturity = _all_rows(config, encoder, data, as_of)
        return rows, None, seen, maturity
    if data is None and (remembered := RunData.read(run)) is not None:
        config = at_versions(config, remembered.data.versions)
    stored = RunMaturity.read(run, config)
    maturity = None if stored is None else stored.maturity()
    splits = generated_splits(config, data)
    if splits is not None:
        rows = HeldSplits(config, splits, maturity).rows("test", encoder)
        return rows, splits.oracle, print_tables(splits), maturity
    seen = from_first(lambda: print_data(config, data=data))
    if wants_stream(config, data):
        opened = open_stream(config).maturing(maturity)
        return opened.rows("test", encoder), None, seen, maturity
    held_out = load_test(config, data)
    rows = BatchSource.of_table(held_out.table, encoder, held_out.origin, config, maturity=maturity)
    return rows, held_out.oracle, seen, maturity


def _all_rows(
    config: RunConfig,
    encoder: FeatureEncoder,
    data: str | Path | TableLike | None,
    as_of: str | None,
) -> tuple[BatchSource, HeldOut, Maturity | None]:
    """Rows of other data than the run's, whose labels were collected at another time."""
    held_out = load_test(config, data)
    config = config.model_copy(update={"data": config.data.unsplit()})
    tables = [(held_out.table, held_out.origin)]
    maturity = maturity_of(config, tables, as_of=as_of)
    rows = BatchSource.of_table(held_out.table, encoder, held_out.origin, config, maturity=maturity)
    return rows, held_out, maturity


def check_as_of(run: RunDirectory, config: RunConfig, as_of: str | None, *, own: bool) -> None:
    """Refuses `as_of` where it has no effect, or is no datetime.

    Raises:
        ValueError: It is so.
    """
    if as_of is None:
        return
    if not config.delayed_tasks:
        raise ValueError(
            f"{run.path}: --as-of: no task of this run has matures_after, so every label counts "
            "already; leave it out"
        )
    if own:
        raise ValueError(
            f"{run.path}: --as-of: is for rows of --data; the run's own labels were collected when "
            "maturity.json says; leave it out"
        )
    try:
        moment_of(as_of)
    except ValueError:
        raise ValueError(
            f"--as-of: expected a datetime such as 2024-01-31T00:00, got {as_of!r}"
        ) from None


def say_masked(
    config: RunConfig, labels: EncodedLabels, maturity: Maturity | None, reporter: Reporter
) -> None:
    """Says how many labels are masked, since their rows are young.

    Raises:
        ValueError: All of every task are.
    """
    if maturity is None:
        return
    counts, as_of = masked_counts(config, labels), moment_text(maturity.as_of)
    for task in config.delayed_tasks:
        mine = counts[task.name]
        if mine["masked"] and not labels.observed_NT.any():
            raise ValueError(
                f"all {mine['masked']} labels of task {task.name!r} are of rows younger than "
                f"{task.matures_after} (matures_after) as of {as_of}, so there is nothing to "
                "evaluate on; give older rows, or --as-of where labels were collected later"
            )
        if mine["masked"]:
            reporter.say(
                f"{task.name}: {mine['masked']:,} of {mine['masked'] + mine['left']:,} labels are "
                f"masked, of rows younger than {task.matures_after} as of {as_of}"
            )
        line = describe_most(task, mine, "these rows")
        if line is not None:
            reporter.say(line)

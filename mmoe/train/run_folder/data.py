"""What a run's rows came from, kept in its folder, compared with what is there today."""

from pydantic import Field

from mmoe.config import RunConfig
from mmoe.config.json_files import read_stored
from mmoe.config.kinds import Strict
from mmoe.datasets.files.changed_data import data_changes, same_rows, shown
from mmoe.datasets.files.fingerprint import DataPrint
from mmoe.parallel import from_first
from mmoe.run.atomic_files import write_json
from mmoe.run.console import Reporter
from mmoe.run.directory import RunDirectory
from mmoe.train.state import Position

LEAK = "test rows may have been trained on"


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
        """Reads a run's data.json; None: an earlier version trained it.

        Raises:
            ValueError: The file is damaged.
        """
        if not run.data_file.exists():
            return None
        content = read_stored(
            run.data_file,
            cls,
            "remove it, and nobody can tell any more whether the data has changed, or train again",
        )
        return cls.model_validate(content)

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


def _check_resumed(
    run: RunDirectory, now: DataPrint, *, allowed: bool
) -> tuple[RunData | None, bool]:
    """Refuses to resume where the data differs from what the run began with.

    Args:
        run: To be resumed.
        now: What there is to read.
        allowed: The rows may be others.

    Returns:
        What the run shall remember from now on, and whether that changes.

    Raises:
        ValueError: The data has changed; says what, and the ways out.
    """
    remembered = RunData.read(run)
    changes = data_changes(remembered.data, now) if remembered is not None else []
    if remembered is None or not changes:
        return remembered, False
    if not allowed:
        mend = (
            "give the files their names back"
            if same_rows(remembered.data, now)
            else "its splits would hold other rows, and test rows may have been trained on: bring "
            "back what was there, start anew in another folder"
        )
        go_on = "--changed-data" if now.kind == "files" else "changed_data=True"
        raise ValueError(
            f"{run.path}: the data has changed since the run began{where(now)}: "
            f"{shown(changes)}: {mend}, or say {go_on} to go on"
        )
    update = {"data": now, "earlier": remembered.trained_on()}
    return remembered.model_copy(update=update), True


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
            ValueError: As `_check_resumed`; the same text on every rank.
        """
        run = self.run
        if run is None:
            return
        found, refusal = from_first(lambda: _checked(run, now, self.allowed))
        if refusal is not None:
            raise ValueError(refusal)
        self.remembered, self.changes = found
        if self.remembered is None:
            self.reporter.say(forgotten(run))
        elif self.changes:
            leak = f", and {LEAK}" if goes_by_number(self.config) else ""
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


def _checked(
    run: RunDirectory, now: DataPrint, allowed: bool
) -> tuple[tuple[RunData | None, bool], str | None]:
    """As `_check_resumed`; an error's text is returned, for all ranks to raise."""
    try:
        return _check_resumed(run, now, allowed=allowed), None
    except ValueError as error:
        return (None, False), str(error)


def changed_since(run: RunDirectory) -> list[str]:
    """Returns what had changed when a run was resumed, as metrics.json says it."""
    remembered = RunData.read(run)
    return [] if remembered is None else remembered.changes()


def goes_by_number(config: RunConfig) -> bool:
    """Returns whether a row's split depends on the rows before it, or on their number."""
    return config.data.split.by in ("random", "time") or config.data.source not in (
        "files",
        "synthetic-funnel",
    )


def forgotten(run: RunDirectory) -> str:
    """Returns the note about a run without data.json."""
    return (
        f"note: {run.path} does not remember its data, as an earlier version began it, so nobody "
        "can tell whether that has changed"
    )


def where(now: DataPrint) -> str:
    """Returns the folder of the data, for a sentence."""
    return f" in {now.folder}" if now.folder else ""

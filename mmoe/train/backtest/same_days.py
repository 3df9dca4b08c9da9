"""Checks that the days of a walk's finished models are still what they were."""

from collections.abc import Collection, Sequence
from pathlib import Path

from mmoe.datasets.files.changed_data import data_changes, shown
from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.fingerprint import DataPrint, print_files
from mmoe.run.directory import RunDirectory
from mmoe.train.backtest.steps import Step
from mmoe.train.run_folder.data import RunData


def days_that_grew(
    out: Path, steps: Sequence[Step], known: int, *, allowed: bool
) -> dict[str, list[str]]:
    """Finds days whose files have changed since they were begun; refuses all but new days.

    A file that now holds a new day too, as that of a log in one file does, has to be another one.

    Args:
        out: Of the walk.
        steps: Of today.
        known: How many of them the walk had before; the others are new days.
        allowed: Files may have changed otherwise, too.

    Returns:
        For each run directory whose files have changed, what has.

    Raises:
        ValueError: A day that was begun has changed; names it and its file.
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

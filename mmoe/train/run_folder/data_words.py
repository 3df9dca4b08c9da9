"""Notes for users whose model may have been trained on the rows that it is evaluated on."""

from collections.abc import Sequence

from mmoe.config import RunConfig
from mmoe.datasets.files.changed_data import same_rows, shown
from mmoe.datasets.files.fingerprint import DataPrint, RowsPrint
from mmoe.run.directory import RunDirectory
from mmoe.train.run_folder.data import LEAK, RunData, forgotten, goes_by_number, where


def said_of_own_split(
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
        return [], said_of_continued(remembered, config)
    return changes, (
        f"{_consequence(config, remembered, now)} (the data has changed since training"
        f"{where(now)}: {shown(changes)})"
    )


def said_of_other_rows(run: RunDirectory, config: RunConfig, now: DataPrint) -> str | None:
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


def said_of_continued(remembered: RunData, config: RunConfig) -> str | None:
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
        f"others than this one, so {LEAK}, and its metrics be too good: give a warm start new rows "
        "alone (--data PATH), or split by time"
    )


def _consequence(config: RunConfig, remembered: RunData, now: DataPrint) -> str:
    """What a changed test split means: it depends on what rows are split by."""
    split = config.data.split.by
    leak = (
        f"{LEAK}, and these metrics be too good: evaluate on rows that came later (--data PATH), "
        "or train anew"
    )
    if split == "time" and goes_by_number(config):
        return f"warning: the cut between past and future may have moved, so {leak}"
    if split == "file" and (names := _trained_on(config, remembered, now.parts.get("test", []))):
        return f"warning: the run was trained on rows of {shown(names)}, so {leak}"
    if not goes_by_number(config):
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

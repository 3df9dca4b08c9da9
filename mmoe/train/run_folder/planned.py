"""A folder of many runs of one config: plan.json says what they share, so they can go on."""

from pathlib import Path
from typing import Any

from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.files.changed_data import data_changes, shown
from mmoe.datasets.files.fingerprint import DataPrint
from mmoe.run.atomic_files import read_json, write_json
from mmoe.run.folder_claim import (
    FolderClaim,
    FolderMark,
    contents,
    exists_already,
    holds_nothing,
    remove_stray_files,
)
from mmoe.train.run_folder.start import first_difference

PLAN = "plan.json"
_KEYS = ("config", "data")


def hold_planned(claim: FolderClaim, out: Path, *, resume: bool) -> None:
    """Locks the folder that is gone on with, before anything is read; a new one is left alone.

    Raises:
        ValueError: `out` holds something else, or another process writes into it.
    """
    if not out.exists() or holds_nothing(out):
        return
    if not out.is_dir():
        raise ValueError(f"{out}: is a file; choose another --out, a folder")
    if not resume:
        raise exists_already(out)
    mark = FolderMark.read(out)
    if mark is None:
        raise ValueError(
            f"{out}: holds no {claim.kind} to continue (there is no mmoe.json, but "
            f"{contents(out)}); choose another --out"
        )
    if mark.kind != claim.kind:
        raise ValueError(f"{out}: is the folder of a {mark.kind}; choose another --out")
    claim.hold(out)
    remove_stray_files(out)


def begin_planned(
    claim: FolderClaim, out: Path, config: RunConfig, data: DataPrint, *, numbered: bool
) -> Path:
    """Makes the folder and its plan.json, or checks that the one there has the same.

    Returns:
        The folder.

    Raises:
        ValueError: It was begun with another config or other rows, or another process was faster.
    """
    if claim.lock is None:
        out = claim.create(out, numbered=numbered)
    elif (out / PLAN).exists():
        _check_plan(out, config, data)
        return out
    plan = {"config": config.model_dump(mode="json"), "data": data.model_dump(mode="json")}
    write_json(out / PLAN, plan)
    return out


def _check_plan(out: Path, config: RunConfig, data: DataPrint) -> None:
    old: dict[str, Any] = read_json(out / PLAN, _KEYS)
    # Of an earlier version it may lack keys, whose defaults say what they did then
    begun = config_from_dict(old["config"], f"{out / PLAN}: config", of_run=True)
    difference = first_difference(begun.model_dump(mode="json"), config.model_dump(mode="json"))
    if difference:
        raise ValueError(
            f"{out}: was begun with another config ({difference}); resume with the same one, or "
            "choose another --out"
        )
    changes = data_changes(DataPrint.model_validate(old["data"]), data)
    if changes:
        raise ValueError(
            f"{out}: the data has changed since it was begun ({shown(changes)}), so its runs "
            "would not be on the same rows; bring back what was there, or choose another --out"
        )

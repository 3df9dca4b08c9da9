"""Which files a run makes: the only ones that are ever removed from its folder."""

import re
from contextlib import suppress
from pathlib import Path

# Written aside by a process before the move to its name
_ASIDE = r"\.\d+\.tmp"
# What lies in the run's folder itself before there is a checkpoint
_EARLY = "warm_start|pruned|data|maturity|columns|plan|mlflow|history"
_JSON = rf"(?:config\.yaml|(?:{_EARLY}|curves|metrics|index|state|table)\.json)"
_OF_MANY = r"(?:(?:backtest|compare|baseline|tune)\.json|best\.yaml)"
_TENSORS = r"(?:model|training)(?:-\d{5}-of-\d{5})?\.safetensors"

STEP_NAME = re.compile(r"step-\d{8,}(?:-\d+)?")
STEP_FOLDER = re.compile(rf"{STEP_NAME.pattern}|\.{STEP_NAME.pattern}{_ASIDE}")
STEP_FILE = re.compile(rf"{_TENSORS}|state\.json")
STRAY_POINTER = re.compile(rf"\.index(?:\.json)?{_ASIDE}")
STRAY_FILE = re.compile(rf"\.(?:{_JSON}|mmoe\.json|predictions\.parquet|{_OF_MANY}){_ASIDE}")
PROFILE_FILE = re.compile(rf"trace\.json|table\.(?:json|txt)|\.table\.(?:json|txt){_ASIDE}")
STRAY_PROFILE = re.compile(r"\.profile\.\d+(?:-earlier)?\.tmp")
VOCABULARY_FILE = re.compile(r"encoder\.json(?:\.tmp)?|\d{3}-.*\.(?:parquet|tmp)")
EVENT_FILE = re.compile(r"events\.out\.tfevents\..*")
EARLY_FILE = re.compile(rf"config\.yaml|(?:{_EARLY})\.json")


def remove_files(folder: Path, own: re.Pattern[str]) -> None:
    """Removes the files with such names, and the folder where nothing else is left in it."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in matching(folder, own):
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):  # it holds something else
        folder.rmdir()


def remove_folders(folder: Path, named: re.Pattern[str], own: re.Pattern[str]) -> None:
    """Removes, as `remove_files` does, the files of each folder inside that has such a name."""
    for path in matching(folder, named):
        remove_files(path, own)


def matching(folder: Path, named: re.Pattern[str]) -> list[Path]:
    """Lists what lies in the folder under such a name, in order; nothing where it is absent."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if named.fullmatch(path.name))

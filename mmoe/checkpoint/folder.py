"""Checkpoints: safetensors and JSON in one folder per step, complete or absent."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field
from torch import Tensor

from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.config.json_files import Stored
from mmoe.run.atomic_files import flush, read_json
from mmoe.run.folder_claim import (
    STEP_FILE,
    STEP_FOLDER,
    STEP_NAME,
    STRAY_POINTER,
    matching,
    remove_files,
)

T = TypeVar("T")
_Step = Annotated[str, Field(pattern=r"^step-[0-9]{1,18}(-[0-9]{1,18})?$")]


class _Index(Stored):
    """index.json."""

    latest: _Step
    best: _Step
    kept: list[_Step] = Field(default_factory=list)


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder of checkpoints: index.json, `step-00000120/{model.safetensors, state.json, …}`.

    Where several ranks hold shards, each writes its own: `model-00001-of-00004.safetensors`.
    index.json names the latest step, the best and those that are kept beside them. It is replaced
    in one move after a step's folder is complete, so whatever moment the process dies, it names a
    whole checkpoint. `CheckpointSaver` writes; everything here but `begin`, `publish` and
    `remove_strays` only reads.
    """

    path: Path

    def exists(self) -> bool:
        """Returns whether a whole checkpoint is there."""
        return (self.path / "index.json").exists()

    def index(self) -> dict[str, Any]:
        """Reads `{"latest": folder, "best": folder, "kept": [folder, …]}`, the oldest first."""
        return read_json(self.path / "index.json", _Index)

    def step(self, which: str) -> Path:
        """Finds the folder of the `latest` or `best` checkpoint, or of a named one.

        Raises:
            ValueError: There is no such checkpoint.
        """
        index = self.index()
        names = _named(index)
        if which not in ("latest", "best", *names):
            raise ValueError(
                f"{self.path}: there is no checkpoint {which!r}; there are latest, best, "
                f"{', '.join(names)}"
            )
        folder = self.path / index.get(which, which)
        if not folder.is_dir():
            raise ValueError(
                f"{self.path / 'index.json'}: names {folder.name}, which is not there; train again"
            )
        return folder

    def tensors(self, which: str, state: str) -> StoredTensors:
        """Opens `model` or `training` of a checkpoint, to be read piece by piece.

        Raises:
            ValueError: A file is missing or damaged.
        """
        return StoredTensors(self.step(which), state)

    def model(self, which: str) -> dict[str, Tensor]:
        """Reads the weights of the `latest` or the `best` checkpoint, all of them whole."""
        return self.tensors(which, "model").whole()

    def training(self, which: str = "latest") -> dict[str, Tensor]:
        """Reads optimizer moments, random states and, with an average, the raw weights."""
        return self.tensors(which, "training").whole()

    def state(self, shape: Any = dict[str, Any]) -> dict[str, Any]:
        """Reads position and history of the latest checkpoint; see `read_json`."""
        return read_json(self.step("latest") / "state.json", shape)

    def begin(self, step: int) -> Path:
        """Makes a temporary folder for the files of a step."""
        # A step can be saved twice (mid-epoch, then as the epoch's end): never in the same folder
        name = _free_name(self.path, f"step-{step:08d}")
        temporary = self.path / f".{name}.{os.getpid()}.tmp"
        self.path.mkdir(exist_ok=True)  # not its parents: a run that was removed is not begun anew
        temporary.mkdir()
        return temporary

    def publish(self, temporary: Path, state: str, *, best: bool, keep: int) -> None:
        """Gives a folder, whose tensors are on the disk, its name, and points to it.

        Args:
            temporary: From `begin`.
            state: Content of state.json.
            best: Point to it as the best; the first one always is.
            keep: How many of the latest are kept; others go, but for the best.
        """
        index = self.index() if self.exists() else {}
        # A step is on disk before it has its name, and has its name before index.json says so:
        # whatever a power cut leaves, index.json names whole steps
        (temporary / "state.json").write_text(state, encoding="utf-8")
        flush(temporary / "state.json")
        flush(temporary)
        name = temporary.name.split(".")[1]
        temporary.rename(self.path / name)
        flush(self.path)
        kept = index.get("kept", [index["latest"]] if index else [])
        index = {
            "latest": name,
            "best": name if best else index.get("best", name),
            "kept": [*kept, name][-keep:],
        }
        pointer = self.path / f".index.{os.getpid()}.tmp"
        pointer.write_text(json.dumps(index), encoding="utf-8")
        flush(pointer)
        pointer.replace(self.path / "index.json")
        # Last: until then index.json named the steps before
        self._remove_all_but(_named(index))

    def remove_strays(self) -> None:
        """Removes what a process had begun to write when it died."""
        self._remove_all_but(_named(self.index()))

    def whole_steps(self) -> list[str]:
        """Lists folders of steps that have their names, index.json or not; the oldest first."""
        found = matching(self.path, STEP_NAME)
        return sorted((path.name for path in found if matching(path, STEP_FILE)), key=_order)

    def index_of(self, steps: list[str]) -> dict[str, Any] | None:
        """Rebuilds index.json as far as these folders tell; None where they do not tell the best.

        The latest knows the best value so far. A folder that was the best when it was written has
        that value, and no epoch without gain after it.
        """
        try:
            states = {name: read_json(self.path / name / "state.json") for name in steps}
            latest = steps[-1]
            wanted = states[latest]["best_value"]
            best = [
                name
                for name in steps
                if states[name]["epochs_without_gain"] == 0 and _is_best(states[name], wanted)
            ]
        except (ValueError, KeyError):
            return None
        return {"latest": latest, "best": best[-1], "kept": steps} if best else None

    def _remove_all_but(self, keep: Iterable[str]) -> None:
        for path in matching(self.path, STEP_FOLDER):
            if path.name not in keep:
                remove_files(path, STEP_FILE)
        for path in matching(self.path, STRAY_POINTER):  # of a process that died before its move
            path.unlink(missing_ok=True)


def _is_best(state: Mapping[str, Any], best_value: float | None) -> bool:
    """Whether a checkpoint was the best when it was written, and its value still is."""
    at_the_end_of_an_epoch = state["batch"] == 0
    return state["best_value"] == best_value and (at_the_end_of_an_epoch or best_value is None)


def with_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Puts a prefix before all names: `{"weight": w}` → `{"network.weight": w}`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _free_name(folder: Path, name: str) -> str:
    names = [name, *(f"{name}-{again}" for again in range(1, 1000))]
    return next(name for name in names if not (folder / name).exists())


def _named(index: Mapping[str, Any]) -> list[str]:
    """The folders that an index points to, each once, in the order they were written."""
    if not index:
        return []
    return sorted({index["latest"], index["best"], *index.get("kept", ())}, key=_order)


def _order(name: str) -> tuple[int, ...]:
    """`step-00000005-1` comes after `step-00000005`, before `step-00000010`."""
    return tuple(map(int, name.split("-")[1:]))

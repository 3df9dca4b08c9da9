"""Checkpoints: safetensors and JSON in one folder per step, complete or absent, read by name."""

import copy
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmoe.config import Stored
from mmoe.parallel import Shard, local_shards
from mmoe.parallel.sharded_tensors import TensorMap
from mmoe.run import RunDirectory, read_json, write_json, write_text
from mmoe.run.atomic_files import flush
from mmoe.run.folder_claim import (
    STEP_FILE,
    STEP_FOLDER,
    STEP_NAME,
    matching,
    remove_files,
    remove_stray_files,
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

    def tensors(self, which: str, state: str) -> "StoredTensors":
        """Opens `model` or `training` of a checkpoint, to be read piece by piece.

        Args:
            which: `latest` or `best`.
            state: `model` or `training`.

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
        names = (f"step-{step:08d}{again}" for again in ["", *(f"-{n}" for n in range(1, 1000))])
        name = next(name for name in names if not (self.path / name).exists())
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
        write_text(self.path / "index.json", json.dumps(index))
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
        remove_stray_files(self.path)  # of a process that died before its move


def _is_best(state: Mapping[str, Any], best_value: float | None) -> bool:
    """Whether a checkpoint was the best when it was written, and its value still is."""
    at_the_end_of_an_epoch = state["batch"] == 0
    return state["best_value"] == best_value and (at_the_end_of_an_epoch or best_value is None)


def with_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Puts a prefix before all names: `{"weight": w}` → `{"network.weight": w}`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def copy_to_score(run: RunDirectory, to: RunDirectory) -> None:
    """Copies config, vocabulary and the best weights; no optimizer state, nothing of the log."""
    best = CheckpointFolder(run.checkpoint).step("best")
    others = [path.name for path in best.iterdir() if not path.name.startswith("model")]
    shutil.copytree(best, to.checkpoint / best.name, ignore=lambda *_: others)
    write_json(
        to.checkpoint / "index.json", {"latest": best.name, "best": best.name, "kept": [best.name]}
    )
    shutil.copytree(run.vocabulary, to.vocabulary)
    for path in (run.config_file, run.metrics_file):
        if path.exists():
            shutil.copy2(path, to.path)


def _named(index: Mapping[str, Any]) -> list[str]:
    """The folders that an index points to, each once, in the order they were written."""
    if not index:
        return []
    return sorted({index["latest"], index["best"], *index.get("kept", ())}, key=_order)


def _order(name: str) -> tuple[int, ...]:
    """`step-00000005-1` comes after `step-00000005`, before `step-00000010`."""
    return tuple(map(int, name.split("-")[1:]))


# Read at a time, so that a table needs no second copy of itself
_BLOCK_BYTES = 2**26


@dataclass(frozen=True)
class _Piece:
    """Part of a tensor in one file: where it begins in the whole, and its shape."""

    file: Path
    dtype: torch.dtype
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def region(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


@dataclass(frozen=True)
class _Stored:
    """A tensor, by its pieces."""

    dtype: torch.dtype
    pieces: list[_Piece]

    @property
    def shape(self) -> tuple[int, ...]:
        ends = zip(*([part.stop for part in piece.region] for piece in self.pieces), strict=True)
        return tuple(map(max, ends))


class StoredTensors:
    """One state (`model` or `training`) of a checkpoint: names, shapes, and numbers on demand.

    Only headers are read at first, then of each file what the targets need of it: no rank holds a
    stored model beside its own, whatever ranks wrote it. None waits for another: all of them read
    the same headers and so find the same errors.

    Args:
        folder: Of one step.
        state: What its files are called after.

    Raises:
        ValueError: A file is missing or damaged, or shards of a tensor are; names it.
    """

    def __init__(self, folder: Path, state: str) -> None:
        self._files, self._prefix = _files_of(folder, state), ""
        self.path = folder / f"{state}.safetensors" if len(self._files) == 1 else folder
        self._stored: dict[str, _Stored] = {}
        for file in self._files:
            for name, piece in _pieces_of(file):
                self._stored.setdefault(name, _Stored(piece.dtype, [])).pieces.append(piece)
        for name, stored in self._stored.items():
            if len({len(piece.sizes) for piece in stored.pieces}) > 1:
                raise ValueError(f"{self.path}: is damaged: pieces of {name!r} are of unlike rank")
            if sum(math.prod(piece.sizes) for piece in stored.pieces) != math.prod(stored.shape):
                raise ValueError(f"{self.path}: is damaged: pieces of tensor {name!r} are missing")

    def part(self, prefix: str) -> "StoredTensors":
        """Returns the tensors whose names begin with `prefix.`; they have names without it."""
        found = copy.copy(self)
        found._prefix = f"{self._prefix}{prefix}."
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the state together, which their files hold."""
        return sum(
            math.prod(stored.shape) * stored.dtype.itemsize for stored in self._stored.values()
        )

    def names(self) -> list[str]:
        """Lists the names that there are."""
        start = self._prefix
        return sorted(n.removeprefix(start) for n in self._stored if n.startswith(start))

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the whole tensor."""
        return self._stored[self._prefix + name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Returns the dtype in which a tensor was written."""
        return self._stored[self._prefix + name].dtype

    def read(self, name: str) -> Tensor:
        """Reads one tensor, whole, on the CPU."""
        tensor = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.load({name: tensor}, all_names=False)
        return tensor

    def whole(self) -> dict[str, Tensor]:
        """Reads all tensors, by their names."""
        tensors = {n: torch.empty(self.shape(n), dtype=self.dtype(n)) for n in self.names()}
        self.load(tensors)
        return tensors

    def blocks(
        self, name: str, rows: range | None = None, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields a tensor some rows at a time, each part with the number of its first row.

        Args:
            name: Its name; a number without dimensions is one part.
            rows: Only these; None: all.
            dtype: To convert to; None: as it was written.
        """
        shape, dtype = self.shape(name), dtype or self.dtype(name)
        if not shape:
            yield 0, self.read(name)
            return
        wanted = range(shape[0]) if rows is None else rows
        height = max(_BLOCK_BYTES // max(dtype.itemsize * math.prod(shape[1:]), 1), 1)
        for start in wanted[::height]:
            block = torch.empty((min(height, wanted.stop - start), *shape[1:]), dtype=dtype)
            shard = Shard(block, shape, (start, *[0] * len(shape[1:])))
            self.load({name: [shard]}, all_names=False)
            yield start, block

    def load(self, targets: TensorMap, *, all_names: bool = True) -> None:
        """Fills tensors, or this rank's shards of them, in place.

        Args:
            targets: By name.
            all_names: Every name that there is has to be among them.

        Raises:
            ValueError: A name is missing on one side, or a shape differs.
        """
        wanted = self.check(targets, all_names=all_names)
        try:
            for file in self._files:
                needed = [
                    (name, piece)
                    for name, shards in wanted.items()
                    for piece in self._stored[name].pieces
                    if shards and piece.file == file
                ]
                if needed:
                    with safe_open(file, framework="pt") as opened, torch.no_grad():
                        for name, piece in needed:
                            for shard in wanted[name]:
                                _copy(opened.get_slice(name), piece, shard)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{self.path}: cannot be read as a checkpoint: {error}") from None

    def check(self, targets: TensorMap, *, all_names: bool = True) -> dict[str, list[Shard]]:
        """Refuses what `load` would, without reading numbers; returns the shards by whole names.

        Args:
            targets: Tensors, or shards of them, to be filled, by name.
            all_names: Refuse stored tensors that `targets` lacks.

        Raises:
            ValueError: A name is missing on one side, or a shape differs.
        """
        wanted = {self._prefix + name: local_shards(value) for name, value in targets.items()}
        there = {self._prefix + name for name in self.names()} if all_names else set()
        missing = sorted(wanted.keys() - self._stored.keys())
        if missing:
            raise ValueError(f"{self.path}: the checkpoint has no tensor {missing[0]!r}")
        unknown = sorted(there - wanted.keys())
        if unknown:
            raise ValueError(
                f"{self.path}: the checkpoint has a tensor {unknown[0]!r}, the model has none; the "
                "config was changed after training"
            )
        for name, shards in wanted.items():
            there_shape = list(self._stored[name].shape)
            for shard in shards:
                if list(shard.shape) != there_shape:
                    raise ValueError(
                        f"{self.path}: tensor {name!r} has shape {there_shape} in the checkpoint "
                        f"and {list(shard.shape)} in the model; the config was changed after "
                        "training"
                    )
        return wanted


def _copy(stored: Any, piece: _Piece, shard: Shard) -> None:
    """Copies what of a shard is in a piece, some rows at a time."""
    box = [
        slice(max(one.start, other.start), min(one.stop, other.stop))
        for one, other in zip(piece.region, shard.region, strict=True)
    ]
    if any(part.start >= part.stop for part in box):
        return
    if not box:
        shard.tensor.copy_(stored[...])
        return
    row = shard.tensor.element_size() * math.prod(part.stop - part.start for part in box[1:])
    height = max(_BLOCK_BYTES // row, 1)
    for start in range(box[0].start, box[0].stop, height):
        block = [slice(start, min(start + height, box[0].stop)), *box[1:]]
        source, target = (
            tuple(slice(x.start - o, x.stop - o) for x, o in zip(block, offsets, strict=True))
            for offsets in (piece.offsets, shard.offsets)
        )
        shard.tensor[target].copy_(stored[source])


def _files_of(folder: Path, state: str) -> list[Path]:
    """`STATE.safetensors`, or all of `STATE-00001-of-00004.safetensors` …"""
    single = folder / f"{state}.safetensors"
    totals = {int(m[1]) for path in folder.glob(f"{state}-*") if (m := _NUMBERED.search(path.name))}
    if single.exists() or not totals:
        files = [single]
    else:
        files = [folder / file_name(state, n + 1, max(totals)) for n in range(max(totals))]
    for file in files:
        if not file.exists():
            raise ValueError(
                f"{file}: cannot be read as a checkpoint: there is no such file"
                + (f", one of the {len(files)} that hold it" if totals else "")
            )
    return files


_NUMBERED = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$")


def file_name(state: str, number: int, total: int) -> str:
    """Names the number-th of so many files.

    Example:
        >>> file_name("model", 1, 1), file_name("model", 2, 4)
        ('model.safetensors', 'model-00002-of-00004.safetensors')
    """
    if total == 1:
        return f"{state}.safetensors"
    return f"{state}-{number:05d}-of-{total:05d}.safetensors"


def _pieces_of(file: Path) -> Iterator[tuple[str, _Piece]]:
    """The pieces in a file, by its header, which says how long the file has to be."""
    try:
        with safe_open(file, framework="pt") as opened:
            saved = json.loads((opened.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in opened.keys():  # noqa: SIM118  # no mapping
                part = opened.get_slice(name)
                sizes = tuple(part.get_shape())
                dtype = (part[:0] if sizes else part[...]).dtype
                offsets = saved[name]["saved_offsets"] if name in saved else [0] * len(sizes)
                if len(offsets) != len(sizes):
                    raise ValueError(f"is damaged: tensor {name!r} lies at {offsets} of {sizes}")
                yield name, _Piece(file, dtype, tuple(map(int, offsets)), sizes)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: cannot be read as a checkpoint: {error}") from None

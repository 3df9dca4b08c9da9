"""Checkpoints: safetensors and JSON in one folder per step, complete or absent."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmoe.embeddings import EmbeddingBackend, managed_ids
from mmoe.score.text_files import read_json


@dataclass(frozen=True)
class CheckpointFolder:
    """`step-00000120/{model.safetensors, training.safetensors, state.json}` and index.json.

    index.json names the latest and the best step. It is replaced in one move after a step's folder
    is complete, so whatever moment the process dies, it names a whole checkpoint.
    """

    path: Path

    def save(
        self,
        step: int,
        model: Mapping[str, Tensor],
        training: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        best: bool,
    ) -> None:
        """Writes a checkpoint, points to it, removes those nobody points to."""
        index = self.index() if self.exists() else {}
        # A step can be saved twice (mid-epoch, then as the epoch's end): never in the same folder
        name = _free_name(self.path, f"step-{step:08d}")
        temporary = self.path / f".{name}.{os.getpid()}.tmp"
        temporary.mkdir(parents=True)
        for file, tensors in (("model", model), ("training", training)):
            whole = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            save_file(whole, temporary / f"{file}.safetensors")
        (temporary / "state.json").write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        _flush(temporary)
        temporary.rename(self.path / name)
        index = {"latest": name, "best": name if best else index.get("best", name)}
        pointer = self.path / f".index.{os.getpid()}.tmp"
        pointer.write_text(json.dumps(index), encoding="utf-8")
        _flush(pointer)
        pointer.replace(self.path / "index.json")
        self._remove_all_but(set(index.values()))

    def exists(self) -> bool:
        """Whether a whole checkpoint is there."""
        return (self.path / "index.json").exists()

    def index(self) -> dict[str, str]:
        """`{"latest": folder, "best": folder}`."""
        return read_json(self.path / "index.json", ("latest", "best"))

    def model(self, which: str) -> dict[str, Tensor]:
        """The weights of the `latest` or the `best` checkpoint."""
        return self._tensors(which, "model")

    def training(self, which: str = "latest") -> dict[str, Tensor]:
        """Optimizer moments, random states and, with an average, the raw weights."""
        return self._tensors(which, "training")

    def state(self, keys: Iterable[str]) -> dict[str, Any]:
        """Position and history of the latest checkpoint, exactly `keys`."""
        path = self.path / self.index()["latest"] / "state.json"
        keys = list(keys)
        state = read_json(path, keys)
        return {key: state[key] for key in keys}

    def _tensors(self, which: str, file: str) -> dict[str, Tensor]:
        path = self.path / self.index()[which] / f"{file}.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path}: cannot be read as a checkpoint: {error}") from None

    def _remove_all_but(self, keep: set[str]) -> None:
        for path in self.path.iterdir():
            if path.is_dir() and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
            elif path.match(".index.*.tmp"):  # of a process that died just before its move
                path.unlink(missing_ok=True)


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor], what: str) -> None:
    """Copies tensors by name, in place.

    Raises:
        ValueError: A name is missing or a shape differs.
    """
    missing = sorted(targets.keys() - sources.keys())
    if missing:
        raise ValueError(f"{what}: the checkpoint has no tensor {missing[0]!r}")
    for name, target in targets.items():
        if target.shape != sources[name].shape:
            raise ValueError(
                f"{what}: tensor {name!r} has shape {list(sources[name].shape)} in the checkpoint "
                f"and {list(target.shape)} in the model; the config was changed after training"
            )
        target.copy_(sources[name])


def copy_id_maps(embeddings: EmbeddingBackend, model: Mapping[str, Tensor], what: str) -> None:
    """Copies the owners of managed rows that belong to the weights of `model`, if there are any."""
    ids = managed_ids(embeddings)
    if ids is not None:
        copy_into(ids.maps(), without_prefix("ids", model), what)


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`{"weight": w}` → `{"network.weight": w}`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    start = f"{prefix}."
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def _free_name(folder: Path, name: str) -> str:
    names = [name, *(f"{name}-{again}" for again in range(1, 1000))]
    return next(name for name in names if not (folder / name).exists())


def _flush(path: Path) -> None:
    """Asks the disk to keep what was written before its name appears."""
    for part in [*path.iterdir(), path] if path.is_dir() else [path]:
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

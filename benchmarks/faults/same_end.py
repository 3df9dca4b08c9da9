"""Did two runs end with the same bits?"""

import json
from pathlib import Path
from typing import Any

from mmoe.checkpoint.folder import CheckpointFolder

# What a clock says differs from run to run; versions stand in metrics.json as well.
_CLOCK = frozenset({"seconds", "rows_per_second", "epoch_seconds"})


def first_difference(one: Path, two: Path, *, settings: bool = True) -> str | None:
    """The first thing in which two finished run directories differ, or None.

    Compared are every tensor of the last and the best checkpoint (weights, optimizer, random
    state), vocabularies, curves, and history and metrics but for the times.

    Args:
        one: A run directory.
        two: Another.
        settings: The config too, and where training stands (which names the files).
    """
    found = [
        _differs_in_vocabularies(one / "vocabulary", two / "vocabulary", settings=settings),
        _differs_in_tensors(one / "checkpoint", two / "checkpoint"),
        *(_differs_in_json(one / f, two / f) for f in _JSON_FILES),
    ]
    if settings:
        found.append(_state_difference(one / "checkpoint", two / "checkpoint"))
        same = (one / "config.yaml").read_bytes() == (two / "config.yaml").read_bytes()
        found.append(None if same else "config.yaml")
    return next((what for what in found if what is not None), None)


def leftovers(run: Path) -> list[str]:
    """Temporary files and folders that a finished run should not hold."""
    return sorted(str(p.relative_to(run)) for p in run.rglob(".*"))


_JSON_FILES = ("history.json", "metrics.json", "curves.json")


def without_clock(node: Any) -> Any:
    """The same JSON without what a clock said."""
    if isinstance(node, dict):
        return {key: without_clock(value) for key, value in node.items() if key not in _CLOCK}
    return [without_clock(value) for value in node] if isinstance(node, list) else node


def _differs_in_tensors(one: Path, two: Path) -> str | None:
    for which, file in (("latest", "model"), ("latest", "training"), ("best", "model")):
        mine, theirs = (CheckpointFolder(path).tensors(which, file).whole() for path in (one, two))
        if mine.keys() != theirs.keys():
            return f"{which} {file}.safetensors: names of tensors"
        for name, tensor in mine.items():
            # Bytes, because NaN would differ from itself, and -0.0 equal 0.0
            if tensor.numpy().tobytes() != theirs[name].numpy().tobytes():
                return f"{which} {file}.safetensors: {name}"
    return None


def _state_difference(one: Path, two: Path) -> str | None:
    return _differs_in_json(
        *(CheckpointFolder(path).step("latest") / "state.json" for path in (one, two))
    )


def _differs_in_vocabularies(one: Path, two: Path, *, settings: bool) -> str | None:
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in two.iterdir()):
        return f"{one.name}: other files"
    for name in names:
        if name == "encoder.json" and not settings:
            mine, theirs = (json.loads((run / name).read_text("utf-8")) for run in (one, two))
            same = {**mine, "config": None} == {**theirs, "config": None}
        else:
            same = (one / name).read_bytes() == (two / name).read_bytes()
        if not same:
            return f"{one.name}/{name}"
    return None


def _differs_in_json(one: Path, two: Path) -> str | None:
    mine, theirs = (without_clock(json.loads(p.read_text(encoding="utf-8"))) for p in (one, two))
    return None if mine == theirs else one.name

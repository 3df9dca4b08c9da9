"""Faults of a finished run's JSON: well-formed still, but a key is gone or holds something else."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Of every type, and odd ones of each
VALUES = (None, "x", "", -1, 0, 1e308, 10**400, True, [], {}, [None], {"x": None}, "y" * 2_000)
_GONE = object()
# The commands that read a file, by its name
READERS = {
    "index.json": ("evaluate", "score", "unshard", "resume", "warm start"),
    "state.json": ("resume",),
    "metrics.json": ("evaluate", "report"),
    "history.json": ("report",),
    "curves.json": ("report",),
    "columns.json": ("evaluate", "score", "resume"),
    "predictions.json": ("score",),
    "encoder.json": ("evaluate", "score", "resume", "warm start"),
    "warm_start.json": ("resume",),
}

KeyPath = tuple[str | int, ...]


def json_files(run: Path) -> list[Path]:
    """Those that some command reads."""
    return sorted(path for path in run.rglob("*.json") if path.name in READERS)


def key_paths(content: Any, before: KeyPath = ()) -> Iterator[KeyPath]:
    """The content itself, every key and the first two places of every list, and all below."""
    yield before
    if isinstance(content, dict):
        for key, value in content.items():
            yield from key_paths(value, (*before, key))
    elif isinstance(content, list):
        for place, value in enumerate(content[:2]):
            yield from key_paths(value, (*before, place))


def tamper(path: Path, draw: random.Random) -> str:
    """Changes one key of a file; says which, and to what."""
    content = json.loads(path.read_text(encoding="utf-8"))
    where = draw.choice(sorted(key_paths(content), key=str))
    value = draw.choice((*VALUES, _GONE)) if where else draw.choice(VALUES)
    path.write_text(json.dumps(_changed(content, where, value)), encoding="utf-8")
    what = "gone" if value is _GONE else repr(value)[:20]
    return f"{path.name} {'.'.join(map(str, where)) or 'all'}: {what}"


def _changed(content: Any, where: KeyPath, value: Any) -> Any:
    if not where:
        return value
    changed = inner = copy.deepcopy(content)
    for key in where[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return changed


def arguments(reader: str, run: Path, log: Path, out: Path) -> list[str]:
    """What `mmoe` is told to make it read the run."""
    train = ["train", str(run / "config.yaml"), "--quiet"]
    return {
        "evaluate": ["evaluate", str(run), "--data", str(log), "--json", "--quiet"],
        "score": ["score", str(run), "--input", str(log), "--output", str(out), "--quiet"],
        "unshard": ["unshard", str(run), "--output", str(out), "--quiet"],
        "report": ["report", str(run), "--output", str(out)],
        "resume": [*train, "--out", str(run), "--resume"],
        "warm start": [*train, "--out", str(out), "--warm-start", str(run)],
    }[reader]


SUFFIXES = {"score": ".parquet", "unshard": ".safetensors", "report": ".html"}


def json_case(run: Path, folder: Path, draw: random.Random) -> tuple[str, str, Path]:
    """Tampers with a file of a run: the fault, a command that reads it, and where that writes."""
    path = draw.choice(json_files(run))
    reader = draw.choice(READERS[path.name])
    return (
        f"tampered_json ({tamper(path, draw)})",
        reader,
        folder / f"out{SUFFIXES.get(reader, '')}",
    )

"""Faults of a run's files: damaged, tampered with, or of a stranger who says a huge size."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mmoe.config import set_values
from tests.chaos.draft import Case, Expect, Workspace, either, error

# A finished run's JSON: well-formed still, but a key is gone or holds something else.
# Values of every type, and odd ones of each
VALUES = (None, "x", "", -1, 0, 1e308, 10**400, True, [], {}, [None], {"x": None}, "y" * 2_000)
_GONE = object()
# The commands that read a file, by its name
READERS = {
    "index.json": ("evaluate", "score", "unshard", "resume", "warm start"),
    "state.json": ("resume",), "metrics.json": ("evaluate", "report"),
    "history.json": ("report",), "curves.json": ("report",),
    "columns.json": ("evaluate", "score", "resume"), "predictions.json": ("score",),
    "encoder.json": ("evaluate", "score", "resume", "warm start"), "warm_start.json": ("resume",),
}  # fmt: skip
SUFFIXES = {"score": ".parquet", "unshard": ".safetensors", "report": ".html"}
KeyPath = tuple[str | int, ...]


def json_files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*.json") if path.name in READERS)


def key_paths(content: Any, before: KeyPath = ()) -> Iterator[KeyPath]:
    """The content itself, every key and the first two items of every list, and all below."""
    yield before
    items: Any = content.items() if isinstance(content, dict) else ()
    for key, value in enumerate(content[:2]) if isinstance(content, list) else items:
        yield from key_paths(value, (*before, key))


def tamper(path: Path, draw: random.Random) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    where = draw.choice(sorted(key_paths(content), key=str))
    value = draw.choice((*VALUES, _GONE)) if where else draw.choice(VALUES)
    changed = inner = copy.deepcopy(content)
    for key in where[:-1]:
        inner = inner[key]
    if value is _GONE:
        del inner[where[-1]]
    elif where:
        inner[where[-1]] = value
    else:
        changed = value
    path.write_text(json.dumps(changed), encoding="utf-8")
    what = "gone" if value is _GONE else repr(value)[:20]
    return f"{path.name} {'.'.join(map(str, where)) or 'all'}: {what}"


def arguments(reader: str, run: Path, log: Path, out: Path) -> list[str]:
    train = ["train", str(run / "config.yaml"), "--quiet"]
    return {
        "evaluate": ["evaluate", str(run), "--data", str(log), "--json", "--quiet"],
        "score": ["score", str(run), "--input", str(log), "--output", str(out), "--quiet"],
        "unshard": ["unshard", str(run), "--output", str(out), "--quiet"],
        "report": ["report", str(run), "--output", str(out)],
        "resume": [*train, "--out", str(run), "--resume"],
        "warm start": [*train, "--out", str(out), "--warm-start", str(run)],
    }[reader]


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :]


def files_of_run(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts)


def damage_run(run: Path, draw: random.Random) -> Expect:
    path = draw.choice(files_of_run(run))
    content = path.read_bytes()
    how = draw.choice(["cut", "flip", "empty", "gone", "words"])
    if how == "cut":
        path.write_bytes(content[: draw.randrange(1, len(content))])
    elif how == "flip":
        path.write_bytes(flip(content, draw.randrange(len(content))))
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else b'{"not": "it"}')
    # Some files score nothing; a bit of a weight can be wrong and nobody sees it
    if how == "flip" and path.suffix == ".safetensors":
        return either(reference="none")
    used = path.suffix in (".json", ".yaml", ".parquet", ".safetensors")
    return either(reference="none" if how == "flip" else "clean") if used else error()


# Keys of the small config, each with a size that its tensors do not have
_SIZES = (
    "model.num_experts=1000000000", "model.num_experts=60000", "model.embedding_dim=2000000000",
    "model.embedding_dim=60000", "model.expert.hidden=[1000000000]", "model.expert.hidden=[60000]",
    "model.tower.hidden=[900000000, 900000000]", "features.0.hash_size=1000000000000",
    "model.expert.hidden=[40000, 40000, 40000, 40000]", "features.1.dim=1000000000",
)  # fmt: skip


def huge_size(run: Path, draw: random.Random) -> str:
    """Writes a huge size into a run's config, or into what its encoder has learnt; says which."""
    encoder = run / "vocabulary" / "encoder.json"
    if draw.random() < 0.3:
        learnt = json.loads(encoder.read_text("utf-8"))
        learnt["tables"]["user"]["size"] = draw.choice([10**9, 10**12, 10**19])  # a hash's
        encoder.write_text(json.dumps(learnt), "utf-8")
        return "table user is huge"
    size, config = draw.choice(_SIZES), run / "config.yaml"
    raw = yaml.safe_load(config.read_text("utf-8"))
    if size.startswith("features."):
        _, number, setting = size.split(".")
        key, value = setting.split("=")
        raw["features"][int(number)][key] = int(value)
    else:
        raw = set_values(raw, [size])
    config.write_text(yaml.safe_dump(raw), "utf-8")
    return size


def run_case(draw: random.Random, space: Workspace, folder: Path) -> Case:
    """A damaged run, or a stranger's that says a huge size, and a command that believes it."""
    run = space.copy_run(folder / "run")
    if draw.random() < 0.3:
        fault = f"huge_size ({huge_size(run, draw)})"
        reader = draw.choice(["evaluate", "score", "unshard", "resume", "warm start"])
        # Weights alone, or another run's beside a config of one's own, ask for no size
        expect = either(reference="none") if reader in ("unshard", "resume") else error()
    else:
        fault, expect = "damaged_run", damage_run(run, draw)
        reader = draw.choice(["evaluate", "score"])
    out = folder / "out" / f"out{SUFFIXES.get(reader, '')}"
    given = arguments(reader, run, space.log, out)
    return Case(fault, reader, expect, given, out, words=(str(run),))

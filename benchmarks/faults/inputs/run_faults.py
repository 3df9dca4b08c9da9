"""Faults of a finished run's files, before it evaluates or scores."""

import json
import random
from pathlib import Path

import yaml

from benchmarks.faults.inputs.draft import Expect, either, error
from mmoe.config import set_values

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


def damage_run(run: Path, draw: random.Random) -> Expect:
    """One file of the run is cut, flipped, emptied, removed or replaced."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and "tensorboard" not in p.parts)
    path = draw.choice(files)
    content = path.read_bytes()
    how = draw.choice(["cut", "flip", "empty", "gone", "words"])
    if how == "cut":
        path.write_bytes(content[: draw.randrange(1, len(content))])
    elif how == "flip":
        at = draw.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(b'{"not": "it"}')
    # Some files score nothing; a bit of a weight can be wrong and nobody sees it
    if how == "flip" and path.suffix == ".safetensors":
        return either(reference="none")
    used = path.suffix in (".json", ".yaml", ".parquet", ".safetensors")
    return either(reference="none" if how == "flip" else "clean") if used else error()

"""Faults of a finished run's files, before it evaluates or scores."""

import random
from pathlib import Path

from benchmarks.faults.inputs.draft import Expect, either, error


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

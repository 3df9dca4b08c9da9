"""Our training speed beside libraries that are installed in an environment of their own."""

import subprocess

from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.ranks import ROOT
from benchmarks.racing.results import Result, speedup
from benchmarks.train.bench import Bench
from benchmarks.train.speed_races import rows_per_second

# `make bench-peers` makes it
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
MODULES = {"torch_rechub": "torch_rechub.trainers", "deepctr": "deepctr_torch.models"}
STEPS = 3  # of a window: they take up to a second each


def peers(bench: Bench) -> list[Result]:
    """Ours, in both precisions, and theirs on `big`; they train in fp32."""
    found = [name for name, module in MODULES.items() if imports(module)]
    if not found:
        raise NothingToMeasure("`make bench-peers` installs what this compares with")
    specs = {
        "mmoe": bench.spec("mmoe", "big", "bf16"),
        "mmoe fp32": bench.spec("mmoe", "big", "fp32"),
        **{name: bench.spec(name, "big", "fp32", steps=STEPS) for name in found},
    }
    times = bench.race(specs, pythons=dict.fromkeys(found, str(PYTHON)))
    results = []
    for name in found:
        for key, ours in ((f"vs_{name}_big", "mmoe"), (f"vs_{name}_big_fp32", "mmoe fp32")):
            rates = [f"{rows_per_second(times, who):,.0f}" for who in (ours, name)]
            note = f"{rates[0]} against {rates[1]} rows/s"
            results.append(speedup(key, times, name, ours, note=note))
    return results


def imports(module: str) -> bool:
    """Is it there, in the environment of its own?"""
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


PEER_RACES = (Race(("vs_torch_rechub_big", "vs_deepctr_big"), peers),)

"""Writes down what this machine has: versions, the GPU, packages that are missing.

python -m benchmarks.gpu_check.environment --record FILE [--device cuda|cpu|emulated]
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.device import DEVICES
from benchmarks.gpu_check.record import MEASURED, Record, machine_name
from benchmarks.gpu_check.running import missing_modules

PACKAGES = (
    "numpy",
    "pyarrow",
    "pandas",
    "pydantic",
    "pytest",
    "hypothesis",
    "torchrec",
    "fbgemm_gpu",
    "triton",
    "rich",
    "scattermoe",
)
ASKED = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"


def main(arguments: Sequence[str] | None = None) -> None:
    """One line of the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.environment")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    settings = parser.parse_args(arguments)
    found = describe(settings.device)
    Record(settings.record, machine_name(settings.device)).add("env/versions", MEASURED, **found)
    for name, value in found.items():
        print(f"{name}: {value}")


def describe(device: str) -> dict[str, Any]:
    """What is here, by name."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "nvcc": _said(["nvcc", "--version"]).splitlines()[-2:],
        "nvidia_smi": _said(["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]),
        "compute_sanitizer": shutil.which("compute-sanitizer"),
        "packages": {name: version(name) for name in PACKAGES},
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "capability": [properties.major, properties.minor],
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "l2": properties.L2_cache_size,
        }
    return found


def version(name: str) -> str | None:
    """Of a package; None where it cannot be imported."""
    if missing_modules([name]):
        return None
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"none ({error})"
    return done.stdout.strip()


if __name__ == "__main__":
    main()

"""Sees to it that mmoe has its CUDA kernels: those that are there, a bundle's, or a build.

Kernels that were compiled from other sources than this tree's are not used. For a machine with a
GPU alone: it replaces mmoe/_C.abi3.so, and a bundle's does not load beside a torch without CUDA.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.record import ROOT, digest

LIBRARY = ROOT / "mmoe" / "_C.abi3.so"
# Which sources LIBRARY was compiled from, where this program put it there
MARK = ROOT / "build" / "gpu_check_extension.txt"
SOURCES = ("setup.py", "csrc/**/*.[ch]*")
SAYS = "bundle.json"
TRY = """
import torch
from mmoe import ops
status = ops.extension_status()
assert status.cuda, status.detail
plan = ops.route_plan(torch.zeros(3, 1, 1, dtype=torch.int32, device="cuda"), 2)
assert plan.offsets_E1.tolist() == [0, 3, 3], plan
print(status.detail)
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints where the kernels come from; exit status 1 where there are none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.extension")
    parser.add_argument("--bundle", type=Path, default=ROOT / "gpu-bundle")
    settings = parser.parse_args(arguments)
    if not _has_gpu():
        sys.exit(f"no GPU was found: {LIBRARY.relative_to(LIBRARY.parent.parent)} stays as it is")
    code = digest(SOURCES)
    for name, put in (("in place", _in_place), ("bundle", _from_bundle), ("built", _build)):
        problem = put(code, settings.bundle) or _does_not_run()
        if not problem:
            print(f"mmoe._C: {name}")
            return
        print(f"{name}: {problem}", flush=True)
    sys.exit("there are no CUDA kernels to check: the lines above say why")


def _has_gpu() -> bool:
    import torch  # not before it is needed: --help should be quick

    return torch.cuda.is_available()


def _in_place(code: str, bundle: Path) -> str:
    """Why what is there is not used; nothing where it may be."""
    if not LIBRARY.exists():
        return "there is none"
    if MARK.exists() and MARK.read_text(encoding="utf-8") == code:
        return ""
    built = LIBRARY.stat().st_mtime
    if any(path.stat().st_mtime > built for pattern in SOURCES for path in ROOT.glob(pattern)):
        return "compiled from other sources, or before them"
    return ""


def _from_bundle(code: str, bundle: Path) -> str:
    try:
        says = json.loads((bundle / SAYS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"none in {bundle}"
    if says["code"] != code:
        return f"{bundle} was compiled from other sources"
    # Renamed into its place: written over, it would crash the processes that have it loaded
    partial = LIBRARY.with_suffix(".partial")
    shutil.copy(bundle / LIBRARY.name, partial)
    partial.replace(LIBRARY)
    _mark(code)
    return ""


def _build(code: str, bundle: Path) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    environment = {
        **os.environ,
        "MMOE_BUILD": "cuda",
        "MMOE_CUDA_ARCHITECTURES": f"{major}.{minor}",
    }
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        return f"the build failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    _mark(code)
    return ""


def _mark(code: str) -> None:
    MARK.parent.mkdir(exist_ok=True)
    MARK.write_text(code, encoding="utf-8")


def _does_not_run() -> str:
    """Why a kernel of it does not run on this GPU; nothing where it does."""
    call = [sys.executable, "-c", TRY]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


if __name__ == "__main__":
    main()

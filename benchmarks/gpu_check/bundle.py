"""Compiles the operators for a machine with a GPU on one that has none, into one folder.

Needs nvcc and any torch. The folder holds the extension, which loads beside every torch with CUDA
from 2.10 on, what it was compiled from (bundle.json), and in `site` packages that are missing
there.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.extension import LIBRARY, SAYS, SOURCES
from benchmarks.gpu_check.record import ROOT, digest

MOST_BYTES = 64 * 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.bundle")
    parser.add_argument("--architectures", nargs="+", default=["9.0"])
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-bundle")
    parser.add_argument("--packages", nargs="+", default=[], help="for `site`; asks PyPI")
    parser.add_argument("--python", default="3.12", help="of the other machine, for `site`")
    settings = parser.parse_args(arguments)
    # Beside the folder, which is replaced once all is there: never half a bundle
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gpu-bundle-", dir=settings.out.parent) as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        if settings.packages:  # first: that takes seconds, compiling minutes
            _fetch(settings.packages, settings.python, whole / "site")
        library = _compile(settings.architectures, Path(temporary))
        shutil.copy(library, whole / LIBRARY.name)
        says = describe(whole / LIBRARY.name, settings.architectures)
        (whole / SAYS).write_text(json.dumps(says, indent=1) + "\n", encoding="utf-8")
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            sys.exit(f"gpu-bundle: {size / 2**20:.0f} MiB; at most {MOST_BYTES / 2**20:.0f}")
        shutil.rmtree(settings.out, ignore_errors=True)
        whole.rename(settings.out)
    print(json.dumps({"folder": str(settings.out), "mebibytes": round(size / 2**20, 1), **says}))


def _compile(architectures: Sequence[str], folder: Path) -> Path:
    environment = {
        **os.environ,
        "MMOE_BUILD": "bundle",
        "MMOE_CUDA_ARCHITECTURES": " ".join(architectures),
    }
    folders = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "objects")]
    command = [sys.executable, "setup.py", "-q", "build_ext", *folders]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        sys.exit("gpu-bundle: the build failed; the lines above say why")
    return folder / "lib" / "mmoe" / LIBRARY.name


def _fetch(packages: Sequence[str], python: str, site: Path) -> None:
    options = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    platforms = ["--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "1", "--target", str(site)]
    done = subprocess.run(
        [*command, *options, *platforms, *packages],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = said[-1] if said else (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        sys.exit(f"gpu-bundle: pip could not fetch {', '.join(packages)}: {why}")


def describe(library: Path, architectures: Sequence[str]) -> dict[str, Any]:
    said = subprocess.run(["readelf", "-dVW", str(library)], capture_output=True, text=True).stdout
    newest = {
        name: max(re.findall(rf"\b{name}_([\d.]+)", said), key=_numbers, default=None)
        for name in ("GLIBC", "GLIBCXX")
    }
    return {
        "code": digest(SOURCES),
        "architectures": list(architectures),
        "needs": re.findall(r"\(NEEDED\).*\[(.+)\]", said),
        **newest,
    }


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.strip(".").split(".")]


if __name__ == "__main__":
    main()

"""The exchange of a mixture between ranks: NCCL with a GPU each, gloo in a rehearsal.

python -m benchmarks.gpu_check.ranks WORLD --record FILE [--seconds S] [--device cuda|cpu] [--small]

Starts WORLD processes (`one_rank.py`) and sees to it that none outlives its clock: a rank that
waits for one that is gone would wait for ever.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu_check.record import ROOT
from benchmarks.gpu_check.running import EXIT_LEFT_OUT

MODULE = "benchmarks.gpu_check.one_rank"
# Once a rank has failed, the others get so many seconds to say why they did
LAST_WORDS = 5.0
CPU_RANKS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status 0 only where every rank ended well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.ranks")
    parser.add_argument("world", type=int)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all ranks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal's sizes")
    settings = parser.parse_args(arguments)
    if problem := too_many(settings.world, settings.device):
        print(problem)
        sys.exit(EXIT_LEFT_OUT)
    with tempfile.TemporaryDirectory(prefix="gpu-check-ranks-") as folder:
        failed = run(settings, Path(folder))
    if failed:
        sys.exit(failed)


def too_many(world: int, device: str) -> str:
    """Why there are not so many ranks here; nothing where there may be."""
    here = torch.cuda.device_count() if device == "cuda" else CPU_RANKS
    return "" if world <= here else f"needs {world} GPUs, one for each rank; {here} here"


def run(settings: argparse.Namespace, folder: Path) -> str:
    """What went wrong, in one line; nothing where all went well."""
    ends_at = time.monotonic() + settings.seconds
    ranks = [_start(rank, settings, folder) for rank in range(settings.world)]
    try:
        _wait(ranks, ends_at)
    finally:
        hung = [rank for rank, process in enumerate(ranks) if process.poll() is None]
        for process in ranks:
            process.kill()
            process.wait()
    words = [_said(folder, rank) for rank in range(settings.world)]
    print("\n".join(f"-- rank {rank}\n{said}" for rank, said in enumerate(words)))
    failed = [rank for rank, process in enumerate(ranks) if process.returncode]
    if not failed:
        return ""
    first = next((rank for rank in failed if rank not in hung), failed[0])
    why = f"its clock of {settings.seconds:.0f} s ended" if first in hung else "it failed"
    last = (words[first].strip().splitlines() or ["it said nothing"])[-1]
    return f"rank {first} of {settings.world}: {why}: {last}"


def _start(rank: int, settings: argparse.Namespace, folder: Path) -> subprocess.Popen:
    """One rank; what it prints goes to a file, so that no full pipe holds it up."""
    options = ["--record", str(settings.record), "--device", settings.device]
    options += ["--seconds", str(settings.seconds)]
    small = ["--small"] if settings.small else []
    command = [sys.executable, "-m", MODULE, str(rank), str(settings.world), str(folder / "store")]
    with _output(folder, rank).open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            [*command, *options, *small],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait(ranks: Sequence[subprocess.Popen], ends_at: float) -> None:
    """Until all have ended, or the clock has, which a failure sets to a few seconds from then."""
    failed = False
    while time.monotonic() < ends_at:
        codes = [rank.poll() for rank in ranks]
        if None not in codes:
            return
        if not failed and any(codes):
            failed, ends_at = True, min(ends_at, time.monotonic() + LAST_WORDS)
        time.sleep(0.05)


def _output(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _said(folder: Path, rank: int) -> str:
    return _output(folder, rank).read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()

"""The smoke of one operator, on few cases, under one tool of compute-sanitizer.

python -m benchmarks.gpu_check.sanitize memcheck|racecheck OPERATOR
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.gpu_check.record import ROOT
from benchmarks.gpu_check.running import EXIT_LEFT_OUT

FOUND = 3  # what the tool ends with where it has something to report


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status of the tool; left out where it is not installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.sanitize")
    parser.add_argument("tool", choices=("memcheck", "racecheck", "initcheck", "synccheck"))
    parser.add_argument("operator")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    settings = parser.parse_args(arguments)
    if settings.device == "cpu" or shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH, or there is no GPU to watch")
        sys.exit(EXIT_LEFT_OUT)
    done = subprocess.run(command(settings.tool, settings.operator), cwd=ROOT)
    if done.returncode == FOUND:
        print(f"{settings.tool} has something to report")
    sys.exit(done.returncode)


def command(tool: str, operator: str) -> list[str]:
    """The whole command."""
    return [
        *("compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)),
        *("--print-limit", "20", sys.executable, "-m", "benchmarks.gpu_check.smoke"),
        *(operator, "--few"),
    ]


if __name__ == "__main__":
    main()

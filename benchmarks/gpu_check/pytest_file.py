"""Runs one file of tests with `-m gpu`, again and again where a test takes the process with it.

python -m benchmarks.gpu_check.pytest_file FILE --record FILE [--device cuda|cpu|emulated]
                                           [--seconds S] [--mark gpu]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.device import DEVICES
from benchmarks.gpu_check.pytest_plugin import CLOCK, ENDED, FILE, RECORD, RUNNING
from benchmarks.gpu_check.record import (
    FAILED,
    LEFT_OUT,
    MACHINE,
    PASSED,
    ROOT,
    Record,
    machine_name,
)
from benchmarks.gpu_check.running import EXIT_LEFT_OUT

TEST_SECONDS = 30.0
# Without these tests/conftest.py, or what it imports, stops pytest
CONFTEST_NEEDS = ("pyarrow", "pydantic", "mmoe.embeddings")
MOST_PROCESSES = 4
NO_TESTS = 5  # pytest's exit status


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status 0 only where a test passed and none failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.pytest_file")
    parser.add_argument("file", type=Path)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--seconds", type=float, default=TEST_SECONDS, help="of each test")
    parser.add_argument("--mark", default="gpu", help="pytest's -m")
    settings = parser.parse_args(arguments)
    record = Record(settings.record, machine_name(settings.device))
    code = _run(settings, record)
    sys.exit(_verdict(settings.file, record, code))


def _run(settings: argparse.Namespace, record: Record) -> int:
    """Pytest's exit status, in the last of up to a few processes."""
    ended: list[str] = []
    code = 0
    with tempfile.TemporaryDirectory() as temporary:
        running = Path(temporary) / "running"
        for _ in range(MOST_PROCESSES):
            running.write_text("", encoding="utf-8")
            code = _pytest(settings, running, ended)
            stopped_in = running.read_text(encoding="utf-8")
            if not stopped_in:
                break
            reason = f"the process ended in it (exit status {code}), or its clock did"
            record.add(stopped_in, FAILED, reason=reason)
            ended.append(stopped_in)
    return code


def _pytest(settings: argparse.Namespace, running: Path, ended: Sequence[str]) -> int:
    """One process; the tests named in `ended` are left out."""
    told = [f"{RECORD}={settings.record}", f"{RUNNING}={running}", f"{CLOCK}={settings.seconds}"]
    told += [f"{FILE}={settings.file}", *(f"{ENDED}={key}" for key in ended)]
    options = [*pytest_options(settings.file, settings.device), *told, "-m", settings.mark]
    command = [sys.executable, "-m", "pytest", *options]
    # The plugin's lines are of the machine that this process' are of
    environment = {**os.environ, MACHINE: machine_name(settings.device)}
    started = time.monotonic()
    code = subprocess.run([*command, str(settings.file)], cwd=ROOT, env=environment).returncode
    print(f"pytest: exit status {code} after {time.monotonic() - started:.1f} s", flush=True)
    return code


def pytest_options(file: Path, device: str = "cuda") -> list[str]:
    """Without the project's own options, which ask for plugins that may not be here."""
    options = ["-o", "addopts=", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"]
    options += ["-p", "benchmarks.gpu_check.pytest_plugin"]
    if device == "emulated":
        options += ["-p", "tests.emulated_cuda.plugin"]
    conftest = [sys.executable, "-c", f"import {', '.join(CONFTEST_NEEDS)}"]
    if subprocess.run(conftest, cwd=ROOT, capture_output=True).returncode:
        return [*options, f"--confcutdir={_below_tests(file)}"]
    # Of the grids of tests the emulation gets through a part alone
    return options if device == "emulated" else [*options, "--all"]


def _below_tests(file: Path) -> Path:
    """The folder whose conftest.py is the first to be read: below tests, whose own needs more."""
    own = file.resolve().parent
    while ROOT / "tests" in own.parent.parents:
        own = own.parent
    return own


def _verdict(file: Path, record: Record, code: int) -> int:
    """Prints the counts; the exit status."""
    lines = record.lines()
    own = {key: line for key, line in lines.items() if key.startswith(f"tests/{file}::")}
    counts = Counter(line["status"] for line in own.values())
    print(", ".join(f"{count} {status}" for status, count in counts.items()) or "no test ran")
    if counts[FAILED]:
        return 1
    if counts[PASSED]:
        return code
    reasons = [line["reason"] for line in own.values() if "reason" in line]
    print(reasons[0] if reasons else "no test of it was chosen")
    return EXIT_LEFT_OUT if counts[LEFT_OUT] or code == NO_TESTS else code or 1


if __name__ == "__main__":
    main()

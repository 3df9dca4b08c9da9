"""Runs one file of tests with `-m gpu`, again and again where a test takes the process with it.

It is a plugin of that pytest as well, whose options say where the lines go: a line and a clock for
each test, and what a fixture lacks. A kernel that never ends cannot be interrupted from Python: a
watcher beside the interpreter ends the process, and the file that says what was running tells the
next process what to leave out.
"""

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from benchmarks.gpu_check.record import (
    DEVICES,
    EXIT_LEFT_OUT,
    FAILED,
    LEFT_OUT,
    MACHINE,
    PASSED,
    ROOT,
    Record,
    machine_name,
    process_options,
)

TEST_SECONDS = 30.0
# Without these tests/conftest.py, or what it imports, stops pytest
CONFTEST_NEEDS = ("pyarrow", "pydantic", "mmoe.embeddings")
MOST_PROCESSES = 4
NO_TESTS = 5  # pytest's exit status
RECORD, RUNNING, CLOCK = "--gpu-check-record", "--gpu-check-running", "--gpu-check-seconds"
FILE, ENDED = "--gpu-check-file", "--gpu-check-ended"
REASON = 400  # characters
STDERR = 2  # the file itself: pytest puts others in the place of sys.stderr


def main(arguments: Sequence[str] | None = None) -> None:
    parser = process_options("pytest_file", DEVICES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=TEST_SECONDS, help="of each test")
    settings = parser.parse_args(arguments)
    record = Record(settings.record, machine_name(settings.device))
    code = _run(settings, record)
    sys.exit(_verdict(settings.file, record, code))


def _run(settings: argparse.Namespace, record: Record) -> int:
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
    told = [f"{RECORD}={settings.record}", f"{RUNNING}={running}", f"{CLOCK}={settings.seconds}"]
    told += [f"{FILE}={settings.file}", *(f"{ENDED}={key}" for key in ended)]
    options = [*options_of_pytest(settings.file, settings.device), *told, "-m", "gpu"]
    command = [sys.executable, "-m", "pytest", *options]
    # The plugin's lines are of the machine that this process' are of
    environment = {**os.environ, MACHINE: machine_name(settings.device)}
    started = time.monotonic()
    code = subprocess.run([*command, str(settings.file)], cwd=ROOT, env=environment).returncode
    print(f"pytest: exit status {code} after {time.monotonic() - started:.1f} s", flush=True)
    return code


def options_of_pytest(file: Path, device: str = "cuda") -> list[str]:
    """Without the project's own options, which ask for plugins that may not be here."""
    options = ["-o", "addopts=", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"]
    options += ["-p", "benchmarks.gpu_check.pytest_file"]
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


# The plugin: a line for each test


class Lines:
    """Writes a line for each test that ends; leaves out those that have one."""

    def __init__(
        self, record: Record, file: str, running: Path, seconds: float, ended: Collection[str]
    ) -> None:
        self.record, self.file, self.running, self.seconds = record, file, running, seconds
        self.ended = set(ended)
        self.began, self.failed = 0.0, False

    def key(self, nodeid: str) -> str:
        return f"tests/{self.file}::{nodeid.partition('::')[2] or 'collection'}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = self.record.done() | self.ended
        again = [item for item in items if self.key(item.nodeid) in done]
        if again:
            config.hook.pytest_deselected(items=again)
            items[:] = [item for item in items if item not in again]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.began, self.failed = time.monotonic(), False
        self.running.write_text(self.key(nodeid), encoding="utf-8")
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=STDERR)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test passes with its call; it fails or is left out in any part."""
        key, seconds = self.key(report.nodeid), round(time.monotonic() - self.began, 3)
        if report.failed and not self.failed:
            self.failed = True
            reason = f"{report.when}: {_last(report.longreprtext)}"
            self.record.add(key, FAILED, seconds=seconds, reason=reason)
        elif report.skipped:
            self.record.add(key, LEFT_OUT, seconds=seconds, reason=_skip_reason(report))
        elif report.when == "call" and report.passed:
            self.record.add(key, PASSED, seconds=seconds)

    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self.running.write_text("", encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read for want of a package is left out, and so is a skipped one."""
        key = self.key(report.nodeid)
        if report.skipped:
            self.record.add(key, LEFT_OUT, reason=_skip_reason(report))
        elif report.failed:
            reason = _last(report.longreprtext)
            status = LEFT_OUT if "ModuleNotFoundError" in reason else FAILED
            self.record.add(key, status, reason=reason)


def _last(text: str) -> str:
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = said or text.strip().splitlines() or ["nothing was said"]
    return lines[0][:REASON]


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")[:REASON]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-check")
    group.addoption(RECORD, type=Path, help="file that gets a line for each test")
    group.addoption(RUNNING, type=Path, help="file that names the test under way")
    group.addoption(CLOCK, type=float, help="seconds of each test")
    group.addoption(FILE, help="whose tests these are, as keys have it")
    group.addoption(ENDED, action="append", default=[], help="key of a test to leave out")


def pytest_configure(config: pytest.Config) -> None:
    options = (RECORD, FILE, RUNNING, CLOCK, ENDED)
    path, file, running, seconds, ended = (config.getoption(name) for name in options)
    if path is not None:
        lines = Lines(Record(path, machine_name("cuda")), file, running, seconds, ended)
        config.pluginmanager.register(lines)


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


if __name__ == "__main__":
    main()

"""What pytest runs with: a line for each test, a clock for each test, and what a fixture lacks.

`-p benchmarks.gpu_check.pytest_plugin`; its options say where the lines go. A kernel that
never ends cannot be interrupted from Python: a watcher beside the interpreter ends the process, and
the file that says what was running tells the next process what to leave out.
"""

import faulthandler
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.record import FAILED, LEFT_OUT, PASSED, ROOT, Record, machine_name

RECORD, RUNNING, CLOCK = "--gpu-check-record", "--gpu-check-running", "--gpu-check-seconds"
FILE, ENDED = "--gpu-check-file", "--gpu-check-ended"
REASON = 400  # characters
STDERR = 2  # the file itself: pytest puts others in the place of sys.stderr


class Lines:
    """Writes a line for each test that ends; leaves out those that have one.

    Args:
        record: Where.
        file: Whose tests these are, as keys have it.
        running: A file that names the test under way.
        seconds: The clock of each test.
        ended: Keys of those that took an earlier process with them.
    """

    def __init__(
        self, record: Record, file: str, running: Path, seconds: float, ended: Collection[str]
    ) -> None:
        self.record, self.file, self.running, self.seconds = record, file, running, seconds
        self.ended = set(ended)
        self.began, self.failed = 0.0, False

    def key(self, nodeid: str) -> str:
        """Of a test, or of reading the file."""
        return f"tests/{self.file}::{nodeid.partition('::')[2] or 'collection'}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Those of an earlier process of this file are not run again."""
        done = self.record.done() | self.ended
        again = [item for item in items if self.key(item.nodeid) in done]
        if again:
            config.hook.pytest_deselected(items=again)
            items[:] = [item for item in items if item not in again]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Starts the clock."""
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
        """Stops the clock."""
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
    """The line of a traceback that says what was wrong."""
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = said or text.strip().splitlines() or ["nothing was said"]
    return lines[0][:REASON]


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")[:REASON]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `Lines` is given."""
    group = parser.getgroup("gpu-check")
    group.addoption(RECORD, type=Path, help="file that gets a line for each test")
    group.addoption(RUNNING, type=Path, help="file that names the test under way")
    group.addoption(CLOCK, type=float, help="seconds of each test")
    group.addoption(FILE, help="whose tests these are, as keys have it")
    group.addoption(ENDED, action="append", default=[], help="key of a test to leave out")


def pytest_configure(config: pytest.Config) -> None:
    """Joins where a record is named."""
    options = (RECORD, FILE, RUNNING, CLOCK, ENDED)
    path, file, running, seconds, ended = (_option(config, name) for name in options)
    if path is not None:
        lines = Lines(Record(path, machine_name("cuda")), file, running, seconds, ended)
        config.pluginmanager.register(lines)


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(name)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root, where tests/conftest.py is not read."""
    return ROOT

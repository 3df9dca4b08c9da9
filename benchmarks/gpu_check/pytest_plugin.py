"""What pytest runs with: a line for each test, a clock for each test, and what a fixture lacks.

`-p benchmarks.gpu_check.pytest_plugin`; the variables below say where the lines go. A kernel that
never ends cannot be interrupted from Python: a watcher beside the interpreter ends the process, and
the file that says what was running tells the next process what to leave out.
"""

import faulthandler
import os
import time
from pathlib import Path

import pytest

from benchmarks.gpu_check.record import FAILED, LEFT_OUT, PASSED, ROOT, Record, machine_name

RECORD, RUNNING, CLOCK = "GPU_CHECK_RECORD", "GPU_CHECK_RUNNING", "GPU_CHECK_TEST_SECONDS"
FILE, ENDED = "GPU_CHECK_FILE", "GPU_CHECK_ENDED"
REASON = 400  # characters
STDERR = 2  # the file itself: pytest puts others in the place of sys.stderr


class Lines:
    """Writes a line for each test that ends; leaves out those that have one.

    Args:
        record: Where.
        file: Whose tests these are, as keys have it.
        running: A file that names the test under way.
        seconds: The clock of each test.
    """

    def __init__(self, record: Record, file: str, running: Path, seconds: float) -> None:
        self.record, self.file, self.running, self.seconds = record, file, running, seconds
        self.began, self.failed = 0.0, False

    def key(self, nodeid: str) -> str:
        """Of a test, or of reading the file."""
        return f"tests/{self.file}::{nodeid.partition('::')[2] or 'collection'}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Those of an earlier process of this file are not run again."""
        named = os.environ.get(ENDED, "").splitlines()
        done = self.record.done() | set(named)
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


def pytest_configure(config: pytest.Config) -> None:
    """Joins where a record is named."""
    if RECORD in os.environ:
        record = Record(Path(os.environ[RECORD]), machine_name("cuda"))
        seconds = float(os.environ[CLOCK])
        running = Path(os.environ[RUNNING])
        config.pluginmanager.register(Lines(record, os.environ[FILE], running, seconds))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root, where tests/conftest.py is not read."""
    return ROOT

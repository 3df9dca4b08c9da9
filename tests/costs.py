"""Costs of the tests: `pytest --costs FILE` prints them by file and writes them as JSON.

Processor seconds count this process, programs that it waited for, and forked ranks; they say nearly
the same on a busy machine as on an idle one. `tests/seconds.json` holds them of files that take
longest: `make test` begins with those.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from tests.forked import Forked

SECONDS = Path(__file__).with_name("seconds.json")
_SHOWN = 40  # files in the table
_RECORDED = 4.0  # seconds from which on a file is named in `seconds.json`


def recorded_seconds() -> dict[str, float]:
    """Seconds of the files that take longest, by name."""
    return json.loads(SECONDS.read_text())


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + Forked.processor_s


class Costs:
    """Notes each test's seconds where it runs; adds them up in the process that started all."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, _processor_s()
        self.tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        """Adds the processor seconds since the report before, of setup, call or teardown."""
        report = yield
        now = _processor_s()
        report.user_properties.append(("processor_s", now - self.last))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds one phase of a test, from whichever worker it comes."""
        seconds = self.tests[report.nodeid]
        seconds[0] += report.duration
        seconds[1] += dict(report.user_properties).get("processor_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table of files, and writes all tests."""
        files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for test, seconds in self.tests.items():
            for place, value in enumerate((*seconds, 1)):
                files[test.split("::")[0]][place] += value
        say = terminalreporter.write_line
        say(f"{'worker s':>9} {'processor s':>12} {'tests':>6}")
        dearest = sorted(files.items(), key=lambda file: -file[1][1])
        rest = [
            sum(column) for column in zip(*(found for _, found in dearest[_SHOWN:]), strict=True)
        ]
        whole = [sum(column) for column in zip(*files.values(), strict=True)]
        shown = [*dearest[:_SHOWN], ("other files", rest), ("all", whole)]
        for name, found in shown:
            if found:
                say(f"{found[0]:9.1f} {found[1]:12.1f} {found[2]:6.0f} {name}")
        recorded = {name: round(found[1]) for name, found in dearest if found[1] >= _RECORDED}
        content = {"seconds": recorded, "tests": self.tests}
        self.path.write_text(json.dumps(content, indent=1) + "\n")

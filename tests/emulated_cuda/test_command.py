"""What the emulation's command counts, and what it does not count as success."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated_cuda import __main__ as command
from tests.emulated_cuda import build as building
from tests.emulated_cuda.build import ROOT
from tests.emulated_cuda.device import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.of_emulation]  # where it is loaded anyway

REPORT = '<testsuites><testsuite tests="{}" skipped="{}" failures="{}" errors="0"/></testsuites>'


@pytest.mark.parametrize(
    ("code", "report", "counted"),
    [
        (0, (5, 1, 0), (4, 0)),
        (1, (5, 1, 2), (4, 2)),
        (1, (5, 0, 0), (5, 1)),  # pytest says no, and the report does not say why
        (0, (3, 3, 0), (0, 1)),  # all were skipped
        (5, (0, 0, 0), (0, 1)),  # nothing was collected
        (-11, (5, 0, 0), (5, 1)),
        (-11, None, (0, 1)),
    ],
)
def test_what_ran_and_what_failed(monkeypatch, code, report, counted):
    def pytest_runs(arguments, **_):
        if report is not None:
            place = next(a.split("=")[1] for a in arguments if a.startswith("--junit-xml="))
            Path(place).write_text(REPORT.format(*report), encoding="utf-8")
        return subprocess.CompletedProcess(arguments, code)

    monkeypatch.setattr(command.subprocess, "run", pytest_runs)

    assert command.run(command.Round(Settings())) == (*counted, set())


def test_where_tests_are_looked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(
        command.subprocess,
        "run",
        lambda told, **_: asked.append(told) or subprocess.CompletedProcess(told, 0),
    )
    for arguments in (["-k", "gate"], ["tests/ops/test_cuda.py::test_it"]):
        command.run(command.Round(Settings()), arguments)
        assert set(arguments) < set(asked[-1])
    assert asked[0][-3:] == list(command.TESTS) != asked[1][-3:]


def test_another_capability_is_tried_where_somebody_asked_for_it(monkeypatch, capsys):
    told = []

    def pytest_runs(arguments, **_):
        values = dict(a.split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
        names = values.get("--emulated-tests")
        told.append((values["--emulated-capability"], names and Path(names).read_text()))
        Path(values["--junit-xml"]).write_text(
            '<testsuites><testsuite tests="2"><testcase><properties><property '
            f'name="{command.ASKED}" value="tests/a.py::b[c]"/></properties></testcase>'
            "</testsuite></testsuites>"
        )
        return subprocess.CompletedProcess(arguments, 0)

    monkeypatch.setattr(command.subprocess, "run", pytest_runs)
    monkeypatch.setattr(command, "build", lambda variant: None)

    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == 0
    assert told == [("8", None), ("9", "tests/a.py::b[c]")]
    assert capsys.readouterr().out.endswith('{"cases": 4, "failed": 0}\n')


def test_a_machine_without_a_compiler_is_told_in_a_line(monkeypatch, tmp_path):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    for name in ("build", "sanitizer"):
        call = [sys.executable, "-m", f"tests.emulated_cuda.{name}"]
        said = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        assert said.stderr.startswith("tests.emulated_cuda: g++ was not found")
        assert (said.returncode, len(said.stderr.splitlines())) == (1, 1)


def test_a_folder_that_cannot_be_written_is_told_in_a_line(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(building, "BUILD", tmp_path / "file")

    with pytest.raises(SystemExit, match="the emulation of CUDA cannot be written"):
        command.main([])

"""What the emulation's two commands count, and what they do not count as success."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emulated_cuda import __main__ as command
from tests.emulated_cuda import build as building
from tests.emulated_cuda import mutations
from tests.emulated_cuda.build import ROOT
from tests.emulated_cuda.device import Settings
from tests.emulated_cuda.mutants import Switches, switched_sources
from tests.emulated_cuda.mutations import NOTICED, OTHER_ERROR, SURVIVED, noticed_by, stale

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

    assert command.run(command.Round(Settings())) == counted


@pytest.mark.parametrize(
    ("status", "by"),
    [
        (SURVIVED << 8, None),
        (NOTICED << 8, "a check"),
        (OTHER_ERROR << 8, "an error of another kind"),
        (1 << 8, "AddressSanitizer"),
        (int(signal.SIGXCPU), "no end"),
        (int(signal.SIGSEGV), "a crash, SIGSEGV"),
    ],
)
def test_how_a_mutation_was_noticed(status, by):
    assert noticed_by(status) == by


def test_a_comparison_after_a_template_is_mutated():
    switches = Switches()
    text = switches.put_into("a.cu", "  fits = width % kPack<T> == 0 && n < 3;")

    assert [mutant.change for mutant in switches.mutants] == ["< to <=", "== to !="]
    assert "kPack<T> == ::emulated::Equal{2} == 0" in text


def test_a_reason_covers_one_mutation():
    mutants = switched_sources(ROOT / "csrc/cuda")[1]

    assert len({mutant.key for mutant in mutants}) == len(mutants)
    alike = next(mutant for mutant in mutants if mutant.alike[1] > 1)
    more = replace(alike, alike=(alike.alike[0], alike.alike[1] + 1))
    assert more.key != alike.key  # one more such line: all of them are looked at again


def test_reasons_that_hold_no_longer_are_told():
    mutants = switched_sources(ROOT / "csrc/cuda")[1][:2]
    reasons = {mutant.key: "harmless" for mutant in mutants} | {"gone.cu: a < b": "harmless"}
    caught = {mutants[0].number: True, mutants[1].number: False}

    assert stale(reasons, mutants, caught) == [mutants[0].key, "gone.cu: a < b"]


@pytest.mark.parametrize(
    ("arguments", "whole"), [(["-k", "gate"], True), (["tests/ops/test_cuda.py::test_it"], False)]
)
def test_where_tests_are_looked_for(monkeypatch, arguments, whole):
    asked = []
    monkeypatch.setattr(
        command.subprocess,
        "run",
        lambda told, **_: asked.append(told) or subprocess.CompletedProcess(told, 0),
    )

    command.run(command.Round(Settings()), arguments)

    assert (asked[0][-3:] == list(command.TESTS)) is whole
    assert set(arguments) < set(asked[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sample", "0"], "--sample: expected 1 or more, got 0"),
        (["--sample", "-3"], "--sample: expected 1 or more, got -3"),
        (["--jobs", "0"], "--jobs: expected 1 or more, got 0"),
        (["--only", "nowhere.cu"], "no mutation's file and line hold 'nowhere.cu'"),
    ],
)
def test_mutations_of_nothing_are_refused(capsys, arguments, words):
    with pytest.raises(SystemExit, match="2"):
        mutations.main(arguments)

    assert words in capsys.readouterr().err


def test_a_machine_without_a_compiler_is_told_in_a_line(monkeypatch, tmp_path):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit, match=r"mutations: g\+\+ was not found"):
        mutations.main(["--sample", "1"])
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

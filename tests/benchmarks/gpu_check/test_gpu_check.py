"""`benchmarks.gpu_check` without a GPU: its plan, its record, its summary, and what it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import kernels, pytest_file, smoke, train
from benchmarks.gpu_check.operator_cases import BUILDERS, CASES, EXCHANGE_CASES
from benchmarks.gpu_check.record import (
    FAILED,
    LEFT_OUT,
    MEASURED,
    NO_TIME,
    PASSED,
    ROOT,
    Record,
    machine_name,
)
from benchmarks.gpu_check.running import EXIT_LEFT_OUT, EXIT_NO_TIME, Item, run_items
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.stages import FIRST, STAGES
from benchmarks.gpu_check.summary import MOST_LINES, problems, summary

NINE_MINUTES = 540.0


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "record.jsonl", "a machine")


def script(text):
    return ("-c", text)


# ---------------------------------------------------------------- what would be run


def test_a_dry_run_names_every_process_and_its_clock(capsys):
    assert gpu_check.main(["--dry-run"]) == 0

    printed = capsys.readouterr().out
    for stage in STAGES.values():
        assert f"== {stage.name}: " in printed
        assert f"clock {stage.seconds:.0f} s" in printed
    for name in smoke.NAMES:
        assert f"benchmarks.gpu_check.smoke {name} " in printed
    assert "benchmarks.gpu_check.pytest_file tests/ops/test_cuda.py" in printed


def test_the_clocks_fit_into_nine_minutes(tmp_path):
    settings = Settings("cuda", tmp_path / "record", tmp_path / "bundle")
    assert sum(STAGES[name].seconds for name in FIRST) <= NINE_MINUTES
    for stage in STAGES.values():
        items = stage.plan(settings)
        assert stage.seconds < NINE_MINUTES
        assert items
        assert len({item.key for item in items}) == len(items)
        assert all(0 < item.seconds <= stage.seconds for item in items)
        assert all(item.key.startswith(f"{stage.name}/") for item in items)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_without_cuda_it_is_one_line_and_no_success(capsys, tmp_path):
    assert gpu_check.main(["--out", str(tmp_path)]) == 1

    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is built without CUDA" in line


# ---------------------------------------------------------------- record and processes


def test_what_is_known_is_not_done_again(record, tmp_path):
    item = Item("smoke/one", script("print('done')"), 20)
    said = []
    for _ in range(2):
        run_items([item], record, tmp_path / "log", 30, say=said.append)

    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [PASSED]
    assert Record(tmp_path / "other.jsonl", "a machine", [record.path]).done() == {"smoke/one"}
    assert Record(record.path, "another machine").done() == set()


def test_other_sources_are_measured_again(record):
    record.add("kernels/x", MEASURED)
    record.code = "of other sources"
    assert record.done() == set()


def test_a_line_that_was_cut_off_is_passed_over(record):
    record.add("kernels/x", MEASURED)
    with record.path.open("a") as file:
        file.write('{"key": "kernels/y", "sta')
    assert set(record.lines()) == {"kernels/x"}
    record.add("kernels/z", MEASURED)
    record.add("kernels/w", MEASURED)
    assert set(record.lines()) == {"kernels/x", "kernels/z", "kernels/w"}


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("print('fine')", PASSED, None),
        ("raise SystemExit('it is wrong')", FAILED, "exit status 1: it is wrong"),
        (f"print('no tool'); raise SystemExit({EXIT_LEFT_OUT})", LEFT_OUT, "no tool"),
        (f"print('later'); raise SystemExit({EXIT_NO_TIME})", NO_TIME, "later"),
        ("import os; os.abort()", FAILED, "exit status -6: it said nothing"),
    ],
)
def test_how_a_process_ends_is_what_its_line_says(record, tmp_path, text, status, reason):
    run_items([Item("smoke/x", script(text), 20)], record, tmp_path / "log", 30, say=lambda _: None)

    line = record.lines()["smoke/x"]
    assert (line["status"], line.get("reason")) == (status, reason)


def test_what_the_clock_of_its_stage_ends_has_not_failed(record, tmp_path):
    item = Item("smoke/x", script("import time; time.sleep(60)"), 20)

    run_items([item], record, tmp_path / "log", 1.2, say=lambda _: None)

    line = record.lines()["smoke/x"]
    assert (line["status"], line["reason"]) == (NO_TIME, "the stage's clock ended in it")


def test_clocks_end_what_hangs_and_what_comes_after_is_not_reached(record, tmp_path):
    hangs = Item("smoke/hangs", script("import time; print('began'); time.sleep(60)"), 1.0)
    after = Item("smoke/after", script(""), 20)

    run_items([hangs, after], record, tmp_path / "log", 1.9, say=lambda _: None)

    lines = record.lines()
    assert lines["smoke/hangs"]["status"] == FAILED
    assert "its clock of 1 s ended" in lines["smoke/hangs"]["reason"]
    assert lines["smoke/after"]["status"] == NO_TIME


def test_what_lacks_a_package_is_left_out(record, tmp_path):
    item = Item("train/x", script(""), 20, needs=("sys", "not_installed_at_all"))
    run_items([item], record, tmp_path / "log", 30, say=lambda _: None)
    assert record.lines()["train/x"]["reason"] == "without not_installed_at_all"


def test_a_benchmarks_last_line_is_kept(record, tmp_path):
    item = Item("rivals/x", script("""print('a table\\n{"a": 1}')"""), 20)
    run_items([item], record, tmp_path / "log", 30, say=lambda _: None)
    assert record.lines()["rivals/x"]["result"] == {"a": 1}


# ---------------------------------------------------------------- summary


def test_nothing_that_was_left_out_counts_as_passed(record):
    record.add("smoke/a", PASSED)
    record.add("tests/a", LEFT_OUT, reason="no CUDA device")

    assert problems(record.lines(), ["smoke"]) == []
    assert problems(record.lines(), ["smoke", "tests"]) == ["nothing of tests ran"]
    assert problems({}, ["smoke"]) == ["nothing of smoke ran"]
    record.add("smoke/b", NO_TIME, reason="later")
    assert problems(record.lines(), ["smoke"]) == ["1 no time"]


def test_a_summary_has_at_most_a_hundred_lines(record, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number in range(150):
        record.add(f"tests/f::{number}", FAILED, reason="wrong " * 100)
        record.add(f"tests/l::{number}", LEFT_OUT, reason=f"reason {number}")
        values = {"milliseconds": {"mmoe": 1.5}, "times_as_long": {"loop": 2.0}}
        record.add(f"kernels/op{number} bf16", MEASURED, **values)

    lines = summary(record.lines(), list(STAGES))

    assert len(lines) <= MOST_LINES
    assert all(len(line) <= 160 for line in lines[:-1])
    assert lines[-1].startswith("gpu-check: 150 measured, 150 failed, 150 left out: 150 failed")


# ---------------------------------------------------------------- what the processes do, here


def test_the_smoke_calls_every_operator(monkeypatch):
    monkeypatch.setattr(smoke, "compare", lambda *_: None)
    defined = set()
    for path in (ROOT / "mmoe/ops").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        defined |= set(re.findall(r'define\(\s*"([a-z_]+)\(', text))
    assert len(defined) > 20
    defined -= {"grouped_product", "dense_product"}  # settings, which compute nothing

    called = set()
    for name, builder in BUILDERS.items():
        case = EXCHANGE_CASES[0] if name == "exchange" else CASES[0]
        called |= {operator for operator, _ in builder(case, torch.float32)}

    assert called == defined


@pytest.mark.parametrize("name", smoke.NAMES)
def test_the_smoke_passes_on_the_cpu(name):
    assert smoke.check(name, "cpu", few=True)


def test_the_smoke_fails_where_an_operator_is_wrong(monkeypatch):
    right = torch.ops.mmoe.route_plan

    def wrong(*arguments):
        rows_P, offsets_E1, slots_BGK = right(*arguments)
        return rows_P, offsets_E1 + 1, slots_BGK

    monkeypatch.setattr(torch.ops.mmoe, "route_plan", wrong)
    with pytest.raises(ValueError, match=r"route_plan, .*result 1: .* integers differ"):
        smoke.check("route_plan", "cpu", few=True)


@pytest.mark.parametrize("group", kernels.GROUPS)
def test_kernels_are_timed_beside_what_computes_the_same(group, tmp_path):
    path = tmp_path / "record.jsonl"
    kernels.main([group, "--device", "cpu", "--small", "--record", str(path)])

    record = Record(path, machine_name("cpu"))
    contests = [line for line in record.lines().values() if "milliseconds" in line]
    assert contests
    for line in contests:
        assert line["status"] == MEASURED, line
        assert set(line["left_out"]) <= {"scattermoe"}
        assert line["milliseconds"]["mmoe"] > 0
    before = path.read_text().count("milliseconds")
    kernels.main([group, "--device", "cpu", "--small", "--record", str(path)])
    assert path.read_text().count("milliseconds") == before


def test_sizes_that_the_clock_leaves_are_not_measured(tmp_path):
    arguments = ["dense", "--device", "cpu", "--small", "--seconds", "-1"]
    with pytest.raises(SystemExit) as stop:
        kernels.main([*arguments, "--record", str(tmp_path / "record.jsonl")])
    assert stop.value.code == EXIT_NO_TIME


@pytest.mark.parametrize("step", ["dense-8192", "top2-8192"])
def test_a_step_is_timed_beside_plain_torch(step, tmp_path):
    record = Record(tmp_path / "record.jsonl", "a machine")
    assert train.run(step, "cpu", True, record)

    lines = record.lines()
    against = lines.pop(f"train/{step} against plain torch")
    dense = {"baddbmm"} if step.startswith("dense") else set()
    assert set(against["times_as_fast"]) == {"F.grouped_mm", *dense}
    assert set(lines) == {f"train/{step}/{who}" for who in ("mmoe", "F.grouped_mm", *dense)}
    for line in lines.values():
        assert line["rows_per_second"] > 0
        assert line["tables"] == train.TABLES


# ---------------------------------------------------------------- where packages are missing

REFUSES = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pydantic", "torchrec", "fbgemm_gpu"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuses())
"""


@pytest.fixture
def bare(tmp_path):
    """Variables of a process in which neither pydantic nor torchrec can be imported."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(REFUSES)
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def check(arguments, environment, tmp_path):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--out", str(tmp_path), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_it_runs_where_packages_are_missing(bare, tmp_path):
    arguments = ["--device", "cpu", "--stage", "kernels", "--only", "kernels/dense"]
    done = check(arguments, bare, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(": all well")


def test_tests_keep_the_fixtures_of_their_folder_and_of_those_above_it_below_tests():
    places = {"tests/ops/cuda/test_a.py": "ops", "tests/ops/test_a.py": "ops", "tests/a/b.py": "a"}
    for file, folder in places.items():
        assert pytest_file._below_tests(Path(file)) == ROOT / "tests" / folder
    assert pytest_file._below_tests(Path("/elsewhere/sub/test_a.py")) == Path("/elsewhere/sub")


def run_file(file, environment, tmp_path, *options):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.gpu_check.pytest_file", str(file)),
            *("--record", str(tmp_path / "record.jsonl"), *options),
        ],
        cwd=ROOT,
        env={**environment, "GPU_CHECK_MACHINE": "a machine"},
        capture_output=True,
        text=True,
    )
    lines = Record(tmp_path / "record.jsonl", "a machine").lines()
    return done, {key.rpartition("::")[2]: line for key, line in lines.items()}


@pytest.mark.slow
def test_tests_of_operators_run_where_packages_are_missing(bare, tmp_path):
    file = "tests/ops/test_messages.py"
    done, lines = run_file(file, bare, tmp_path, "--mark", "not gpu")

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) > 5
    assert {line["status"] for line in lines.values()} == {PASSED}


DANGEROUS = """
import os, time
import pytest
pytestmark = pytest.mark.gpu

def test_right(repository): assert (repository / "setup.py").exists()
def test_wrong(): assert 1 == 2, "not so"
def test_dies(): os.abort()
def test_hangs(): time.sleep(60)
def test_skipped(): pytest.skip("no reason")
def test_after(): pass
"""


@pytest.mark.slow
def test_a_test_that_dies_or_hangs_costs_no_other(bare, tmp_path):
    (tmp_path / "test_dangerous.py").write_text(DANGEROUS)
    done, lines = run_file(tmp_path / "test_dangerous.py", bare, tmp_path, "--seconds", "1")

    assert done.returncode == 1
    assert {name: line["status"] for name, line in lines.items()} == {
        "test_right": PASSED,
        "test_wrong": FAILED,
        "test_dies": FAILED,
        "test_hangs": FAILED,
        "test_skipped": LEFT_OUT,
        "test_after": PASSED,
    }
    assert "not so" in lines["test_wrong"]["reason"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_file_whose_tests_are_all_left_out_is_left_out(bare, tmp_path):
    done, lines = run_file("tests/ops/test_cuda.py", bare, tmp_path)

    assert done.returncode == EXIT_LEFT_OUT
    assert lines["collection"]["reason"] == "no CUDA device"
    assert done.stdout.strip().splitlines()[-1] == "no CUDA device"


@pytest.mark.slow
def test_a_file_that_needs_what_is_missing_is_left_out(bare, tmp_path):
    (tmp_path / "test_needs.py").write_text("import pydantic\n")
    done, lines = run_file(tmp_path / "test_needs.py", bare, tmp_path)

    assert done.returncode == EXIT_LEFT_OUT
    assert lines["collection"]["status"] == LEFT_OUT
    assert "pydantic" in lines["collection"]["reason"]

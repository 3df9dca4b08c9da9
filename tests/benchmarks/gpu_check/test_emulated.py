"""A check of the emulated device: the same programs as on a GPU, with longer clocks."""

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.device import opened
from benchmarks.gpu_check.pytest_file import pytest_options
from benchmarks.gpu_check.record import ROOT, Record, machine_name
from benchmarks.gpu_check.running import run_items
from benchmarks.gpu_check.settings import Settings
from benchmarks.gpu_check.stages import EMULATED, EMULATED_TIMES, STAGES, slower
from benchmarks.gpu_check.stages import test_files as files_of_tests


def test_a_dry_run_names_the_emulations_build_and_its_clocks(capsys):
    assert gpu_check.main(["--dry-run", "--device", "emulated"]) == 0

    printed = capsys.readouterr().out
    assert "-m tests.emulated_cuda.build" in printed
    assert "smoke grouped_mm --device emulated --few" in printed
    assert "--device emulated --seconds 240" in printed
    for name in EMULATED:
        assert f"clock {STAGES[name].seconds * EMULATED_TIMES:.0f} s" in printed
    assert "== kernels" not in printed


def test_what_an_emulation_cannot_tell_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        gpu_check.main(["--device", "emulated", "--stage", "smoke", "kernels"])
    assert stop.value.code == 2
    assert "expected stages of env, smoke, tests" in capsys.readouterr().err


def test_tests_get_the_plugin_that_emulates():
    file = ROOT / "tests" / "ops" / "test_cuda.py"
    assert "tests.emulated_cuda.plugin" in pytest_options(file, "emulated")
    assert "tests.emulated_cuda.plugin" not in pytest_options(file, "cuda")


def test_files_of_tests_are_those_with_the_mark():
    files, emulated = files_of_tests("cuda"), files_of_tests("emulated")
    assert "tests/ops/cuda/test_huge.py" in files
    # What is asked of the emulation takes time, and says nothing of a GPU
    assert set(emulated) - set(files) == {
        "tests/ops/cuda/test_choices.py",
        *(
            f"tests/emulated_cuda/test_{name}.py"
            for name in ("command", "emulator", "refusals", "sanitizer")
        ),
    }
    assert not [file for file in files if file.startswith("tests/benchmarks/gpu_check")]


def test_on_the_cpu_nothing_is_opened():
    with opened("cpu") as device:
        assert device == "cpu"


@pytest.mark.slow
@pytest.mark.skipif(
    not list((ROOT / "build" / "emulated_cuda" / "plain").glob("libmmoe_emulated-*.so")),
    reason="the emulation is not built: python -m tests.emulated_cuda.build",
)
def test_the_smoke_passes_on_the_emulated_kernels(tmp_path):
    settings = Settings("emulated", tmp_path / "record.jsonl", tmp_path, small=True)
    record = Record(settings.record, machine_name("emulated"))
    stage = slower(STAGES["smoke"])
    items = [item for item in stage.plan(settings) if item.key == "smoke/route_plan"]

    run_items(items, record, tmp_path / "log", stage.seconds, say=lambda _: None)

    assert record.done() == {"smoke/route_plan"}, record.lines()

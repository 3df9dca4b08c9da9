"""A check of the emulated device runs the tests with its mark."""

from benchmarks.gpu_check.__main__ import test_files as files_of_tests
from benchmarks.gpu_check.pytest_file import options_of_pytest
from benchmarks.gpu_check.record import ROOT


def test_tests_get_the_plugin_that_emulates():
    file = ROOT / "tests" / "ops" / "test_cuda.py"
    assert "tests.emulated_cuda.plugin" in options_of_pytest(file, "emulated")
    assert "tests.emulated_cuda.plugin" not in options_of_pytest(file, "cuda")


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

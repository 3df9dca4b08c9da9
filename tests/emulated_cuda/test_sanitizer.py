"""AddressSanitizer ends a process whose kernel leaves its memory, and names kernel and line."""

import os
import subprocess
import sys

import pytest

from tests.emulated_cuda.build import NoCompiler
from tests.emulated_cuda.sanitizer import environment

pytestmark = [*(pytest.mark.gpu, pytest.mark.of_emulation), pytest.mark.slow]
if "tests.emulated_cuda.plugin" not in sys.modules:
    pytest.skip("the emulation is not loaded", allow_module_level=True)

SCRIPT = """
import ctypes, sys
from pathlib import Path
import torch
from tests.emulated_cuda.build import build

path = str(build("asan", Path("tests/emulated_cuda/probes").resolve()))
torch.ops.load_library(path)
library = ctypes.CDLL(path)
library.emulated_begin_call(None, 0)
given = torch.arange(256.0)
# Stopped and finished kernels leave nothing behind that would be reported
for name, number in (("two shuffles", 0), ("leaves before shuffle", 5), ("neighbour", 1)):
    try:
        torch.ops.emulated_probes.threads(name, given, number)
    except RuntimeError:
        pass
print("alive", flush=True)
torch.ops.emulated_probes.memory(sys.argv[1], given, int(sys.argv[2]))
print("ended", flush=True)
"""


def run(repository, name, number):
    try:
        surroundings = {**os.environ, **environment()}
    except NoCompiler as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", SCRIPT, name, str(number)]
    return subprocess.run(command, cwd=repository, env=surroundings, capture_output=True, text=True)


def test_what_is_right_is_not_reported(repository):
    result = run(repository, "shared variable", 63)

    assert (result.stdout.split(), result.returncode) == (["alive", "ended"], 0), result.stderr


@pytest.mark.parametrize(
    ("name", "number", "kernel"),
    [
        ("shared variable", 64, "beside_shared"),
        ("shared of the launch", -1, "beside_shared"),
        ("write out", 64, "write_at"),
        ("write in", 270, "write_at"),
        ("read in", 270, "read_at"),
    ],
)
def test_what_leaves_its_memory_is_reported(repository, name, number, kernel):
    result = run(repository, name, number)

    assert result.stdout.split() == ["alive"]
    assert "ERROR: AddressSanitizer" in result.stderr
    assert f" in {kernel}" in result.stderr

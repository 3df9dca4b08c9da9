"""What a process needs that loads the emulation built with AddressSanitizer.

    env $(python -m tests.emulated_cuda.sanitizer) \\
        python -m pytest -p tests.emulated_cuda.plugin --emulated-variant asan …

A report ends the process: run pytest with `--capture=sys`, that it is seen.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.emulated_cuda.build import NoCompiler

# Leaks are Python's and torch's own business; memory that is not there is for the tests to see
OPTIONS = (
    "allocator_may_return_null=1",
    "detect_leaks=0",
    "alloc_dealloc_mismatch=0",
    "detect_odr_violation=0",
    "detect_stack_use_after_return=0",
)
# libstdc++ as well: without it libasan does not find the function that throws exceptions
PRELOADED = ("libasan.so", "libstdc++.so")


def environment() -> dict[str, str]:
    """The variables to set before Python starts.

    Raises:
        NoCompiler: There is no g++, or it has no AddressSanitizer.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise NoCompiler("g++ was not found, and AddressSanitizer is its")
    libraries = [_library(compiler, name) for name in PRELOADED]
    return {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": ":".join(OPTIONS)}


def _library(compiler: str, name: str) -> str:
    """Where the compiler has it; where it has none, it prints the bare name."""
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).exists():
        raise NoCompiler(f"this g++ has no {name}")
    return found


if __name__ == "__main__":
    try:
        print(" ".join(f"{name}={value}" for name, value in environment().items()))
    except NoCompiler as error:
        sys.exit(f"tests.emulated_cuda: {error}")

import os
import platform
import subprocess
import sys

import pytest

from mmoe.run import memory

# By its path: the package would bring torch along, and take seconds.
PROGRAM = """
import resource, runpy

if {keep}:
    runpy.run_path({path!r})["keep_freed_memory"]()

def step():
    return [b"1" * (size << 20) for size in (20, 20, 48)]

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# A small piece behind large ones would pin them in the heap
RETURNED = """
import runpy

if {give}:
    runpy.run_path({path!r})["return_freed_memory"]()

def resident():
    return int(open("/proc/self/statm").read().split()[1])

b"1" * (30 << 20)  # such pieces are in the heap from now on, by glibc's own rule
before = resident()
large = [b"1" * (8 << 20) for _ in range(10)]
small = b"1" * (1 << 10)
del large
print(resident() - before)
"""
only_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc is told anything"
)


def number_of(program, **variables):
    """What a program prints; the user's own settings of glibc are not its."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


@only_glibc
def test_a_step_finds_the_memory_of_the_last_one():
    def page_faults(keep, **variables):
        return number_of(PROGRAM.format(keep=keep, path=memory.__file__), **variables)

    assert page_faults(keep=True) < page_faults(keep=False) / 10
    # The user's own settings stand.
    assert page_faults(keep=True, MALLOC_TRIM_THRESHOLD_="0") > page_faults(keep=True) * 10


@only_glibc
def test_large_pieces_are_given_back():
    def pages(give, **variables):
        return number_of(RETURNED.format(give=give, path=memory.__file__), **variables)

    assert pages(give=True) < pages(give=False) / 10
    # The user's own settings stand
    assert pages(give=True, MALLOC_ARENA_MAX="4") > 1000

import os
import platform
import subprocess
import sys

import pytest

from mmoe.train import allocator as memory

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told anything")
def test_a_step_finds_the_memory_of_the_last_one():
    def page_faults(keep, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(keep=keep, path=memory.__file__)],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(result.stdout)

    assert page_faults(keep=True) < page_faults(keep=False) / 10
    # The user's own settings stand.
    assert page_faults(keep=True, MALLOC_TRIM_THRESHOLD_="0") > page_faults(keep=True) * 10

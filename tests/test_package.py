"""What importing the package does, and what it must not need."""

import os
import subprocess
import sys

import pytest

# GNU's OpenMP prints its settings when torch loads it.
SPINS = "import os, mmoe, torch; print(os.environ.get('GOMP_SPINCOUNT'))"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python code in a fresh process, without the OpenMP settings of this one."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "None"),
    ],
)
def test_threads_spin_for_a_short_time_only(variables, expected, repository, monkeypatch):
    monkeypatch.chdir(repository)
    done = run(SPINS, **variables, OMP_DISPLAY_ENV="VERBOSE")
    assert done.stdout.strip() == expected
    if expected != "None" and "GOMP_SPINCOUNT" in done.stderr:
        assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr


def test_importing_the_package_changes_nothing_else(repository, monkeypatch):
    monkeypatch.chdir(repository)
    code = "import os, sys\nbefore = dict(os.environ)\nimport mmoe\n"
    code += "print(sorted(set(os.environ.items()) ^ set(before.items())), 'torch' in sys.modules)"
    assert run(code).stdout.strip() == "[('GOMP_SPINCOUNT', '3000')] False"

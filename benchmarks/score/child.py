"""Processes that are measured: each does one thing, and its last line is what it found, as JSON."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.racing.ranks import environment

WITHIN_SECONDS = 1200.0


def run_child(
    command: Sequence[str],
    *,
    threads: int,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
) -> tuple[str, float]:
    """Runs a command to its end; returns what it printed, and its seconds from start to end.

    Args:
        command: The program and its arguments.
        threads: Of OpenMP, for a process that does not say so itself.
        cwd: Its folder.
        variables: Of its environment, beside ours.

    Raises:
        RuntimeError: It failed or took too long; the message ends with its last words.
    """
    started = time.perf_counter()
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**environment(threads), **(variables or {})},
            check=False,
            timeout=WITHIN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{_named(command)} took over {WITHIN_SECONDS:.0f} s") from None
    if finished.returncode:
        words = finished.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise RuntimeError(f"{_named(command)} failed: {words[0]}")
    return finished.stdout, time.perf_counter() - started


def ask_child(command: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The JSON of its last line, and `whole`, its seconds; arguments as of `run_child`."""
    printed, whole = run_child(command, **settings)
    return {**json.loads(printed.strip().splitlines()[-1]), "whole": whole}


def _named(command: Sequence[str]) -> str:
    return " ".join(word if len(word) < 80 else f"{word[:77]}..." for word in command)

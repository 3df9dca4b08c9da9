"""A full disk, a place that cannot be written, inputs that vanish or change while they are read."""

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.faults.commands import ROOT, one_thread
from benchmarks.faults.scored_kills import (
    FILES,
    ROWS,
    TIME_OUT_SECONDS,
    Scoring,
    contents,
    first_difference,
)
from benchmarks.faults.small_log import small_log

_LARGEST_FILE = 15_000  # bytes; a part of scores takes more


@dataclass(frozen=True)
class Fault:
    """What came of one; None where it is as it must be."""

    name: str
    wrong: str | None


def scored_faults(scoring: Scoring, folder: Path, say: Callable[[str], None]) -> list[Fault]:
    """Runs each fault once: one line, exit code 2, nothing published, and a resume mends it."""
    faults = []
    for name, make in _FAULTS.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        faults.append(Fault(name, make(scoring, place)))
        say(f"{name}: {faults[-1].wrong or 'as it must be'}")
    return faults


def _full_disk(scoring: Scoring, place: Path) -> str | None:
    limit = (_LARGEST_FILE, _LARGEST_FILE)
    ended = _run(scoring, place / "out", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    return _refused(ended, place / "out", "cannot be written") or _resumes(scoring, place / "out")


def _no_place(scoring: Scoring, place: Path) -> str | None:
    (place / "file").write_text("no folder")
    ended = _run(scoring, place / "file" / "out")
    return _refused(ended, place / "out", "is a file; name a folder that can be made")


def _vanished(scoring: Scoring, place: Path) -> str | None:
    scoring = _with_own_log(scoring, place)
    last = scoring.log / f"{FILES - 1}.parquet"
    ended = _run(scoring, place / "out", meanwhile=last.unlink)
    return _refused(ended, place / "out", str(last))


def _changed(scoring: Scoring, place: Path) -> str | None:
    scoring = _with_own_log(scoring, place)

    def change() -> None:
        pq.write_table(small_log(ROWS // FILES, seed=6), place / "other.parquet")
        (place / "other.parquet").replace(scoring.log / "0.parquet")

    ended = _run(scoring, place / "out", meanwhile=change)
    return _refused(ended, place / "out", "0.parquet")


def _with_own_log(scoring: Scoring, place: Path) -> Scoring:
    """With rows that may be spoilt."""
    shutil.copytree(scoring.log, place / "log")
    return replace(scoring, log=place / "log")


_FAULTS: dict[str, Callable[[Scoring, Path], str | None]] = {
    "full disk": _full_disk,
    "no place for a folder": _no_place,
    "an input vanishes": _vanished,
    "an input changes": _changed,
}


def _run(
    scoring: Scoring,
    out: Path,
    before: Callable[[], object] | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[int, str]:
    """Exit code and standard error; `meanwhile` is called when the first part is there."""
    command = [sys.executable, "-m", "mmoe", *map(str, scoring.arguments(out))]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=one_thread(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    if meanwhile is not None:
        while process.poll() is None and not any((out / "_staging").glob("*.parquet")):
            time.sleep(0.0005)
        meanwhile()
    _, said = process.communicate(timeout=TIME_OUT_SECONDS)
    return process.returncode, said


def _refused(ended: tuple[int, str], out: Path, words: str) -> str | None:
    code, said = ended
    lines = said.strip().splitlines()
    if code != 2 or len(lines) != 1 or words not in said:
        return f"exit code {code}: {said.strip()[-300:]}"
    seen = [n for n in contents(out) if not n.startswith("_staging/")] if out.exists() else []
    return f"published {', '.join(seen[:3])}" if seen else None


def _resumes(scoring: Scoring, out: Path) -> str | None:
    command = [*map(str, scoring.arguments(out)), "--resume"]
    done = subprocess.run(
        [sys.executable, "-m", "mmoe", *command],
        cwd=ROOT,
        env=one_thread(),
        capture_output=True,
        text=True,
        timeout=TIME_OUT_SECONDS,
    )
    if done.returncode != 0:
        return f"--resume ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    return first_difference(scoring.files, contents(out))

"""mmoe as it was before scoring was made fast: its sources and its own compiled operators."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.racing.races import NothingToMeasure
from benchmarks.racing.ranks import ROOT

COMMIT = "7da9e84"
BUILD = ("setup.py", "build_ext", "--inplace")


def earlier_mmoe(folder: Path, say: Callable[[str], None]) -> Path:
    """The folder of its sources, built unless an earlier run has; takes a minute or two.

    Args:
        folder: Where it is kept.
        say: Told of progress.

    Raises:
        NothingToMeasure: These sources come without their history.
        RuntimeError: It cannot be built.
    """
    place = folder / f"mmoe-{COMMIT}"
    if place.exists():
        return place
    if _git(ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}") is not None:
        raise NothingToMeasure(f"commit {COMMIT} is not in the history of {ROOT}")
    say(f"  building mmoe of commit {COMMIT}")
    partial = place.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    # Shares the objects: nothing is fetched, and no worktree is left behind in the history
    clone = _git(folder, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(partial))
    problem = clone or _git(partial, "checkout", "--quiet", COMMIT)
    if problem is not None:
        raise RuntimeError(f"commit {COMMIT}: {problem}")
    _build(partial)
    partial.rename(place)  # a killed run leaves no half build
    return place


def _build(folder: Path) -> None:
    built = subprocess.run(
        ["env", "MMOE_BUILD=cpu", sys.executable, *BUILD],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        words = built.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise RuntimeError(f"commit {COMMIT} cannot be built: {words[0]}")


def _git(folder: Path, *arguments: str) -> str | None:
    """What is wrong; None: nothing."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    return (done.stderr.strip() or "git failed") if done.returncode else None

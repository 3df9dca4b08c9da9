"""A log whose files are others than those that a run was trained on: rotated, edited, reordered."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.faults.inputs.draft import Expect, complains, error, right
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_log


@dataclass(frozen=True)
class _Harm:
    """What happens to the files, and the file that has to be named; none: the rows are the same."""

    change: Callable[[Path], object]
    named: str = ""
    same_rows: bool = False


def _remove(log: Path) -> None:
    (log / "part-1.parquet").unlink()


def _add(log: Path) -> None:
    pq.write_table(small_log(100, seed=77), log / "part-3.parquet")


def _rotate(log: Path) -> None:
    (log / "part-0.parquet").unlink()
    _add(log)


def _edit(log: Path) -> None:
    pq.write_table(pq.read_table(log / "part-1.parquet")[1:], log / "part-1.parquet")


def _reorder(log: Path) -> None:
    table = pq.read_table(log / "part-2.parquet")
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), log / "part-2.parquet")


def _swap(log: Path) -> None:
    (log / "part-0.parquet").rename(log / "held")
    (log / "part-2.parquet").rename(log / "part-0.parquet")
    (log / "held").rename(log / "part-2.parquet")


def _rename(log: Path) -> None:
    (log / "part-2.parquet").rename(log / "part-7.parquet")


def _touch(log: Path) -> None:
    for path in log.iterdir():
        os.utime(path, (1, 1))


_HARMS = (
    _Harm(_remove, "part-1.parquet was removed"),
    _Harm(_add, "part-3.parquet was added"),
    _Harm(_rotate, "part-0.parquet was removed"),
    _Harm(_edit, "part-1.parquet was changed"),
    _Harm(_reorder, "part-2.parquet was changed"),
    _Harm(_swap, "part-0.parquet now holds what part-2.parquet held"),
    _Harm(_rename, "part-2.parquet was renamed to part-7.parquet", same_rows=True),
    _Harm(_touch),
)


def rotated_log(
    draw: random.Random, space: Workspace, folder: Path
) -> tuple[str, Expect, list[str], Path]:
    """A run and its log are copied to another folder, and then the log changes.

    Returns:
        Name of the fault, what must come, the command, and the run directory.
    """
    log, run = folder / "log", folder / "out" / "run"
    how, harm = draw.choice(["memory", "stream"]), draw.choice(_HARMS)
    shutil.copytree(space.parts, log)
    shutil.copytree(space.run(f"parts-{how}"), run)
    config = run / "config.yaml"
    config.write_text(config.read_text("utf-8").replace(str(space.parts), str(log)), "utf-8")
    harm.change(log)
    name = f"{harm.change.__name__.lstrip('_')} ({how})"
    if draw.random() < 0.5:
        (run / "metrics.json").unlink()  # as if it had been killed
        resumes = ["train", "--out", str(run), "--resume", "--quiet"]
        return name, error(harm.named) if harm.named else right("none"), resumes, run
    evaluates = ["evaluate", str(run), "--json"]
    if not harm.named or harm.same_rows:
        return name, right("none"), [*evaluates, "--quiet"], run
    return name, complains("test rows may have been trained on", harm.named), evaluates, run

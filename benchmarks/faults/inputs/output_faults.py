"""Outputs that would take the place of inputs, of files of the run, or of what is not ours."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.faults.inputs.draft import Expect, error
from benchmarks.faults.small_log import small_log

Around = Callable[[], AbstractContextManager[Any]]


def output_case(
    run: Path, user: Path, draw: random.Random
) -> tuple[str, list[str], Expect, Around]:
    """A command whose output is taken: the fault, its arguments, what must come, and a watch.

    Args:
        run: A copy of a run.
        user: A folder to make, with files of the user's.
        draw: Of the case.
    """
    user.mkdir()
    for n in range(2):
        pq.write_table(small_log(20, seed=n), user / f"0000{n}-day.parquet")
    first = user / "00000-day.parquet"
    (user.parent / "linked").symlink_to(user)
    (user.parent / "linked.parquet").hardlink_to(first)
    model = next((run / "checkpoint").glob("step-*/model.safetensors"))
    score = ["score", str(run), "--input", draw.choice([str(user), f"{user}/*.parquet"])]
    foreign = user.parent / "foreign"
    foreign.mkdir()
    (foreign / draw.choice([".notes.tmp", "00000-x.parquet", "notes.txt"])).write_text("mine")
    faults = {
        "output_is_the_input_folder": [*score, "--output", str(user)],
        "output_links_to_the_input": [*score, "--output", str(user.parent / "linked")],
        "output_is_an_input": [*score, "--output", str(first)],
        "output_is_a_link_of_an_input": [*score, "--output", str(user.parent / "linked.parquet")],
        "output_holds_what_is_not_ours": [*score, "--output", str(foreign)],
        "output_is_of_the_run": [*score, "--output", str(next(run.glob("vocabulary/*.parquet")))],
        "output_is_the_checkpoint": ["unshard", str(run), "--output", str(model)],
        "output_is_the_metrics": ["report", str(run), "--output", str(run / "metrics.json")],
    }
    name = draw.choice(sorted(faults))
    return name, [*faults[name], "--overwrite"], error(), lambda: _unchanged(user.parent)


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Raises where a file below has changed, come or gone."""
    before = _tree(folder)
    yield
    after = _tree(folder)
    if before != after:
        changed = sorted({name for name, _ in before.items() ^ after.items()})
        raise RuntimeError(f"changed: {', '.join(changed)}")


def _tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(f.relative_to(folder)): sha256(f.read_bytes()).hexdigest() for f in files}

"""A scoring while it is drawn, and what all of them share: a run, rows, and scores of them."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.inputs.draft import Draft
from benchmarks.faults.inputs.in_process import run_in_process
from benchmarks.faults.inputs.workspace import Workspace
from benchmarks.faults.small_log import small_log

SCORED = ("--keep", "item", "--rows-per-file", "64")


class Scored(Workspace):
    """A workspace with scores, too: of the parts by each of two runs, and a single file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for how in ("memory", "stream"):
            if not self.scores(how).exists():
                score(self.run(how), self.parts, self.scores(how), *SCORED)
        if not self.one_file.exists():
            score(self.run("memory"), self.log, self.one_file)

    @property
    def one_file(self) -> Path:
        """A file of scores."""
        return self.folder / "one.parquet"

    def scores(self, how: str) -> Path:
        """A folder of scores of a run."""
        return self.folder / f"scores-{how}"


def score(run: Path, source: Path, out: Path, *options: str) -> None:
    """Scores clean rows, which succeeds."""
    arguments = ["score", str(run), "--input", str(source), "--output", str(out), "--quiet"]
    ended = run_in_process([*arguments, *options], 300.0)
    if ended.code != 0:
        raise RuntimeError(f"the clean scoring failed: {ended.stderr}")


@dataclass
class ScoreCase:
    """What a scoring is given; at first everything is as it should be.

    Attributes:
        draw: All that is random about the case.
        space: What is there before, for all cases; never written to.
        folder: Of the case.
        name: Of what was broken.
        run: That scores.
        source: What `--input` names.
        out: What `--output` names.
        options: All others.
        refused: Whether an error must come.
        wrong: Says what is wrong with scores whose true value is known.
    """

    draw: random.Random
    space: Scored
    folder: Path
    name: str = ""
    run: str = ""
    source: str = ""
    out: str = ""
    options: list[str] = field(default_factory=list)
    refused: bool = False
    wrong: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        self.run, self.source = str(self.space.run("memory")), str(self.space.parts)
        (self.folder / "out").mkdir(parents=True)
        self.out = str(self.place("scores"))

    @property
    def arguments(self) -> list[str]:
        """Of the command."""
        given = ["score", self.run, "--input", self.source, "--output", self.out]
        return [*given, "--quiet", *self.options]

    def place(self, name: str) -> Path:
        """A path beside all that is written."""
        return self.folder / "out" / name

    def into_any_place(self) -> None:
        """Draws where scores go: one file or a folder, with scores of before or without."""
        kind = self.draw.choice(["folder", "folder", "file", "there", "there", "file there"])
        if kind.startswith("file"):
            self.out = str(self.place("scores.parquet"))
        if kind == "file there":
            shutil.copyfile(self.space.one_file, self.out)
            self.options += ["--mode", "overwrite"]
        if kind == "there":
            self.with_scores("memory")
            self.options += ["--mode", self.draw.choice(["overwrite", "overwrite-partitions"])]
        elif kind == "folder" and self.draw.random() < 0.3:
            self.options += ["--rows-per-file", "64"]

    def with_scores(self, how: str) -> Path:
        """Puts scores of a run where the scores are to go."""
        shutil.copytree(self.space.scores(how), self.out)
        return Path(self.out)

    def differs_from(self, run: Path, rows: Path) -> str | None:
        """What is wrong with a file of scores, or with a folder of them, against rows in a file."""
        out = self.folder / "truth-scores.parquet"
        score(run, rows, out)
        found, wanted = pq.read_table(self.out), pq.read_table(out)
        same = found.select(wanted.column_names).equals(wanted)
        return None if same else "other scores than of the true rows"

    def draft(self, kind: str) -> Draft:
        """Rows of a file or three that are to be broken."""
        rows = small_log(260, seed=self.draw.randrange(5))
        cuts = [0, 260] if self.draw.random() < 0.3 else [0, 86, 173, 260]
        tables = [rows.slice(a, b - a) for a, b in pairwise(cuts)]
        return Draft(self.draw, "score", kind, tables, None, False, self.folder / "in")


def any_column(draw: random.Random, table: pa.Table) -> str:
    """One that the model reads, mostly."""
    return draw.choice(["user", "item", "history", "price", *table.column_names])

"""What every race gets: logs, trained runs, and scorings in turn."""

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.racing.products import ProductRates
from benchmarks.racing.ranks import ROOT, with_modules_of
from benchmarks.racing.times import Times, rotated
from benchmarks.score.child import ask_child, run_child
from benchmarks.train.configs import raw_config
from benchmarks.train.logs import Log, write_log
from benchmarks.train.workloads import BATCH, BIG_FLOPS_PER_ROW, WORKLOADS

# Forward alone; backward takes twice as many
FLOPS_PER_ROW = BIG_FLOPS_PER_ROW / 3
# Enough for weights and statistics of columns, which do not depend on how well it predicts
TRAINING_ROWS = 4 * BATCH
PROGRAM = Path(__file__).with_name("scoring.py")

Answer = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings, what has been made so far, the product rates seen, and progress.

    Attributes:
        folder: For logs and the build of an earlier mmoe, kept where the user names it.
        runs: For what is written while this one lasts.
        rows: To score.
        many: To score where what grows with the rows is to be seen.
        repeats: Scorings of each contestant.
        threads: Of a process that has all cores.
        engines: Interpreter of the environment with Ray and Spark.
        table_bytes: Of all embedding tables together, on Spark.
        wanted: Keys.
        rates: Of products.
        say: Told of progress.
        skipped: Why keys have no value although their race has run.
    """

    folder: Path
    runs: Path
    rows: int
    many: int
    repeats: int
    threads: int
    engines: Path
    table_bytes: float
    wanted: Collection[str]
    rates: ProductRates
    say: Callable[[str], None]
    skipped: dict[str, str] = field(default_factory=dict)
    _trained: dict[tuple[str, Path], Path] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def log(self, rows: int) -> Log:
        """Rows of `big`, written when first asked for; the first of many are those of few."""
        self.say(f"  log of big, {rows:,} rows")
        return write_log(WORKLOADS["big"], rows, self.folder, held_out=TRAINING_ROWS)

    def new(self, name: str = "") -> Path:
        """A path that nobody has used."""
        return self.runs / f"{next(self._numbers)}{name}"

    def config(self, precision: str) -> dict[str, Any]:
        """`big`, one epoch of a few rows; batches of scoring are as high as they are by default."""
        raw = raw_config(self.log(TRAINING_ROWS), precision=precision, epochs=1)
        del raw["training"]["eval_batch_size"]
        return raw

    def trained(self, precision: str, tree: Path = ROOT) -> Path:
        """A run of `big`, trained by the mmoe in `tree` when first asked for."""
        key = precision, tree
        if key not in self._trained:
            self.say(f"  training {precision} with {'mmoe' if tree == ROOT else tree.name}")
            self._trained[key] = self.train(self.config(precision), tree)
        return self._trained[key]

    def train(self, raw: Mapping[str, Any], tree: Path = ROOT) -> Path:
        """`mmoe train` of a config; returns its folder."""
        config, out = self.new(".yaml"), self.new()
        config.write_text(json.dumps(raw), encoding="utf-8")
        command = [sys.executable, "-m", "mmoe", "train", str(config), "--out", str(out), "--quiet"]
        run_child(command, threads=self.threads, cwd=tree)
        return out

    def score(
        self,
        precision: str,
        source: Path,
        *,
        tree: Path = ROOT,
        threads: int = 0,
        cores: Sequence[int] = (),
    ) -> Answer:
        """One scoring into one Parquet file, in a process of its own; `scoring.py` says what comes.

        Args:
            precision: Of the run.
            source: What is scored.
            tree: Of the mmoe that does it.
            threads: Of the process; 0: as many as it has by default here.
            cores: On which it stays; none: all.
        """
        output = self.new(".parquet")
        asked = {
            "run": str(self.trained(precision, tree)),
            "source": str(source),
            "output": str(output),
            "cores": list(cores),
        }
        found = ask_child(
            [sys.executable, "-P", str(PROGRAM), json.dumps(asked)],
            threads=threads or self.threads,
            cwd=self.runs,
            variables=with_modules_of(tree),
        )
        output.unlink()
        if Path(found["mmoe"]) != tree / "mmoe":
            raise RuntimeError(f"{found['mmoe']} has scored, instead of {tree / 'mmoe'}")
        return found

    def in_turns(
        self, calls: Mapping[str, Callable[[], Answer]], rounds: int
    ) -> dict[str, list[Answer]]:
        """Calls each so many times, in another order every round; products are timed in between."""
        answers: dict[str, list[Answer]] = {name: [] for name in calls}
        self.rates.measure()
        for turn in range(rounds):
            for name in rotated(list(calls), turn):
                answers[name].append(calls[name]())
                self.say(f"  {turn + 1}/{rounds} {name}: {rows_per_second(answers[name][-1])}")
            self.rates.measure()
        return answers

    def remove(self, folder: Path) -> None:
        """Of what is not needed any more."""
        shutil.rmtree(folder, ignore_errors=True)


def times_of(answers: Mapping[str, Sequence[Answer]], what: str = "seconds") -> Times:
    """Seconds of `BATCH` rows, round by round."""
    return Times({name: [a[what] / a["rows"] * BATCH for a in of] for name, of in answers.items()})


def flops_per_second(answers: Sequence[Answer]) -> list[float]:
    """Of the products that the rows took, round by round."""
    return [a["rows"] * FLOPS_PER_ROW / a["seconds"] for a in answers]


def rows_per_second(answer: Answer) -> str:
    """For people."""
    return f"{answer['rows'] / answer['seconds']:,.0f} rows/s"

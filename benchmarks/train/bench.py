"""What every race gets."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.racing.products import ProductRates
from benchmarks.racing.ranks import Seat
from benchmarks.racing.times import Times, rotated
from benchmarks.train.logs import Log, write_log
from benchmarks.train.processes import Contestant, contestants
from benchmarks.train.spec import Spec
from benchmarks.train.workloads import BATCH, WORKLOADS

FEWEST_ROUNDS, WANTED_ROUNDS, MOST_ROUNDS = 5, 8, 60
# Before each window, not counted: enough to use up what a contestant has read ahead
SETTLING_STEPS = 4
PILOT_STEPS = 2
ROUNDS_BETWEEN_RATES = 5


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings, the product rates seen so far, and progress.

    Attributes:
        folder: For logs, kept between runs where the user names it.
        runs: For what is written while this one lasts.
        rows: Of `big`.
        seconds: Of one race.
        seeds: Of `auc_gap`.
        threads: Of every process.
        overrides: `key.path=value` for our config.
        rates: Of products.
        say: Told of progress.
    """

    folder: Path
    runs: Path
    rows: int
    seconds: float
    seeds: int
    threads: int
    overrides: tuple[str, ...]
    rates: ProductRates
    say: Callable[[str], None]
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def log(self, workload: str, rows: int | None = None) -> Log:
        """The rows of a workload, written when first asked for."""
        self.say(f"  log of {workload}, {rows or self.rows:,} rows")
        return write_log(WORKLOADS[workload], rows or self.rows, self.folder, held_out=self.rows)

    def empty_folder(self) -> Path:
        """A name nobody has used."""
        return self.runs / f"{next(self._numbers)}"

    def spec(self, kind: str, workload: str, precision: str, **settings) -> Spec:
        """A contestant."""
        log = self.log(workload)
        return Spec(
            kind=kind,
            workload=workload,
            folder=str(log.folder),
            rows=log.rows,
            precision=precision,
            threads=self.threads,
            out=str(self.empty_folder()),
            overrides=self.overrides if kind == "mmoe" else (),
            **settings,
        )

    def race(
        self,
        specs: Mapping[str, Spec],
        *,
        pythons: Mapping[str, str] | None = None,
        seats: Sequence[Seat] | None = None,
        before: Callable[[Mapping[str, Contestant]], None] = lambda _: None,
        after: Callable[[Mapping[str, Contestant]], None] = lambda _: None,
    ) -> Times:
        """Seconds of a batch of `BATCH` rows, window by window, the contestants in turn.

        Args:
            specs: Contestants.
            pythons: Interpreters of those that have one of their own.
            seats: Where the ranks of each of them run; None: here.
            before: Called with the processes before the race.
            after: Called with the processes when the race is over.
        """
        self.rates.measure()
        with contestants(specs, pythons, seats) as running:
            self.say(f"  {', '.join(running)}: ready")
            before(running)
            steps = self._steps(running)
            times = self._rounds(running, steps)
            shown = ", ".join(f"{name} {count}" for name, count in steps.items())
            self.say(f"  {times.rounds} rounds; steps of a window: {shown}")
            after(running)
        self.rates.measure()
        return times

    def _rounds(self, running: Mapping[str, Contestant], steps: Mapping[str, int]) -> Times:
        seconds: dict[str, list[float]] = {name: [] for name in running}
        started = time.perf_counter()
        for turn in range(MOST_ROUNDS):
            for name in rotated(list(running), turn):
                seconds[name].append(window(running[name], steps[name]))
            if turn + 1 >= FEWEST_ROUNDS and time.perf_counter() - started > self.seconds:
                break
            if turn % ROUNDS_BETWEEN_RATES == 0:
                self.rates.measure()
        return Times(seconds)

    def _steps(self, running: Mapping[str, Contestant]) -> dict[str, int]:
        """Steps of a window: fewer where the race would be over before it had enough rounds."""
        steps = {n: c.spec.steps or c.spec.sizes.steps for n, c in running.items()}
        one_round = sum(
            window(contestant, PILOT_STEPS) * (steps[name] + SETTLING_STEPS)
            for name, contestant in running.items()
        )
        share = min(1.0, self.seconds / WANTED_ROUNDS / max(one_round, 1e-9))
        return {name: max(PILOT_STEPS, int(count * share)) for name, count in steps.items()}


def window(contestant: Contestant, steps: int) -> float:
    """Seconds of a batch of `BATCH` rows, of which every rank is done."""
    settle = min(SETTLING_STEPS, steps)
    answers = contestant.ask_all("run", rows=steps * BATCH, settle=settle * BATCH)
    # Ranks share every batch: a step is done when the last of them is
    return max(answer["seconds"] for answer in answers) / answers[0]["rows"] * BATCH

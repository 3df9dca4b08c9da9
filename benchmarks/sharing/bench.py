"""What every race gets."""

from dataclasses import dataclass

from benchmarks.racing.clock import Clock


@dataclass(frozen=True)
class Bench:
    """The clock, and how much to train.

    Attributes:
        clock: For times, and told of progress.
        seeds: Of trainings that are compared.
        rows: Of a log, test rows among them.
    """

    clock: Clock
    seeds: int = 10
    rows: int = 40_000

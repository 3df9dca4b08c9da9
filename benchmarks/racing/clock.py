"""Runs contestants in turn in one process, or in all ranks of a world."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from benchmarks.racing.times import Times, rotated

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long, and on what, contestants run.

    Attributes:
        device: cpu or cuda.
        rounds: Rounds of every race; None: as many as fit into its time.
        seconds: Time of one race.
        say: Told of progress.
    """

    device: str
    rounds: int | None
    seconds: float
    say: Callable[[str], None] = field(default=lambda _: None)

    def race(
        self,
        name: str,
        calls: Mapping[str, Callable[[], object]],
        *,
        share: float = 1.0,
    ) -> Times:
        """Runs the contestants in turn, in another order every round.

        Args:
            name: Of the race, for progress.
            calls: Contestants.
            share: Of the time of one race.
        """
        one_round = 0.0
        for _ in range(1 if self.rounds == 1 else WARM_UP_ROUNDS):
            one_round = sum(self.time(call) for call in calls.values())
        rounds = self.rounds or max(
            FEWEST_ROUNDS, min(MOST_ROUNDS, int(self.seconds * share / max(one_round, 1e-6)))
        )
        self.say(f"  {name}: {rounds} rounds of {one_round:.3f} s")
        seconds: dict[str, list[float]] = {key: [] for key in calls}
        for turn in range(rounds):
            for key in rotated(list(calls), turn):
                seconds[key].append(self.time(calls[key]))
        return Times(seconds)

    def time(self, call: Callable[[], object]) -> float:
        """Seconds of one call, with what it left running on the device."""
        self._wait()
        started = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class RankClock(Clock):
    """All ranks begin together, and a call lasts until the last of them is done."""

    def time(self, call: Callable[[], object]) -> float:
        """Seconds, the same on every rank."""
        return time_on_all_ranks(call)


def time_on_all_ranks(call: Callable[[], object]) -> float:
    """Seconds until the last rank is done, the same on every rank; all begin together."""
    dist.barrier()
    started = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)

"""A rank that runs layers: `python -m benchmarks.parallel.layer_rank NOTHING` (see `Ranks`)."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.mixture.layers import Contestant, GivenLogits, Workload, check_equal, ours
from benchmarks.parallel.layers import SpreadWork, count_bytes
from benchmarks.racing.child import answer_commands, private_stdout
from benchmarks.racing.harness import RankClock
from mmoe.parallel import ensure_process_group, rank, world_size
from mmoe.parallel.launch.cores import bind_to_own_cores

# Seconds that a rank waits for another; a race of layers takes less
PATIENCE = 240


def main() -> None:
    """Answers commands until there are no more."""
    answers = private_stdout()
    torch.set_num_threads(1)
    ensure_process_group(PATIENCE)
    bind_to_own_cores(True)
    answer_commands(JOBS, answers)


def race_dispatches(*, seconds: float, shared: float, **sizes: Any) -> dict[str, Any]:
    """One dispatch for all gates beside one for each; seconds of every round."""
    work = _work(sizes)
    spread = SpreadWork(work, world_size(), rank(), shared)
    one, each = spread.all_gates_at_once(), spread.one_dispatch_per_gate()
    check_equal("gates over ranks", {"one": one, "each": each}, work.tolerance)
    return _race("dispatches", {"one": one, "each": each}, seconds)


def race_growth(*, seconds: float, **sizes: Any) -> dict[str, Any]:
    """A layer on the first rank alone, beside one of W times the experts and rows on all."""
    work = _work(sizes)
    spread = SpreadWork(replace(work, E=work.E * world_size()), world_size(), rank())
    alone = SpreadWork(work, 1, 0)
    assert work.k is not None
    gate = GivenLogits(alone.all_logits(), work.k)
    contestants = {"many": spread.all_gates_at_once(), "one": ours(work, alone.values(), gate=gate)}
    return _race("growth", contestants, seconds, alone=("one",))


def _race(
    name: str, contestants: dict[str, Contestant], seconds: float, alone: tuple[str, ...] = ()
) -> dict[str, Any]:
    calls = {
        who: contestant.step if who not in alone or rank() == 0 else _nothing
        for who, contestant in contestants.items()
    }
    clock = RankClock(device="cpu", rounds=None, seconds=seconds)
    return asdict(clock.race(name, calls))


def _nothing() -> None:
    """What a rank does while another works."""


def _work(sizes: dict[str, Any]) -> Workload:
    return Workload(**{**sizes, "hidden": tuple(sizes["hidden"])})


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "bytes": count_bytes,
    "dispatches": race_dispatches,
    "growth": race_growth,
}


if __name__ == "__main__":
    main()

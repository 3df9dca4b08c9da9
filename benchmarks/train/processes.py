"""Contestants as processes of their own, of which, in a race, one runs at a time.

Each has its own allocator, threads and caches of compiled products, as it would in real life; all
others wait for their next command meanwhile. One that trains over several ranks is as many
processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.racing.ranks import Ranks, Seat
from benchmarks.train.spec import Spec


class Contestant(Ranks):
    """The process, or processes, of one contestant.

    Args:
        spec: Which one.
        python: Its interpreter; None: this one.
        seats: Where its ranks run; None: here.
    """

    def __init__(
        self, spec: Spec, python: str | None = None, seats: Sequence[Seat] | None = None
    ) -> None:
        self.spec = spec
        super().__init__(
            f"{spec.kind} on {spec.workload} in {spec.precision}",
            "benchmarks.train.worker",
            spec.to_json(),
            ranks=spec.ranks,
            threads=spec.threads,
            python=python,
            seats=seats,
        )


@contextmanager
def contestants(
    specs: Mapping[str, Spec],
    pythons: Mapping[str, str] | None = None,
    seats: Sequence[Seat] | None = None,
) -> Iterator[dict[str, Contestant]]:
    """Starts all of them, and comes back when each has done its first step."""
    with ExitStack() as stack:
        started = {}
        for name, spec in specs.items():
            started[name] = Contestant(spec, (pythons or {}).get(name), seats)
            stack.callback(started[name].close)
        for contestant in started.values():
            contestant.wait_until_ready()
        yield started

"""What every race gets, and what a race is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.mixture.race import Contestant, check_equal
from benchmarks.racing.clock import Clock
from benchmarks.racing.products import ProductRates
from benchmarks.racing.results import Result
from benchmarks.racing.times import Times


@dataclass(frozen=True)
class Bench:
    """The clock, the product rates seen so far, and progress."""

    clock: Clock
    rates: ProductRates

    @property
    def device(self) -> str:
        """What everything runs on: cpu or cuda."""
        return self.clock.device

    def compare(
        self,
        name: str,
        contestants: Mapping[str, Contestant],
        tolerance: float,
        *,
        share: float = 1.0,
    ) -> Times:
        """Checks that all compute the same, then races them."""
        check_equal(name, contestants, tolerance)
        return self.clock.race(name, {key: c.step for key, c in contestants.items()}, share=share)


@dataclass(frozen=True)
class Race:
    """One race and the keys that come out of it."""

    keys: tuple[str, ...]
    run: Callable[[Bench], list[Result]]

"""Paired times of contestants that run in turn, and what is made of them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median and 10–90 % range of paired values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value a round."""
        ordered = sorted(values)
        low, high = _quantile(ordered, 0.1), _quantile(ordered, 0.9)
        return cls(statistics.median(ordered), low, high, len(ordered))

    def times(self, factor: float) -> "Spread":
        """In another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)


@dataclass(frozen=True)
class Times:
    """Seconds of every contestant, round by round; round i of all of them belongs together."""

    seconds: Mapping[str, list[float]]

    @property
    def rounds(self) -> int:
        """How many there were."""
        return min(map(len, self.seconds.values()), default=0)

    def median(self, name: str) -> float:
        """Seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, other: str, ours: str) -> Spread:
        """How many times as long `other` takes."""
        pairs = zip(self.seconds[other], self.seconds[ours], strict=True)
        return Spread.of([theirs / own for theirs, own in pairs])

    def fastest(self, names: Sequence[str]) -> str:
        """The one of these contestants with the smallest median."""
        return min(names, key=self.median)

    def then(self, more: "Times") -> "Times":
        """Rounds of the same contestants on other data, as one series."""
        return Times({name: [*self.seconds[name], *more.seconds[name]] for name in self.seconds})


def rotated(names: Sequence[str], turn: int) -> Iterator[str]:
    """Every contestant follows every other one in turn: neighbours leave caches behind."""
    start = turn % len(names)
    order = [*names[start:], *names[:start]]
    yield from reversed(order) if turn // len(names) % 2 else order


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

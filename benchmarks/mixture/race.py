"""Contestants that run in turn in one process, and the paired ratios of their times."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

WARM_UP_ROUNDS = 2
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60
INPUT_GRADIENT = "the input gradient"
# Rounding moves a sum or two across ReLU's kink, where the gradient jumps and the output does not.
KINKS = 1e-2


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One training step: forward, backward, and the gradients thrown away, as optimizers do.

    Attributes:
        forward: Builds the outputs, `[B, gates, O]` each.
        grads: The gradient of each output.
        leaves: Everything that gets a gradient; the first one is the input.
        weights: Those of the leaves whose gradients are compared between contestants.
        around: What the forward pass runs under (autocast).
        outside: What the whole step runs under (another product backend).
    """

    forward: Callable[[], Sequence[Tensor]]
    grads: Sequence[Tensor]
    leaves: Sequence[Tensor]
    weights: Sequence[Tensor]
    around: Callable[[], AbstractContextManager] = nullcontext
    outside: Callable[[], AbstractContextManager] = nullcontext

    def run(self) -> list[Tensor]:
        """Forward and backward; the leaves keep their gradients."""
        with self.outside():
            with self.around():
                outputs = list(self.forward())
            torch.autograd.backward(outputs, list(self.grads))
        return outputs

    def step(self) -> None:
        """What is timed."""
        self.run()
        for leaf in self.leaves:
            leaf.grad = None


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
        most: int = MOST_ROUNDS,
    ) -> Times:
        """Runs the contestants in turn, in another order every round.

        Args:
            name: Of the race, for progress.
            calls: Contestants.
            share: Of the time of one race.
            most: Upper limit of rounds.
        """
        one_round = 0.0
        for _ in range(1 if self.rounds == 1 else WARM_UP_ROUNDS):
            one_round = sum(self.time(call) for call in calls.values())
        rounds = self.rounds or max(
            FEWEST_ROUNDS, min(most, int(self.seconds * share / max(one_round, 1e-6)))
        )
        self.say(f"  {name}: {rounds} rounds of {one_round:.3f} s")
        seconds: dict[str, list[float]] = {key: [] for key in calls}
        for turn in range(rounds):
            for key in _rotated(list(calls), turn):
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


def check_equal(name: str, contestants: Mapping[str, Contestant], tolerance: float) -> None:
    """Refuses to compare different mathematics: outputs, input gradient, norm of the weights'.

    Raises:
        ValueError: A contestant's numbers are not those of the first one.
    """
    wanted: dict[str, Tensor] = {}
    for who, contestant in contestants.items():
        found = _signature(contestant)
        wanted = wanted or found
        for what, value in found.items():
            error = _relative_error(value, wanted[what])
            allowed = tolerance + (KINKS if what == INPUT_GRADIENT else 0)
            if not error <= allowed:
                raise ValueError(
                    f"{name}: expected {what} of {who!r} within {allowed:g} of "
                    f"{next(iter(contestants))!r}, got a relative error of {error:.3g}; the "
                    "contestants do not compute the same thing"
                )


def _signature(contestant: Contestant) -> dict[str, Tensor]:
    outputs = torch.cat([y.detach().double() for y in contestant.run()], dim=1)
    input_grad = contestant.leaves[0].grad
    assert input_grad is not None
    # Layouts differ between contestants; the norm over all weights does not.
    squares = [w.grad.double().square().sum() for w in contestant.weights if w.grad is not None]
    signature = {
        "the output": outputs.flatten(),
        INPUT_GRADIENT: input_grad.double().flatten(),
        "the norm of the weights' gradients": torch.stack(squares).sum().sqrt().reshape(1),
    }
    for leaf in contestant.leaves:
        leaf.grad = None
    return signature


def _relative_error(value: Tensor, wanted: Tensor) -> float:
    if value.shape != wanted.shape:
        return math.inf
    return float((value - wanted).norm() / wanted.norm().clamp_min(1e-30))


def _rotated(names: list[str], turn: int) -> Iterator[str]:
    """Every contestant follows every other one in turn: neighbours leave caches behind."""
    start = turn % len(names)
    order = names[start:] + names[:start]
    yield from reversed(order) if turn // len(names) % 2 else order


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

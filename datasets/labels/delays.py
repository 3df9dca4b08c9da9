"""How long events take to come: the share of them that has come by an age."""

from dataclasses import dataclass

import numpy as np

STEPS = 2048
"""Steps that a window is cut into: counts of them are exact in chunks of any size."""
# Below, what a fit says of the rarest delays is chance
_FEWEST = 20
# A row's event counts 1/F times; beyond five, a single row would say too much
LEAST_SHARE = 0.2


@dataclass(frozen=True)
class DelayCurve:
    """F, the share of a window's events that comes within each of its steps, or before.

    Attributes:
        window: Microseconds.
        shares_J: float64, ascending to 1.
    """

    window: int
    shares_J: np.ndarray

    def at(self, ages_N: np.ndarray) -> np.ndarray:
        """Returns F(age), float64 [N]: 0 before the row, 1 from the window's end on."""
        steps_N = step_of(ages_N, self.window)
        return np.where(steps_N < 0, 0.0, self.shares_J[np.clip(steps_N, 0, STEPS - 1)])


def step_of(micros_N: np.ndarray, window: int) -> np.ndarray:
    """Returns the step of each delay or age: negative before 0, `STEPS` beyond the window."""
    width = max(-(-window // STEPS), 1)  # rounded up, so that the steps reach the window's end
    return np.where(micros_N > window, STEPS, np.minimum(micros_N // width, STEPS - 1))


class DelayFit:
    """Estimates a `DelayCurve` from the events that have come, chunk by chunk.

    Young rows show short delays only, so delays are truncated: one of d is seen where the row's age
    a is d or more. The product-limit estimator for that, Kaplan–Meier's with time run backwards, is
    `F(j) = Π_{k>j} (1 − n_k / #{i: d_i ≤ k ≤ a_i})` with n_k events at step k. It takes rows with
    an event alone, so it asks nothing of how often events come; only that their delay has nothing
    to do with when the row happened.

    Source: Lagakos, Barraj and De Gruttola, "Nonparametric analysis of truncated survival data,
        with application to AIDS" (Biometrika 75, 1988), section 3.

    Args:
        window: Microseconds; later events do not count.

    Example:
        >>> fit = DelayFit(window=4_000)
        >>> old, young = np.full(40, 9_000), np.full(10, 1_000)
        >>> fit.add(np.array([500] * 20 + [3_000] * 20), old)
        >>> fit.add(np.full(10, 500), young)  # say nothing of how many come later
        >>> round(float(fit.finish("log.csv", "buy").at(np.array([1_000]))[0]), 3)
        0.5
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.events_J = np.zeros(STEPS, np.int64)
        self.leaving_J = np.zeros(STEPS + 1, np.int64)  # by the last step that their row sees

    def add(self, delays_P: np.ndarray, ages_P: np.ndarray) -> None:
        """Counts more events: their delays and the ages of their rows, microseconds."""
        delays, ages = step_of(delays_P, self.window), step_of(ages_P, self.window)
        mine = delays < STEPS
        self.events_J += np.bincount(delays[mine], minlength=STEPS)
        last = np.where(ages_P >= self.window, STEPS, ages)
        self.leaving_J += np.bincount(last[mine], minlength=STEPS + 1)

    @property
    def is_enough(self) -> bool:
        """Whether so many rows with an event are as old as the window that `finish` answers."""
        return int(self.leaving_J[STEPS]) >= _FEWEST

    def finish(self, origin: str, task: str) -> DelayCurve:
        """Returns the estimate.

        Raises:
            ValueError: Too few rows with an event are as old as the window.
        """
        if not self.is_enough:
            grown = int(self.leaving_J[STEPS])
            raise ValueError(
                f"{origin}: task {task!r}: immature is weight, but only {grown} training rows that "
                f"are older than matures_after have an event, and {_FEWEST} are needed to tell how "
                "long events take; give more rows, shorten matures_after, or set immature: mask"
            )
        left_J = np.concatenate([[0], np.cumsum(self.leaving_J)[: STEPS - 1]])
        at_risk_J = np.cumsum(self.events_J) - left_J
        stays_J = 1 - self.events_J / np.maximum(at_risk_J, 1)
        shares_J = np.ones(STEPS)
        shares_J[:-1] = np.cumprod(stays_J[:0:-1])[::-1]
        return DelayCurve(self.window, shares_J)

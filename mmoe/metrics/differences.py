"""Differences of two models on the same rows, with their intervals."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

_CONFIDENCE = 0.95
_FEW_SEEDS = 4  # below them, t would be 4 to 13 standard errors: nothing could be told


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean difference, and how sure it is.

    Attributes:
        value: Mean over the seeds.
        low: Lower end of the interval; None: there is nothing to tell it from.
        high: Upper end.
        row_error: Standard error by the test rows; None for a metric that has none.
        seed_error: Standard error by the seeds; None where there is one.
        degrees: Of freedom; None: infinitely many, or too few seeds to say.
    """

    value: float
    low: float | None
    high: float | None
    row_error: float | None
    seed_error: float | None
    degrees: float | None

    def verdict(self, *, higher_is_better: bool) -> str:
        """Returns gains or pays where the interval leaves 0 out, else even."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "even"
        return "gains" if (self.low > 0) == higher_is_better else "pays"


def paired_difference(
    own_S: np.ndarray,
    other_S: np.ndarray,
    own_terms_N: np.ndarray | None,
    other_terms_N: np.ndarray | None,
) -> Difference:
    """Computes the mean difference of two models on the same test rows, with its interval.

    `Var = Σ_rows (a − b)² + Var_seeds(d) / S`: the terms a and b of each row
    (`mmoe.metrics.row_terms`) are averaged over the seeds first, as the metric is, so the noise of
    the rows, which all seeds share, is not averaged away. A metric with terms has the normal
    quantile where there are fewer than four seeds.

    Args:
        own_S: The metric, seed by seed; one value of a model that has no seeds.
        other_S: Of the model that it is compared with, likewise.
        own_terms_N: Terms of the test rows; None: the metric has none.
        other_terms_N: Likewise.

    Example:
        >>> found = paired_difference(np.array([0.81, 0.83]), np.array([0.80, 0.80]), None, None)
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.degrees
        (0.02, -0.107, 0.147, 1.0)
    """
    differences_S = own_S - other_S
    count, value = len(differences_S), float(differences_S.mean())
    rows = None
    if own_terms_N is not None and other_terms_N is not None:
        rows = float(((own_terms_N - other_terms_N) ** 2).sum())
    seeds = float(differences_S.var(ddof=1)) / count if count > 1 else None
    total = (rows or 0.0) + (seeds or 0.0)
    low = high = degrees = None
    if rows is not None or seeds is not None:
        few = rows is not None and count < _FEW_SEEDS
        degrees = total**2 / seeds**2 * (count - 1) if seeds and not few else None
        share = 0.5 + _CONFIDENCE / 2
        quantile = ndtri(share) if degrees is None else stdtrit(degrees, share)
        reach = float(quantile) * total**0.5
        low, high = value - reach, value + reach
    return Difference(
        value=value,
        low=low,
        high=high,
        row_error=None if rows is None else rows**0.5,
        seed_error=None if seeds is None else seeds**0.5,
        degrees=degrees,
    )

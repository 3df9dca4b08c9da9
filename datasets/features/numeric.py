"""Numbers: logarithm, scaling, quantile buckets."""

from dataclasses import dataclass

import numpy as np

from mmoe.config import NumericFeature
from mmoe.datasets.features.fit_numbers import Moments, Quantiles
from mmoe.datasets.features.vocabulary import FIRST_KNOWN, MISSING

# Values that quantiles are taken of: then a rank is off by 0.1 % of the rows (standard deviation)
LARGEST_SAMPLE = 1 << 18
# float32 products of this and ordinary weights stay finite through a network.
_LIMIT = 1e9


@dataclass(frozen=True, kw_only=True)
class NumericRule:
    """How one numeric column becomes a network input and, if asked, a bucket id.

    scaled = (f(x) − mean) / deviation, with f(x) = sign(x)·log(1 + |x|) or x; a missing value
    becomes 0, which is the mean.
    """

    log: bool
    mean: float
    deviation: float
    edges: tuple[float, ...] = ()  # ascending; bucket i holds edges[i − 1] < x ≤ edges[i]

    @classmethod
    def fit(cls, feature: NumericFeature, numbers_N: np.ndarray) -> "NumericRule":
        """Mean, deviation and bucket edges of the training values.

        Args:
            feature: log, standardise, buckets.
            numbers_N: float64 [N], NaN where missing.

        Example:
            >>> rule = NumericRule.fit(
            ...     NumericFeature(name="x", buckets=2), np.array([1.0, 2.0, 3.0, np.nan])
            ... )
            >>> rule.mean, rule.edges
            (2.0, (2.0,))
        """
        fit = NumberFit(feature)
        fit.add(numbers_N)
        return fit.finish()

    @property
    def num_rows(self) -> int:
        """Rows of the bucket table: missing, unseen (unused), and a row a bucket."""
        return FIRST_KNOWN + len(self.edges) + 1

    def scale(self, numbers_N: np.ndarray) -> np.ndarray:
        """float32 [N], finite."""
        with np.errstate(over="ignore"):  # to infinity, which is clipped below
            scaled_N = (_transform(numbers_N, self.log) - self.mean) / self.deviation
        missing_N = np.isnan(scaled_N)
        if missing_N.any():
            scaled_N[missing_N] = 0.0
        return np.clip(scaled_N, -_LIMIT, _LIMIT, out=scaled_N).astype(np.float32)

    def bucket(self, numbers_N: np.ndarray) -> np.ndarray:
        """int32 [N]: 0 where missing, else 2 + number of edges below x."""
        ids_N = np.searchsorted(np.array(self.edges), numbers_N, side="left").astype(np.int32)
        ids_N += FIRST_KNOWN
        ids_N[np.isnan(numbers_N)] = MISSING
        return ids_N


def _transform(numbers_N: np.ndarray, log: bool) -> np.ndarray:
    return np.copysign(np.log1p(np.abs(numbers_N)), numbers_N) if log else numbers_N


class NumberFit:
    """Fits a rule chunk by chunk.

    Args:
        feature: log, standardise, buckets.
        sample: Values that quantiles are taken of; exact up to so many, a uniform sample beyond.
    """

    def __init__(self, feature: NumericFeature, sample: int = LARGEST_SAMPLE) -> None:
        self.feature = feature
        self.moments = Moments()
        self.quantiles = Quantiles(sample, feature.buckets)

    def add(self, numbers_N: np.ndarray) -> None:
        """More training rows: float64 [N], NaN where missing."""
        present = numbers_N[~np.isnan(numbers_N)]
        if self.feature.standardise:
            self.moments.add(_transform(present, self.feature.log))
        if self.feature.buckets:
            self.quantiles.add(present)

    def finish(self) -> NumericRule:
        """The rule of all rows."""
        feature = self.feature
        mean, deviation = self.moments.finish()
        edges = self.quantiles.edges(feature.buckets) if feature.buckets else ()
        return NumericRule(log=feature.log, mean=mean, deviation=deviation, edges=edges)

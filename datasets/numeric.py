"""Numbers: logarithm, scaling, quantile buckets."""

from dataclasses import dataclass

import numpy as np

from mmoe.config import NumericFeature
from mmoe.datasets.vocabulary import FIRST_KNOWN, MISSING

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
        present = numbers_N[~np.isnan(numbers_N)]
        mean, deviation = 0.0, 1.0
        if feature.standardise and len(present):
            mean, deviation = _moments(_transform(present, feature.log))
        edges = _edges(present, feature.buckets) if feature.buckets else ()
        return cls(log=feature.log, mean=mean, deviation=deviation, edges=edges)

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


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation; values near the float64 limit do not overflow, a constant gets 1."""
    size = float(np.abs(values).max()) or 1.0
    unit = values / size
    mean = float(unit.mean())
    deviation = float(unit.std())
    # A constant column's deviation is rounding noise; dividing by it would blow noise up.
    constant = float(values.min()) == float(values.max())
    return mean * size, 1.0 if constant or deviation == 0 else deviation * size


def _edges(present: np.ndarray, buckets: int) -> tuple[float, ...]:
    """Upper edges of all buckets but the last: quantiles, or each value where they are few."""
    if not len(present):
        return ()
    ordered = np.sort(present)
    first_of_its_kind = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    if len(first_of_its_kind) <= buckets:
        return tuple(ordered[first_of_its_kind][:-1].tolist())
    positions = (np.arange(1, buckets) * len(ordered)) // buckets
    edges = np.unique(ordered[positions])
    return tuple(edges[edges < ordered[-1]].tolist())

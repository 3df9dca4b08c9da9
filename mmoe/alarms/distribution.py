"""`Distribution`: numbers as counts that can be added up, from which quantiles are read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from mmoe.config import Count, Stored, TaskConfig, prediction_columns

# Each bin's numbers differ by 2 percent, so that a quantile is within 1 percent of the true one
_GROWTH = 1.02
_LOG_GROWTH = log(_GROWTH)
# What quantiles people look at, in percent
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_Bins = dict[Annotated[str, Field(pattern=r"^-?\d{1,6}$")], Count]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_LARGEST = 1e290  # what is beyond counts as that in a sum


class Distribution(Stored):
    """Counts of the numbers of one column; those of two sets of rows add up to those of both.

    Numbers are counted in bins of logarithms, each 2 percent wide: quantiles are within 1 percent
    of their own size, whatever the scale.

    Attributes:
        rows: All of them.
        nulls: Without a value.
        not_finite: NaN, or infinite.
        total: Sum of the finite ones.
        lowest: Of the finite ones; None where there are none.
        highest: Likewise.
        zeros: Numbers that are 0.
        above: Number of a bin → numbers above 0 in it.
        below: The same of numbers below 0, by their size.

    Example:
        >>> of_both = Distribution.of(np.array([0.1, 0.2])) + Distribution.of(np.array([0.9]))
        >>> of_both.rows, round(of_both.mean, 2), round(of_both.quantile(0.5), 2)
        (3, 0.4, 0.2)

    Source: Masson, Rim & Lee, DDSketch, VLDB 2019 (bins of one relative width).
    """

    rows: Count = 0
    nulls: Count = 0
    not_finite: Count = 0
    total: _Finite = 0.0
    lowest: _Finite | None = None
    highest: _Finite | None = None
    zeros: Count = 0
    above: _Bins = Field(default_factory=dict)
    below: _Bins = Field(default_factory=dict)

    @model_validator(mode="after")
    def _adds_up(self) -> "Distribution":
        counted = self.zeros + sum(self.above.values()) + sum(self.below.values())
        if counted != self.finite or (self.lowest is None) != (not counted):
            raise ValueError(f"{counted} numbers are in bins, of {self.finite}")
        return self

    @classmethod
    def of(cls, numbers_V: np.ndarray, nulls: int = 0) -> "Distribution":
        """Counts numbers.

        Args:
            numbers_V: Those that are there, floats.
            nulls: How many rows have none.
        """
        numbers_V = numbers_V.astype(np.float64, copy=False)
        finite_V = numbers_V[np.isfinite(numbers_V)]
        return cls.model_construct(
            rows=len(numbers_V) + nulls,
            nulls=nulls,
            not_finite=len(numbers_V) - len(finite_V),
            total=float(np.clip(finite_V, -_LARGEST, _LARGEST).sum()),
            lowest=float(finite_V.min()) if len(finite_V) else None,
            highest=float(finite_V.max()) if len(finite_V) else None,
            zeros=int(np.count_nonzero(finite_V == 0)),
            above=_binned(finite_V[finite_V > 0]),
            below=_binned(-finite_V[finite_V < 0]),
        )

    def __add__(self, other: "Distribution") -> "Distribution":
        """Returns the counts of the rows of both."""
        lowest = [x.lowest for x in (self, other) if x.lowest is not None]
        highest = [x.highest for x in (self, other) if x.highest is not None]
        return Distribution.model_construct(
            rows=self.rows + other.rows,
            nulls=self.nulls + other.nulls,
            not_finite=self.not_finite + other.not_finite,
            total=self.total + other.total,
            lowest=min(lowest, default=None),
            highest=max(highest, default=None),
            zeros=self.zeros + other.zeros,
            above=dict(Counter(self.above) + Counter(other.above)),
            below=dict(Counter(self.below) + Counter(other.below)),
        )

    @property
    def finite(self) -> int:
        """Number of finite numbers."""
        return self.rows - self.nulls - self.not_finite

    @property
    def mean(self) -> float | None:
        """Mean of the finite numbers; None where there are none."""
        return self.total / self.finite if self.finite else None

    def quantile(self, share: float) -> float | None:
        """Returns the number that a share of the finite ones does not exceed, within 1 percent."""
        if self.lowest is None or self.highest is None:
            return None
        bins = [(-_middle(b), count) for b, count in reversed(_in_order(self.below))]
        bins += [(0.0, self.zeros), *((_middle(b), count) for b, count in _in_order(self.above))]
        counts = np.cumsum([count for _, count in bins])
        place = int(np.searchsorted(counts, max(share * counts[-1], 1)))
        return float(np.clip(bins[place][0], self.lowest, self.highest))

    def figures(self) -> dict[str, float | None]:
        """Returns mean, ends, percentiles, and the shares of what is no number."""
        shares = {"nan": self.not_finite, "null": self.nulls}
        return {
            "mean": self.mean,
            "min": self.lowest,
            **{f"p{percent}": self.quantile(percent / 100) for percent in PERCENTILES},
            "max": self.highest,
            **{name: n / self.rows if self.rows else None for name, n in shares.items()},
        }


class PredictedFile(Stored):
    """predictions.json: of the test split."""

    columns: dict[str, Distribution]


def predicted_file(tasks: Sequence[TaskConfig], predictions_NP: np.ndarray) -> dict[str, Any]:
    """Returns the contents of predictions.json, which later scores are compared with.

    Classes have no mean, and of a task whose log keeps a share of the negatives scores of a whole
    log are distributed otherwise: these are left out.

    Args:
        tasks: Of the run.
        predictions_NP: Of the test split, as `Predictor.predict` returns them; NaN where a task
            does not exist in a row's domain.
    """
    left_out = {
        f"pred_{task.name}"
        for task in tasks
        if task.negative_sampling_rate != 1 or task.outcomes is not None
    }
    columns = {}
    for name, all_N in zip(prediction_columns(tasks), predictions_NP.T, strict=False):
        if name not in left_out:
            there_N = all_N[~np.isnan(all_N)]
            found = Distribution.of(there_N, len(all_N) - len(there_N))
            columns[name] = found.model_dump(mode="json")
    return {"columns": columns}


def _binned(sizes_V: np.ndarray) -> dict[str, int]:
    """Counts numbers above 0 by the whole part of their logarithm."""
    if not len(sizes_V):
        return {}
    bins_V = np.ceil(np.log(sizes_V) / _LOG_GROWTH).astype(np.int64)
    first = int(bins_V.min())
    counts = np.bincount(bins_V - first)
    there = np.flatnonzero(counts)
    return {str(b + first): int(counts[b]) for b in there.tolist()}


def _in_order(bins: Mapping[str, int]) -> list[tuple[int, int]]:
    return sorted((int(b), count) for b, count in bins.items())


def _middle(b: int) -> float:
    """The number of a bin that is as near to either end in parts of itself."""
    return 2 * exp(min(b * _LOG_GROWTH, 709.0)) / (1 + _GROWTH)

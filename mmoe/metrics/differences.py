"""Differences of two models on the same rows, with their intervals; the gain over a wide part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from mmoe.metrics.columns import finer, interval_cells
from mmoe.metrics.intervals import row_terms
from mmoe.metrics.observed import ObservedRows
from mmoe.metrics.task_kinds.base import TaskKind

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
    (`mmoe.metrics.intervals`) are averaged over the seeds first, as the metric is, so the noise of
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


def gain_over_wide(
    kind: TaskKind, model: float, wide: float, of_model: ObservedRows, of_wide: ObservedRows
) -> dict[str, Any]:
    """Measures by how much a model is better at one task than its wide part.

    Args:
        kind: Of the task; its headline is what counts.
        model: The headline of the model.
        wide: That of the wide part alone.
        of_model: Rows on which the task is judged, as the model predicts them.
        of_wide: The same as the wide part does.

    Returns:
        The metric, both values, and the gain: `value`, above 0 where the model is better, with its
        95 % interval from `low` to `high` (paired, DeLong's for AUC); None where rows are too few.
    """
    column, better = kind.column(kind.headline), 1 if kind.monitored[kind.headline] else -1
    terms = (row_terms(kind.headline, rows) for rows in (of_model, of_wide))
    gain = paired_difference(np.array([better * model]), np.array([better * wide]), *terms)
    form = column.form.replace("{:.4g}", "{:#.4g}")  # 8.000 beside 5.544
    named = {"metric": kind.headline, "heading": column.heading, "form": form}
    ends = {"value": gain.value, "low": gain.low, "high": gain.high}
    return {**named, "model": model, "wide": wide, **ends}


GAIN_HEADINGS = ("task", "metric", "wide part alone", "with the mixture", "gain", "95 % interval")


def gain_rows(over_wide: Mapping[str, Any]) -> list[list[str]]:
    """Returns a row of text for each task, below `GAIN_HEADINGS`.

    Args:
        over_wide: As metrics.json has it.

    Example:
        >>> gain = {"heading": "AUC", "form": "{:.4f}", "model": 0.81, "wide": 0.8, "value": 0.01,
        ...         "low": 0.002, "high": 0.018}
        >>> gain_rows({"tasks": {"click": gain}})
        [['click', 'AUC', '0.8000', '0.8100', '+0.01000', '+0.00200 to +0.01800']]
    """
    return [
        [
            task,
            one["heading"],
            one["form"].format(one["wide"]),
            one["form"].format(one["model"]),
            *interval_cells(one, finer(one["form"])),
        ]
        for task, one in over_wide["tasks"].items()
    ]

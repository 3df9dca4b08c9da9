"""What the whole numbers of a column look like, whatever they predict: a line, or a list of names.

Quantities lie on a line: as often as one value comes, so often, about, comes the next. Ids are
names: one comes a thousand times and its neighbour twice, or never.
"""

from dataclasses import dataclass

import numpy as np

# Neighbours are looked for at these distances as well: people round to fives, tens and thousands
_LAGS = (1, 2, 5, 7, 10, 12, 50, 100, 500, 1000, 5000, 10_000)
_NEXT = 2  # the first lags, at which only what is not rounded has neighbours
_CLUMPED = 1.4  # of clumping: steep counts and sorted popularity have up to 1.3
_TENTHS = 10
_TOP = 0.95  # of the way to the largest value


@dataclass(frozen=True)
class Shape:
    """The distribution of whole numbers.

    Attributes:
        distinct: Values.
        rows: Rows of them.
        density: Values over the whole numbers between the ends (in units of the common divisor).
        from_start: Whether they begin at 0 or 1.
        negative: Whether some are below 0 (−1 alone is a missing value).
        lowest: The lowest.
        largest: The largest.
        uneven: How far the values are from evenly spread between the ends, 0 to 1.
        flat: Whether the rows are evenly spread between the ends.
        clumping: Pairs of rows of one value, over pairs of rows of neighbouring values: about 1 on
            a line, Σλ² / (Σλ)² of ids that come λ times. 2.7 where ids' popularity is log-normal
            with σ = 1, 1.3 to 4 for Zipf's law in any order; 1.00 to 1.05 for ages, counts, cents
            and rounded salaries (50,000 invented rows each).
        clumped: Whether that is more than chance.
        rounded: Whether it would be, but for neighbours tens, hundreds or thousands away.
        cut_off: Whether the values near the upper end still come often, without gaps, and then no
            more: a quantity's tail fades away, ids numbered by how often they come just end.
    """

    distinct: int
    rows: int
    density: float
    from_start: bool
    negative: bool
    lowest: float
    largest: float
    uneven: float
    flat: bool
    clumping: float
    clumped: bool
    rounded: bool
    cut_off: bool


def shape_of(values_V: np.ndarray, counts_V: np.ndarray, lowest: float) -> Shape:
    """Describes whole numbers.

    Args:
        values_V: Distinct values, ascending; without those of very many rows.
        counts_V: Rows of each.
        lowest: The lowest value of all.
    """
    steps = np.diff(values_V).astype(np.int64)
    unit = int(np.gcd.reduce(steps)) if len(steps) else 1
    units_V = ((values_V - values_V[0]) / unit).round()
    span = float(units_V[-1]) + 1
    tenths = np.minimum(units_V * _TENTHS / span, _TENTHS - 1).astype(np.int64)
    rows = float(counts_V.sum())
    top_V = units_V >= _TOP * (span - 1)
    same, next_to, near = _pairs(units_V, counts_V.astype(np.float64))
    clumped = _more(same, near)
    return Shape(
        distinct=len(values_V),
        rows=int(rows),
        density=len(values_V) / span,
        from_start=lowest in (0, 1),
        negative=bool((values_V < -1).any()),
        lowest=lowest,
        largest=float(values_V[-1]),
        uneven=_unevenness(np.bincount(tenths, minlength=_TENTHS), span),
        flat=_unevenness(np.bincount(tenths, weights=counts_V, minlength=_TENTHS), span)
        < 0.03 + 2 / np.sqrt(rows),
        clumping=(same + 1) / (near + 1),
        clumped=clumped,
        rounded=not clumped and near > 3 * next_to and _more(same, next_to),
        cut_off=_cut_off(counts_V[top_V], span - np.ceil(_TOP * (span - 1)), rows / len(values_V)),
    )


def _cut_off(top_V: np.ndarray, places: float, mean: float) -> bool:
    """By the median, for where numbers are clipped many are at the end itself."""
    usual = float(np.median(top_V)) if len(top_V) else 0.0
    return len(top_V) >= 0.8 * places and usual >= 3 and 0.15 * mean < usual < 0.9 * mean


def _unevenness(per_tenth: np.ndarray, span: float) -> float:
    """Total variation from what each tenth of the whole numbers between the ends would hold."""
    if span < _TENTHS:
        return 0.0
    ends = np.ceil(np.arange(_TENTHS + 1) * span / _TENTHS)
    return float(np.abs(per_tenth / per_tenth.sum() - np.diff(ends) / span).sum() / 2)


def _pairs(units_V: np.ndarray, counts_V: np.ndarray) -> tuple[float, float, float]:
    """Pairs of rows of one value, of the next ones, and of those at the lag that has most."""
    same = float((counts_V * (counts_V - 1)).sum())
    span = units_V[-1] + 1
    found = [0.0]
    for lag in _LAGS:
        if lag > span / 6:
            break
        at = np.minimum(np.searchsorted(units_V, units_V + lag), len(units_V) - 1)
        there_V = units_V[at] == units_V + lag
        pairs = float((counts_V * counts_V[at])[there_V].sum())
        found.append(pairs * span / (span - lag))
    return same, max(found[: _NEXT + 1]), max(found)


def _more(same: float, near: float) -> bool:
    return same > _CLUMPED * near + 4 * np.sqrt(same + near) + 10


def whole(values_V: np.ndarray) -> bool:
    """Returns whether all are whole numbers."""
    return bool((values_V == np.floor(values_V)).all())

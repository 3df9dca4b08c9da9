"""Numbers that stand for a missing value: -999, 9999, -1."""

import numpy as np

_ROWS = 50  # fewer say nothing
_VALUES = 12  # fewer different values are names, and -1 is one of them
_SHARE = 0.01  # of the rows, for a number far outside
_SHARE_OF_MINUS_1 = 0.05
_TIMES = 3  # as frequent as its neighbour, for the only negative number
_LIMITS = {-(2.0**15), 2.0**15 - 1, -(2.0**31), 2.0**31 - 1, 2.0**32 - 1, -(2.0**63), 2.0**63}
_MOST = 3


def sentinels(numbers_N: np.ndarray) -> list[float]:
    """Lists the numbers of a column that stand for missing values, lowest first.

    Such a number is the lowest or the highest; it is all nines, eights or sevens (two digits or
    more, a fraction cut off), or the limit of an integer's type; 1 % of the rows have it; and its
    distance to the next number is more than the others are apart (from their 1st to their 99th
    percentile). A negative one also counts where no other number is negative and three times as
    many rows have it as have the next number; so does -1 where all are whole, and 5 % have it.

    Args:
        numbers_N: float64 [N], NaN where missing.

    Example:
        >>> ages = np.array([*range(18, 90)] * 3 + [-999.0] * 9)
        >>> sentinels(ages), sentinels(ages[:216])
        ([-999.0], [])
    """
    present = numbers_N[np.isfinite(numbers_N)]
    if len(present) < _ROWS or not any(map(_is_filler, (present.min(), present.max()))):
        return []
    values, counts = np.unique(present, return_counts=True)
    low, high = 0, len(values)
    found: list[float] = []
    for _ in range(_MOST):
        if high - low <= _VALUES:
            break
        if _is_one(values[low:high], counts[low:high], len(present)):
            found.append(float(values[low]))
            low += 1
        elif _is_one(-values[low:high][::-1], counts[low:high][::-1], len(present), -1):
            high -= 1
            found.append(float(values[high]))
        else:
            break
    return sorted(found)


def _is_one(values: np.ndarray, counts: np.ndarray, rows: int, sign: int = 1) -> bool:
    """Is the first of ascending values a sentinel? `sign` −1: they were negated."""
    first, others = values[0], values[1:]
    if not _is_filler(sign * first):
        return False
    if sign == 1 and first < 0 <= others[0]:
        share = _SHARE_OF_MINUS_1 if first == -1 else _SHARE
        whole = first != -1 or np.array_equal(others, np.floor(others))
        if whole and counts[0] >= max(share * rows, _TIMES * counts[1]):
            return True
    if first == -1:
        return False
    total = np.cumsum(counts[1:])
    spread = (
        others[np.searchsorted(total, 0.99 * total[-1])]
        - others[np.searchsorted(total, 0.01 * total[-1])]
    )
    return bool(counts[0] >= _SHARE * rows and others[0] - first > spread)


def _is_filler(value: float) -> bool:
    if value == -1 or value in _LIMITS:
        return True
    digits = str(int(abs(value)))
    return len(digits) >= 2 and digits in (d * len(digits) for d in "789")

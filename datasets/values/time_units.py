"""Checks that times as whole numbers are in one unit in every file."""

import numpy as np

# Whole numbers of this size are seconds, milli-, micro- or nanoseconds since 1970 (1973 to 2286)
_UNITS = (("seconds", 1e8, 1e10), ("milliseconds", 1e11, 1e13), ("microseconds", 1e14, 1e16),
          ("nanoseconds", 1e17, 1e19))  # fmt: skip


class TimeUnits:
    """Notices that a column of times is in one unit here and in another there.

    Args:
        name: The column.

    Example:
        >>> units = TimeUnits("at")
        >>> units.add(np.array([1_700_000_000]), "a.csv")
        >>> units.add(np.array([1_700_000_000_000]), "b.csv")
        Traceback (most recent call last):
        ValueError: b.csv: column 'at' looks like milliseconds since 1970, but like seconds in \
a.csv; write the column in one unit
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: dict[str, str] = {}  # unit → first file that has it

    def add(self, times_N: np.ndarray, file: str) -> None:
        """Looks at more rows of `file`: int64 or float64, as `to_times` gives them.

        Raises:
            ValueError: They are in another unit than those of another file.
        """
        if not len(times_N):
            return
        lowest, highest = float(times_N.min()), float(times_N.max())
        for unit, start, stop in _UNITS:
            if start <= lowest and highest < stop:
                self.files.setdefault(unit, file)
        if len(self.files) > 1:
            (one, there), (two, here) = list(self.files.items())[:2]
            raise ValueError(
                f"{here}: column {self.name!r} looks like {two} since 1970, but like {one} in "
                f"{there}; write the column in one unit"
            )

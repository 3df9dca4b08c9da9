"""Finds, chunk by chunk, what a text column holds: the same as `text.settle` of all of it."""

from collections.abc import Sequence

import pyarrow as pa

from mmoe.config.data import MISSING_WORDS
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import pc

_LONG = 16  # digits that float64 may lose


class TextKind:
    """Finds the type of one text column from its chunks.

    Args:
        words: Those that mean "missing".

    Example:
        >>> kind = TextKind()
        >>> for chunk in (["1", "2"], ["NA", "2.5"]):
        ...     kind.add(pa.chunked_array([pa.array(chunk, pa.large_string())]))
        >>> kind.type
        DataType(double)
    """

    def __init__(self, words: Sequence[str] = MISSING_WORDS) -> None:
        self.words = words
        self.integers = self.canonical = self.reals = self.flags = True
        self.whole = True  # all numbers are whole
        self.large = self.long = self.padded = False

    def add(self, values: pa.ChunkedArray) -> None:
        """Looks at more rows, large_string."""
        if not (self.reals or self.flags):
            return  # words: nothing changes that
        present = text.blank_to_null(values, self.words).drop_null()
        if not len(present):
            return
        if self.reals:
            self._add_numbers(present)
        self.flags = self.flags and text.to_booleans(present) is not None

    @property
    def type(self) -> pa.DataType:
        """Returns bool, int64, float64 or large_string."""
        if self.integers:
            return pa.int64() if self.canonical else pa.large_string()
        if self.reals:
            lossy = (self.large and self.long) or (self.whole and self.padded)
            return pa.large_string() if lossy else pa.float64()
        return pa.bool_() if self.flags else pa.large_string()

    def _add_numbers(self, present: pa.ChunkedArray) -> None:
        if self.integers:
            self.integers = text.cast_or_none(present, pa.int64()) is not None
        if self.integers:
            self.canonical = self.canonical and text.is_canonical(present)
        reals = text.cast_or_none(present, pa.float64())
        self.reals = reals is not None
        if reals is None:
            return
        self.whole = self.whole and text.is_whole(reals)
        if self.whole and not self.padded:
            self.padded = text.loses_zeros(present, reals)
        self.large = self.large or pc.any(pc.greater_equal(pc.abs(reals), 2.0**53)).as_py()
        if not self.long and pc.max(pc.binary_length(present)).as_py() >= _LONG:
            self.long = bool(pc.any(pc.match_substring_regex(present, r"^-?\d{16,}$")).as_py())


def as_settled(
    values: pa.ChunkedArray, kind: pa.DataType, words: Sequence[str] = MISSING_WORDS
) -> pa.ChunkedArray:
    """Casts text to the type that `TextKind` found; missing words become null."""
    if pa.types.is_large_string(kind):
        return text.empty_to_null(values)
    blanked = text.blank_to_null(values, words)
    if pa.types.is_boolean(kind):
        flags = text.to_booleans(blanked)
        if flags is None:
            raise pa.ArrowInvalid("a value is neither true nor false")
        return flags
    return blanked.cast(kind)

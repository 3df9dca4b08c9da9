"""Padded lists: which items of each row are padding, by a value, a length or a mask."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature, SequenceFeature
from mmoe.datasets.features.ragged import blank_items, items_of, lists_of
from mmoe.datasets.rows.locations import place
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.columns import numbers_of, to_numbers
from mmoe.datasets.values.plain import is_text, offsets_of

_SIDES = "say padding_side: left or right"
_SHOWN = 3  # items named in an error


@dataclass(frozen=True)
class Unpadded:
    """The items of rows that are no padding.

    Attributes:
        keep_V: bool [V], which of all items they are; None: all.
        lengths_N: How many each row has, int64.
    """

    keep_V: np.ndarray | None
    lengths_N: np.ndarray

    def of(self, items: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns those of a column's items, of which each row has as many."""
        return items if self.keep_V is None else items.filter(pa.array(self.keep_V))


def unpad(
    table: pa.Table,
    feature: ListFeature | SequenceFeature,
    values: pa.ChunkedArray,
    lengths_N: np.ndarray,
    origin: str,
) -> Unpadded:
    """Finds the run of padding at one end of each row.

    Args:
        table: N rows.
        feature: padding, padding_side, length, mask.
        values: All items of its first column.
        lengths_N: How many each row has.
        origin: Starts error messages.

    Raises:
        ValueError: A row has padding at both ends, a length that its list has not, or a mask that
            is not one run of ones; names file, row and column.

    Example:
        >>> feature = ListFeature(name="h", padding=0)
        >>> values = pa.chunked_array([[7, 0, 8, 0, 0, 0, 9, 0, 0]])
        >>> unpadded = unpad(pa.table({}), feature, values, np.array([5, 2, 2]), "log.csv")
        >>> unpadded.of(values).to_pylist(), unpadded.lengths_N.tolist()
        ([7, 0, 8, 9], [3, 1, 0])
    """
    if feature.padding is None and not feature.padding_columns:
        return Unpadded(None, lengths_N)
    rows = _Rows(table, feature, blank_items(values), np.asarray(lengths_N, np.int64), origin)
    if feature.length is not None:
        first_N, end_N = rows.by_length()
    elif feature.mask is not None:
        first_N, end_N = rows.by_mask()
    else:
        first_N, end_N = rows.by_value()
    kept_N = end_N - first_N
    if np.array_equal(kept_N, rows.lengths_N):
        return Unpadded(None, lengths_N)
    keep_V = _inside(first_N, end_N, len(values))
    if feature.padding is None and feature.padding_side is None:
        rows.refuse_items_cut(keep_V)
    return Unpadded(keep_V, kept_N)


def padding_items(values: pa.ChunkedArray, padding: list[int | float | str]) -> np.ndarray:
    """Returns which items are one of the values of padding, bool [V]; "" is an empty one.

    Example:
        >>> padding_items(pa.chunked_array([["a", "0", "0.0", "00", None]]), [0, ""]).tolist()
        [False, True, True, False, True]
    """
    kind, empty = values.type, any(value == "" for value in padding)
    is_padding_V = pc.is_null(values).to_numpy() if empty else np.zeros(len(values), bool)
    numbers = [number for value in padding if (number := _number(value)) is not None]
    if is_text(kind):
        whole = [number for number in numbers if number == int(number)]
        texts = [str(value).strip() for value in padding if value != ""]
        texts += [text for n in whole for text in (str(int(n)), f"{int(n)}.0")]
        wanted = pa.array(texts, kind)
    elif pa.types.is_integer(kind):
        wanted = _as_integers(numbers, kind)
    else:
        numbers_V = None if pa.types.is_temporal(kind) else numbers_of(values)
        if numbers_V is None:
            return is_padding_V
        return is_padding_V | np.isin(numbers_V, np.array(numbers, np.float64))
    return is_padding_V | pc.is_in(values, wanted).to_numpy()


def _as_integers(numbers: list[int | float], kind: pa.DataType) -> pa.Array:
    """Those that a type of integers holds."""
    kept = []
    for number in numbers:
        try:
            kept.append(pa.scalar(int(number) if number == int(number) else number, kind))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    return pa.array([one.as_py() for one in kept], kind)


def _number(value: int | float | str) -> int | float | None:
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            number = read(value)
        except ValueError:
            continue
        return number if abs(number) < float("inf") else None
    return None


def _inside(first_N: np.ndarray, end_N: np.ndarray, items: int) -> np.ndarray:
    """Which items lie between the first and the end of their row's."""
    some = end_N > first_N
    steps = np.zeros(items + 1, np.int8)
    steps[first_N[some]] += 1
    steps[end_N[some]] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


class _Rows:
    """The items of rows, of which some are padding."""

    def __init__(
        self,
        table: pa.Table,
        feature: ListFeature | SequenceFeature,
        values: pa.ChunkedArray,
        lengths_N: np.ndarray,
        origin: str,
    ) -> None:
        self.table, self.feature, self.values, self.origin = table, feature, values, origin
        self.lengths_N = lengths_N
        offsets = offsets_of(lengths_N)
        self.starts_N, self.ends_N = offsets[:-1], offsets[1:]
        self.column = feature.source_columns[0]

    def by_value(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each row's items begin and end, between runs of a value."""
        is_padding_V = padding_items(self._ids(), self.feature.padding_values)
        first_N, end_N = self._between(np.flatnonzero(~is_padding_V))
        side = self.feature.padding_side
        if side is None:
            both_N = (first_N > self.starts_N) & (end_N < self.ends_N)
            if both_N.any():
                raise ValueError(
                    f"{self._row(both_N)} begins and ends with padding, expected it at one end; "
                    f"{_SIDES}, and the value at the other end stays an item"
                )
        starts_N = self.starts_N if side == "right" else first_N
        ends_N = self.ends_N if side == "left" else end_N
        empty_N = first_N == end_N
        return np.where(empty_N, self.starts_N, starts_N), np.where(empty_N, self.starts_N, ends_N)

    def by_length(self) -> tuple[np.ndarray, np.ndarray]:
        """Likewise, by the column of how many items there are."""
        name = self.feature.length
        assert name is not None
        said_N = to_numbers(self.table, name, self.origin, f"feature {self.feature.name!r}")
        said_N = np.where(np.isnan(said_N) & (self.lengths_N == 0), 0, said_N)
        wrong_N = ~((said_N >= 0) & (said_N <= self.lengths_N) & (said_N == np.floor(said_N)))
        if wrong_N.any():
            row = int(wrong_N.argmax())
            said = "empty" if np.isnan(said_N[row]) else f"{said_N[row]:g}"
            raise ValueError(
                f"{self._row(wrong_N, name)} is {said}, but column {self.column!r} has "
                f"{self.lengths_N[row]} items in that row; expected a whole number from 0 to "
                "that; mend it, or name the padding with `padding`"
            )
        kept_N = said_N.astype(np.int64)
        if self.feature.padding_side == "left":
            return self.ends_N - kept_N, self.ends_N
        return self.starts_N, self.starts_N + kept_N

    def by_mask(self) -> tuple[np.ndarray, np.ndarray]:
        """Likewise, by the column of ones and zeros."""
        name, side = self.feature.mask, self.feature.padding_side
        assert name is not None
        lists = lists_of(self.table, name, self.feature, self.origin)
        items, counts_N = items_of(lists, self.feature.separator)
        other_N = counts_N != self.lengths_N
        if other_N.any():
            row = int(other_N.argmax())
            raise ValueError(
                f"{self._row(other_N, name)} has {counts_N[row]} items, but column "
                f"{self.column!r} has {self.lengths_N[row]} in that row; a mask has as many"
            )
        numbers = numbers_of(blank_items(items))
        mask_V = np.full(len(items), np.nan) if numbers is None else numbers
        wrong_V = (mask_V != 0) & (mask_V != 1)
        if wrong_V.any():
            item = int(wrong_V.argmax())
            row_N = (self.starts_N <= item) & (item < self.ends_N)
            raise ValueError(
                f"{self._row(row_N, name)} holds {items[item].as_py()!r}, expected 1 for each item "
                "and 0 for padding"
            )
        places = np.flatnonzero(mask_V)
        first_N, end_N = self._between(places)
        ones_N = np.diff(np.searchsorted(places, np.append(self.starts_N, len(items))))
        left_N, right_N = first_N > self.starts_N, end_N < self.ends_N
        wrong_N = (ones_N != end_N - first_N) | (left_N & right_N)
        if side is not None:
            wrong_N |= (ones_N > 0) & (left_N if side == "right" else right_N)
        if wrong_N.any():
            end = f"the {side}" if side else "one end"
            raise ValueError(
                f"{self._row(wrong_N, name)} has zeros elsewhere than at {end}; expected one run "
                "of ones and one of zeros: padding lies at one end"
            )
        return first_N, end_N

    def refuse_items_cut(self, keep_V: np.ndarray) -> None:
        """Refuses padding of different items: a length or a mask of the other end."""
        cut = self.values.filter(pa.array(~keep_V))
        codes = pc.dictionary_encode(cut, null_encoding="encode").combine_chunks().indices
        row_V = np.repeat(np.arange(len(self.lengths_N)), self.lengths_N)[~keep_V]
        wrong = (np.diff(codes.to_numpy()) != 0) & (np.diff(row_V) == 0)
        if wrong.any():
            item = int(wrong.argmax())
            row_N = np.arange(len(self.lengths_N)) == row_V[item]
            some = ", ".join(map(repr, cut.slice(item, _SHOWN).to_pylist()))
            says = self.feature.length or self.feature.mask
            raise ValueError(
                f"{self._row(row_N)} has different items ({some}) where {says!r} says padding, "
                f"expected one value: is it at the other end? {_SIDES} where it is meant"
            )

    def _ids(self) -> pa.ChunkedArray:
        """The items, without the weights that stand behind them."""
        mark = getattr(self.feature, "weight_separator", None)
        if mark is None or not is_text(self.values.type):
            return self.values
        parts = pc.split_pattern(self.values, mark, max_splits=1, reverse=True)
        return blank_items(pc.list_element(parts, 0))

    def _between(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each row's first of some places, and the one behind its last; its start twice: none."""
        if not len(places):
            return self.starts_N, self.starts_N
        low_N = np.searchsorted(places, self.starts_N)
        high_N = np.searchsorted(places, self.ends_N)
        none_N = low_N == high_N
        first_N = places[np.minimum(low_N, len(places) - 1)]
        end_N = places[high_N - 1] + 1
        return np.where(none_N, self.starts_N, first_N), np.where(none_N, self.starts_N, end_N)

    def _row(self, wrong_N: np.ndarray, column: str | None = None) -> str:
        where = place(self.table, self.origin, int(wrong_N.argmax()))
        return f"{where}: column {(column or self.column)!r} (of feature {self.feature.name!r})"

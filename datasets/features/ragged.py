"""List-valued columns as flat values and offsets, their padding cut off."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature, SequenceFeature
from mmoe.datasets.features.id_map import MISSING
from mmoe.datasets.rows.locations import cell_place, find_column, first_true
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import (
    is_list,
    is_text,
    list_lengths,
    offsets_of,
    one_chunk,
    pc,
    plain,
)
from mmoe.datasets.values.columns import numbers_of, to_numbers
from mmoe.datasets.values.text import parse_lists, without_words

_SHOWN = 80  # characters of a cell in an error


@dataclass(frozen=True)
class Ragged:
    """Lists of rows: row n holds `values[offsets[n]:offsets[n + 1]]`, maybe with weights."""

    values: pa.ChunkedArray  # their items
    offsets: np.ndarray  # int64 [N + 1]
    weights: np.ndarray | None = None  # of the items, float32 [V]
    # The weights as the rows say them, before they are shares, float64 [V]
    written: np.ndarray | None = None


ListsT = TypeVar("ListsT", bound=ListFeature | SequenceFeature)


@dataclass(frozen=True)
class ListRows(Generic[ListsT]):
    """Rows of a table as a feature of lists reads them, and how errors name its cells."""

    table: pa.Table  # N rows
    feature: ListsT
    origin: str  # starts error messages

    @property
    def used_by(self) -> str:
        """What reads them, for errors."""
        return f"feature {self.feature.name!r}"

    def cell(self, row: int, column: str) -> str:
        """Returns where a cell is, for errors."""
        return cell_place(self.table, self.origin, row, column, self.used_by)

    def lists(self, name: str) -> pa.ChunkedArray:
        """Returns a column of lists, or of text with separators: lists in text are parsed."""
        column = find_column(self.table, name, self.origin, self.used_by)
        kind = column.type
        item = kind.value_type if is_list(kind) else kind
        if pa.types.is_nested(item):  # lists of lists, structs
            raise ValueError(
                f"{self.origin}: column {name!r} (of {self.used_by}) holds {kind}, expected one "
                "list of plain values a row; flatten it"
            )
        if self.feature.format != "json" or not is_text(column.type):
            return column
        lists, wrong = parse_lists(column)
        if (row := first_true(wrong.to_numpy())) is not None:
            cell = column[row].as_py()
            raise ValueError(
                f"{self.cell(row, name)} is "
                f"{cell if len(cell) <= _SHOWN else cell[:_SHOWN] + '…'!r}, expected a list of "
                """plain values such as ["a", "b"] or [1, 2], as the feature has format: json; """
                "mend the cell, or leave it empty"
            )
        return lists

    def items(self, name: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Returns the items of a column, and how many each row has."""
        return items_of(self.lists(name), self.feature.separator)


def items_of(column: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Returns items and how many each row has: one where the column has no lists; "" has none."""
    if is_text(column.type):
        column = text.empty_to_null(pc.utf8_trim_whitespace(column))
    if is_text(column.type) or is_list(column.type):
        whole = column if is_list(column.type) else pc.split_pattern(column, separator)
        lists = one_chunk(whole)
        return plain(pa.chunked_array([lists.flatten()])), list_lengths(lists)
    present = pc.is_null(column, nan_is_null=True).to_numpy()
    column = column.filter(pa.array(~present))
    return column, (~present).astype(np.int64)


def blank_items(values: pa.ChunkedArray, words: Sequence[str] | None = None) -> pa.ChunkedArray:
    """Trims items of text; null where they are empty, NaN, or one of the words if there are any."""
    if is_text(values.type):
        return without_words(values, words or ())
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        if pc.any(is_nan, min_count=0).as_py():
            return pc.if_else(is_nan, pa.scalar(None, values.type), values)
    return values


def ids_with_missing(ids_V: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives every empty list the one id 0, the row of missing values."""
    filled_V = fill_empty(ids_V, offsets, MISSING)
    if filled_V is ids_V:
        return ids_V, offsets
    return filled_V, offsets_of(np.maximum(np.diff(offsets), 1))


def fill_empty(items_V: np.ndarray, offsets: np.ndarray, item: float) -> np.ndarray:
    """Gives every empty list one `item`."""
    empty = np.flatnonzero(np.diff(offsets) == 0)
    return np.insert(items_V, offsets[:-1][empty], item) if len(empty) else items_V


def kept_items(
    values: pa.ChunkedArray, lengths_N: np.ndarray, feature: ListFeature
) -> tuple[np.ndarray | None, np.ndarray]:
    """Returns which items stay (no nulls, none beyond max_length), None: all; and how many."""
    most = feature.max_length
    if not values.null_count and (most is None or not (lengths_N > most).any()):
        return None, lengths_N
    keep_V = pc.is_valid(values).to_numpy()
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    # max_length counts items that are there: nulls go first
    kept_N = np.bincount(row_V[keep_V], minlength=len(lengths_N))
    if most is not None:
        keep_V[keep_V] = _first_or_last(kept_N, most, feature.keep)
        kept_N = np.minimum(kept_N, most)
    return keep_V, kept_N


def _first_or_last(lengths_N: np.ndarray, most: int, keep: str) -> np.ndarray:
    """Marks the first or last so many items of each row: bool [V]."""
    row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
    place_V = np.arange(len(row_V)) - (np.cumsum(lengths_N) - lengths_N)[row_V]
    first_N = np.maximum(lengths_N - most, 0) if keep == "last" else np.zeros_like(lengths_N)
    return (place_V >= first_N[row_V]) & (place_V < (first_N + most)[row_V])


def shortened(ragged: Ragged, most: float, keep: str) -> tuple[Ragged, np.ndarray]:
    """Returns lists with at most so many items, the first or the last, and which had more."""
    lengths_N = np.diff(ragged.offsets)
    longer_N = lengths_N > most
    if not longer_N.any():
        return ragged, longer_N
    keep_V = _first_or_last(lengths_N, int(most), keep)
    parts = (None if part is None else part[keep_V] for part in (ragged.weights, ragged.written))
    values = ragged.values.filter(pa.array(keep_V))
    return Ragged(values, offsets_of(np.minimum(lengths_N, int(most))), *parts), longer_N


_SIDES = "say padding_side: left or right"
_ITEMS_SHOWN = 3  # items named in an error


@dataclass(frozen=True)
class Unpadded:
    """The items of rows that are no padding."""

    keep_V: np.ndarray | None  # bool [V], which of all items they are; None: all
    lengths_N: np.ndarray  # how many each row has, int64

    def of(self, items: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns a column's items, as many of them in each row."""
        return items if self.keep_V is None else items.filter(pa.array(self.keep_V))


def unpad(rows: ListRows[Any], values: pa.ChunkedArray, lengths_N: np.ndarray) -> Unpadded:
    """Finds the run of padding at one end of each row.

    Args:
        rows: Of a feature with padding, padding_side, length, mask.
        values: All items of its first column.
        lengths_N: How many each row has.

    Raises:
        ValueError: A row has padding at both ends, a length that its list has not, or a mask that
            is not one run of ones; names file, row and column.

    Example:
        >>> rows = ListRows(pa.table({}), ListFeature(name="h", padding=0), "log.csv")
        >>> values = pa.chunked_array([[7, 0, 8, 0, 0, 0, 9, 0, 0]])
        >>> unpadded = unpad(rows, values, np.array([5, 2, 2]))
        >>> unpadded.of(values).to_pylist(), unpadded.lengths_N.tolist()
        ([7, 0, 8, 9], [3, 1, 0])
    """
    feature = rows.feature
    if feature.padding is None and not feature.padding_columns:
        return Unpadded(None, lengths_N)
    padded = _Padded(rows, blank_items(values), np.asarray(lengths_N, np.int64))
    if feature.length is not None:
        first_N, end_N = padded.by_length()
    elif feature.mask is not None:
        first_N, end_N = padded.by_mask()
    else:
        first_N, end_N = padded.by_value()
    kept_N = end_N - first_N
    if np.array_equal(kept_N, padded.lengths_N):
        return Unpadded(None, lengths_N)
    some = kept_N > 0
    steps = np.zeros(len(values) + 1, np.int8)
    steps[first_N[some]] += 1
    steps[end_N[some]] -= 1
    keep_V = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    if feature.padding is None and feature.padding_side is None:
        padded.refuse_items_cut(keep_V)
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
        kept = []
        for number in numbers:
            with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
                whole = int(number) if number == int(number) else number
                kept.append(pa.scalar(whole, kind).as_py())
        wanted = pa.array(kept, kind)
    else:
        numbers_V = None if pa.types.is_temporal(kind) else numbers_of(values)
        if numbers_V is None:
            return is_padding_V
        return is_padding_V | np.isin(numbers_V, np.array(numbers, np.float64))
    return is_padding_V | pc.is_in(values, wanted).to_numpy()


def _number(value: int | float | str) -> int | float | None:
    if not isinstance(value, str):
        return value
    for read in (int, float):
        with suppress(ValueError):
            number = read(value)
            return number if abs(number) < float("inf") else None
    return None


class _Padded:
    """Items of rows, some of them padding."""

    def __init__(self, rows: ListRows[Any], values: pa.ChunkedArray, lengths_N: np.ndarray) -> None:
        self.rows, self.feature, self.values, self.lengths_N = rows, rows.feature, values, lengths_N
        offsets = offsets_of(lengths_N)
        self.starts_N, self.ends_N = offsets[:-1], offsets[1:]
        self.column = self.feature.source_columns[0]

    def by_value(self) -> tuple[np.ndarray, np.ndarray]:
        """Finds where each row's items begin and end, between runs of a value."""
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
        said_N = to_numbers(self.rows.table, name, self.rows.origin, self.rows.used_by)
        said_N = np.where(np.isnan(said_N) & (self.lengths_N == 0), 0, said_N)
        wrong_N = ~((said_N >= 0) & (said_N <= self.lengths_N) & (said_N == np.floor(said_N)))
        if (row := first_true(wrong_N)) is not None:
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
        items, counts_N = self.rows.items(name)
        other_N = counts_N != self.lengths_N
        if (row := first_true(other_N)) is not None:
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
            some = ", ".join(map(repr, cut.slice(item, _ITEMS_SHOWN).to_pylist()))
            says = self.feature.length or self.feature.mask
            raise ValueError(
                f"{self._row(row_N)} has different items ({some}) where {says!r} says padding, "
                f"expected one value: is it at the other end? {_SIDES} where it is meant"
            )

    def _ids(self) -> pa.ChunkedArray:
        """The items, without the weights that stand behind them."""
        mark = self.feature.weight_mark
        if mark is None or not is_text(self.values.type):
            return self.values
        parts = pc.split_pattern(self.values, mark, max_splits=1, reverse=True)
        return blank_items(pc.list_element(parts, 0))

    def _between(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds each row's first place, and the one behind its last; its start twice: none."""
        if not len(places):
            return self.starts_N, self.starts_N
        low_N = np.searchsorted(places, self.starts_N)
        high_N = np.searchsorted(places, self.ends_N)
        none_N = low_N == high_N
        first_N = places[np.minimum(low_N, len(places) - 1)]
        end_N = places[high_N - 1] + 1
        return np.where(none_N, self.starts_N, first_N), np.where(none_N, self.starts_N, end_N)

    def _row(self, wrong_N: np.ndarray, column: str | None = None) -> str:
        return self.rows.cell(int(wrong_N.argmax()), column or self.column)

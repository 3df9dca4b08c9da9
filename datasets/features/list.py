"""List features: any number of ids a row, with a weight for each if there are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import FeatureSpec, ListFeature
from mmoe.datasets.features.codec import Coded, Rules, limits_of
from mmoe.datasets.features.ids import IdCodec
from mmoe.datasets.features.ragged import (
    ListRows,
    Ragged,
    Unpadded,
    blank_items,
    fill_empty,
    ids_with_missing,
    kept_items,
    shortened,
    unpad,
)
from mmoe.datasets.features.seen import SEEN_LENGTHS, SEEN_WEIGHTS
from mmoe.datasets.rows.locations import first_true, times_of
from mmoe.datasets.values import text
from mmoe.datasets.values.arrow import is_text, offsets_of, pc
from mmoe.datasets.values.columns import numbers_of

NO_LIMITS = (0.0, float("inf"))  # of weights
_LARGEST = 1e9  # float32 products of this and ordinary embeddings stay finite


def list_ids(
    table: pa.Table,
    feature: ListFeature,
    origin: str,
    limits: tuple[float, float] = NO_LIMITS,
    words: Sequence[str] | None = None,
) -> Ragged:
    """Reads the lists of a feature's column, with the weights of their ids if it has any.

    A column is an Arrow list, text with separators, or one id a row. Padding, nulls, NaN and empty
    text are dropped; then at most `feature.max_length` ids are kept, the first or the last ones.
    The weights of a mean are divided by their sum, row by row; where that is 0, all stay 0.

    Args:
        table: N rows.
        feature: Columns, separators, padding, max_length.
        origin: Starts error messages.
        limits: Weights beyond them are taken as them.
        words: Items that mean a missing value, which are dropped.

    Raises:
        ValueError: A column is missing or holds no lists, a row has not as many weights as ids, a
            weight is no number from 0 to 1e9, or it is unclear which items are padding; names file,
            row and column.

    Example:
        >>> feature = ListFeature(name="tags", weight_separator=":", pooling="mean")
        >>> ragged = list_ids(pa.table({"tags": ["sports:3|news:1", "", "art:0.5"]}), feature, "x")
        >>> ragged.values.to_pylist(), ragged.offsets.tolist(), ragged.weights.tolist()
        (['sports', 'news', 'art'], [0, 2, 2, 3], [0.75, 0.25, 1.0])
    """
    rows = ListRows(table, feature, origin)
    values, all_N = rows.items(feature.source_column)
    unpadded = unpad(rows, values, all_N)
    values, lengths_N = blank_items(unpadded.of(values), words), unpadded.lengths_N
    if not feature.weighted:
        keep_V, lengths_N = kept_items(values, lengths_N, feature)
        values = values if keep_V is None else values.filter(pa.array(keep_V))
        return Ragged(values, offsets_of(lengths_N))
    reader = _Weights(rows)
    if feature.weight_separator is not None:
        values, weights_V = reader.cut(values, lengths_N)
        values = blank_items(values, words)
    else:
        weights_V = reader.beside(all_N, unpadded)
    present_V = pc.is_valid(values).to_numpy()
    # Before lists are cut to max_length: a bad weight is refused wherever it stands
    reader.check(weights_V, present_V, lengths_N)
    keep_V, lengths_N = kept_items(values, lengths_N, feature)
    if keep_V is not None:
        values, weights_V = values.filter(pa.array(keep_V)), weights_V[keep_V]
    offsets, written_V = offsets_of(lengths_N), weights_V
    weights_V = np.clip(weights_V, *limits)
    if feature.pooling == "mean":  # over the row's sum, which is added up in the row's order
        row_V = np.repeat(np.arange(len(lengths_N)), lengths_N)
        sums_V = np.bincount(row_V, weights_V, minlength=len(lengths_N))[row_V]
        weights_V = np.divide(weights_V, sums_V, out=np.zeros_like(weights_V), where=sums_V > 0)
    return Ragged(values, offsets, weights_V.astype(np.float32), written_V)


class _Weights:
    """Reads one feature's weights, float64 [V], NaN where there is none."""

    def __init__(self, rows: ListRows[ListFeature]) -> None:
        self.rows, self.feature = rows, rows.feature
        self.column = self.feature.weights or self.feature.source_column

    def cut(
        self, items: pa.ChunkedArray, lengths_N: np.ndarray
    ) -> tuple[pa.ChunkedArray, np.ndarray]:
        """`id:weight` at its last separator: the ids, and the weights."""
        separator = self.feature.weight_separator
        assert separator is not None
        if not is_text(items.type):
            if items.null_count < len(items):
                raise ValueError(
                    f"{self.rows.origin}: column {self.column!r} (of {self.rows.used_by}) "
                    f"holds items of {items.type}, expected text such as 'sports{separator}0.7', "
                    "as the feature has weight_separator; remove it, or name a column in weights"
                )
            return items, np.full(len(items), np.nan)
        parts = pc.split_pattern(items, separator, max_splits=1, reverse=True)
        whole = pc.fill_null(pc.equal(pc.list_value_length(parts), 2), False)
        alone_V = pc.is_valid(items).to_numpy() & ~whole.to_numpy()
        if (item := first_true(alone_V)) is not None:
            raise ValueError(
                f"{self._row(item, lengths_N)} has the item {items[item].as_py()!r}, expected an "
                f"id and its weight such as 'sports{separator}0.7'; give each item a weight"
            )
        both = parts.filter(whole)
        ids, weights = (pc.list_element(both, index) for index in (0, 1))
        where_V = whole.to_numpy()
        weights_V = np.full(len(items), np.nan)
        weights_V[where_V] = self._numbers(weights, np.flatnonzero(where_V), lengths_N)
        kept = items.combine_chunks()
        ids = pc.replace_with_mask(kept, whole.combine_chunks(), ids.combine_chunks())
        return pa.chunked_array([ids]), weights_V

    def beside(self, lengths_N: np.ndarray, unpadded: Unpadded) -> np.ndarray:
        """The column of weights; every row must have as many as ids, padding among both."""
        weights, counts_N = self.rows.items(self.column)
        if (row := first_true(counts_N != lengths_N)) is not None:
            raise ValueError(
                f"{self.rows.cell(row, self.column)} has {counts_N[row]} weights, but column "
                f"{self.feature.source_column!r} has {lengths_N[row]} ids in that row; give each "
                "id one weight"
            )
        weights = unpadded.of(weights)
        return self._numbers(weights, np.arange(len(weights)), unpadded.lengths_N)

    def check(self, weights_V: np.ndarray, present_V: np.ndarray, lengths_N: np.ndarray) -> None:
        """Checks that every id has a finite weight."""
        wrong_V = present_V & ~((weights_V >= 0) & (weights_V <= _LARGEST))
        if (item := first_true(wrong_V)) is not None:
            found = "missing" if np.isnan(weights_V[item]) else f"{weights_V[item]:g}"
            raise ValueError(
                f"{self._row(item, lengths_N)} has a weight that is {found}, expected a number "
                f"from 0 to {_LARGEST:g}; mend it, or leave out the id with its weight"
            )

    def _numbers(
        self, weights: pa.ChunkedArray, items: np.ndarray, lengths_N: np.ndarray
    ) -> np.ndarray:
        """float64; `items` are the weights' numbers among all items."""
        numbers = numbers_of(weights)
        kind = weights.type
        if numbers is None or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
            raise ValueError(
                f"{self.rows.origin}: column {self.column!r} (weights of {self.rows.used_by}) "
                f"holds {kind}, expected lists of numbers"
            )
        if is_text(kind):
            wrong = pc.is_valid(text.blank_to_null(weights)).to_numpy() & np.isnan(numbers)
            if (index := first_true(wrong)) is not None:
                raise ValueError(
                    f"{self._row(int(items[index]), lengths_N)} has the weight "
                    f"{weights[index].as_py()!r}, expected a number"
                )
        return numbers

    def _row(self, item: int, lengths_N: np.ndarray) -> str:
        row = int(np.searchsorted(np.cumsum(lengths_N), item, side="right"))
        return self.rows.cell(row, self.column)


_ROUNDING = 1e-6  # of a constant that another file holds as float32


class ListCodec(IdCodec[ListFeature]):
    """Codec of a column of lists, and perhaps one of their weights."""

    counts_times = True
    of_lists = True
    # How files say it, and how much of it is read
    free = IdCodec.free | {
        "separator", "format", "weights", "weight_separator", "max_length", "keep", "outside",
        "padding", "padding_side", "length", "mask",
    }  # fmt: skip

    @property
    def lists(self) -> list[FeatureSpec]:
        """Its own name."""
        feature = self.feature
        return [
            FeatureSpec(
                name=feature.name,
                table=self.table,
                pooling="sum" if feature.weighted else feature.pooling,  # see FeatureSpec
                weighted=feature.weighted,
            )
        ]

    def add(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Learns from more training rows."""
        ragged, times_N = self._lists(table, origin), times_of(table)
        of_ids = None if times_N is None else np.repeat(times_N, np.diff(ragged.offsets))
        fit.add(ragged.values, of_ids)
        lengths_N = np.diff(ragged.offsets) if self.feature.pooling == "sum" else None
        for section, numbers in ((SEEN_WEIGHTS, ragged.written), (SEEN_LENGTHS, lengths_N)):
            if numbers is not None and len(numbers):
                ends = (*fit.ends.get(section, ()), numbers.min().item(), numbers.max().item())
                fit.ends[section] = min(ends), max(ends)

    def finish_own(self, fit: Any, rules: Rules) -> None:
        """Keeps the lowest and the highest weight, and the lengths of lists that are summed."""
        for section, ends in fit.ends.items():
            rules[section][self.feature.name] = ends

    def check(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Refuses bad weights in rows that do not train."""
        if self.feature.weighted:
            self._lists(table, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: ids and weights; an empty list has the id 0 with weight 1."""
        limits, at, outside_N = None, NO_LIMITS, None
        if (seen := rules[SEEN_WEIGHTS].get(self.feature.name)) is not None:
            low, high = limits_of(*seen)
            limits = max(float(low), 0.0), float(high)  # no weight is negative
            clips = self.feature.outside == "clip" or limits[0] == limits[1]
            at = limits if clips else NO_LIMITS
        ragged = self._lists(table, origin, at)
        if limits is not None:
            assert ragged.written is not None, "there are limits of weights alone"
            room = _ROUNDING * limits[1]
            beyond_V = (ragged.written < limits[0] - room) | (ragged.written > limits[1] + room)
            row_V = np.repeat(np.arange(table.num_rows), np.diff(ragged.offsets))
            outside_N = np.bincount(row_V[beyond_V], minlength=table.num_rows) > 0
        lengths = rules[SEEN_LENGTHS].get(self.feature.name)
        if lengths is not None:  # a sum over far more items than any of training
            cut, longer_N = shortened(ragged, limits_of(*lengths)[1], self.feature.keep)
            ragged = cut if self.feature.outside == "clip" else ragged
            outside_N = longer_N if outside_N is None else outside_N | longer_N
        weights_V = ragged.weights
        if weights_V is not None:
            weights_V = fill_empty(weights_V, ragged.offsets, 1)
        ids_V = self.ids(rules).lookup(ragged.values, self.label(origin))
        return Coded(
            lists=[(*ids_with_missing(ids_V, ragged.offsets), weights_V)], outside_N=outside_N
        )

    def _lists(
        self, table: pa.Table, origin: str, limits: tuple[float, float] = NO_LIMITS
    ) -> Ragged:
        return list_ids(table, self.feature, origin, limits, self.config.data.missing_words)

    def meaning(self) -> dict[str, object]:
        """Returns settings to keep; in which column the weights stand does not matter."""
        return super().meaning() | {"weighted": self.feature.weighted}

"""Leaks: columns that predict a label too well, lists that hold it, pairs that give it away."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.datasets.infer.coded import Coded, Sample, Target
from mmoe.datasets.infer.evidence import UNREPEATED, Sums, as_ids, auc_of_sums, held_out_auc
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.arrow import is_list, list_lengths, one_chunk, pc, plain
from mmoe.datasets.values.hashing import mix64
from mmoe.datasets.values.keys import MISSING_HASH, value_hashes
from mmoe.metrics.one_column import (
    SMOOTHING,
    SURE,
    TOO_GOOD,
    UNLIKELY,
    auc_by_rates,
    enough_to_tell,
    same_order,
)

_SAME_ORDER = 0.999  # rank correlation with a label of numbers


def too_good(coded: Coded, sample: Sample) -> str | None:
    """Says why a column gives a label away (known only after the event, or the label), or None.

    Args:
        coded: The column in the sampled rows.
        sample: These rows, and the labels there.
    """
    for target in sample.targets:
        codes_L = coded.codes_S[target.index_L]
        if not target.is_event:
            there_L = codes_L < coded.size
            ordered = coded.values_V is not None and there_L.sum() >= 20
            if ordered and abs(same_order(codes_L[there_L], target.raw_L[there_L])) > _SAME_ORDER:
                return f"it orders the rows as the label {target.task!r} does"
            continue
        sums = Sums.of(codes_L, coded.cells, target.raw_L, sample.folds_S[target.index_L])
        value = _single_feature_auc(sums, coded)
        if value > TOO_GOOD:
            return f"alone it predicts {target.task!r} with AUC {value:.4f}"
        if _implies_label(sums, coded, target):
            return (
                f"{target.task!r} is 1 in every row where it is not 0, so it seems to be known "
                "only afterwards; add it if it is not"
            )
    return None


def _single_feature_auc(sums: Sums, coded: Coded) -> float:
    """Returns a column's own AUC, of either sign: by order, or by rates per value.

    Rates per value come from other rows, so that ids seen once say nothing. Whether a value is
    there at all counts as well.

    Returns:
        0.5 to 1; 0.5 where there are too few rows to tell.
    """
    positives_V = sums.labels_VK.sum(axis=1)
    negatives_V = sums.rows_VK.sum(axis=1) - positives_V
    positives, negatives = positives_V.sum(), negatives_V.sum()
    if not enough_to_tell(int(positives), int(negatives), TOO_GOOD, SURE):
        return 0.5
    there_V = np.arange(coded.cells) < coded.size
    values = [auc_of_sums(positives_V, negatives_V, there_V.astype(np.float64))]
    if coded.values_V is not None:  # missing ones below all
        order_V = np.where(there_V, np.arange(coded.cells), -1.0)
        values.append(auc_of_sums(positives_V, negatives_V, order_V))
    if coded.size <= UNREPEATED * (positives + negatives):
        base = positives / (positives + negatives)
        centred = Sums(sums.rows_VK, sums.labels_VK - base * sums.rows_VK, sums.squares_VK)
        rates_VK = as_ids(centred, SMOOTHING)  # that a row's value has in the other folds
        negatives_VK = sums.rows_VK - sums.labels_VK
        values.append(held_out_auc(sums.labels_VK, negatives_VK, rates_VK))
    return max(max(value, 1 - value) for value in values if not np.isnan(value))


def _implies_label(sums: Sums, coded: Coded, target: Target) -> bool:
    """Returns whether the label is 1 wherever the column is not 0: likely known afterwards."""
    if coded.values_V is None:
        return False
    nonzero_V = np.append(coded.values_V != 0, False)
    rows = float(sums.rows_VK[nonzero_V].sum())
    rate = float(target.raw_L.mean()) if len(target.raw_L) else 1.0
    return bool(
        0 < rows < len(target.raw_L) / 2
        and sums.labels_VK[nonzero_V].sum() == rows
        and rate < 0.5
        and rate**rows < UNLIKELY
    )


_ROWS = 3_000  # of each class that are looked at
_FEWEST = 20  # of each class
_PAIRED = 60  # columns
_BUCKETS = 8  # of a column, with its rarer values in one
_COMPARED = 12  # columns with most values, as candidates of a list
_ITEMS = 10  # different values of a candidate; fewer are in most lists
_HIGH = 0.995  # of a label of numbers: what follows from two others within a tenth reaches 0.993
_GLANCED = TOO_GOOD - 0.005  # an AUC by a pair's own rows; less is looked at no further
# Of one class a list holds almost every candidate, of the other far fewer
_HELD, _APART = 0.97, 0.3


class LookedAt(NamedTuple):
    """Some rows of a label, as many of either class, in order."""

    target: Target  # the label
    rows_R: np.ndarray  # which of its rows
    labels_R: np.ndarray  # their classes, 0 and 1; of numbers 1 is what is high

    @property
    def classes(self) -> tuple[str, str]:
        """Describes in words the rows of either class."""
        task = self.target.task
        if self.target.is_event:
            return f"{task!r} is 1", "it is 0"
        return f"{task!r} is above {np.median(self.target.raw_L):.4g}", "it is not"

    @property
    def said(self) -> str:
        """Describes, in words, what the two classes tell apart."""
        return repr(self.target.task) if self.target.is_event else f"whether {self.classes[0]}"

    def own_target(self, lists: "_Lists", values: Mapping[str, np.ndarray]) -> str | None:
        """Says that a list holds a value of its row far more often in one class, or None."""
        high, low = self.classes
        best: tuple[float, str] | None = None
        for name, value_R in values.items():
            held_R = lists.hold(value_R) & (value_R != MISSING_HASH)
            there_R = (value_R != MISSING_HASH) & (lists.lengths_R > 0)
            rates = [held_R[there_R & (self.labels_R == event)] for event in (0, 1)]
            if min(map(len, rates)) < _FEWEST:
                continue
            others, own = (float(part.mean()) for part in rates)
            if max(own, others) >= _HELD and abs(own - others) >= _APART:
                words = (
                    f"it holds the row's own {name!r} in {own:.1%} of the rows where {high}, in "
                    f"{others:.1%} where {low}, as a history written after the event does"
                )
                best = max(best or (0.0, ""), (abs(own - others), words))
        return None if best is None else best[1]

    def own_number(self, lists: "_Lists", own_R: np.ndarray) -> str | None:
        """Says that a list holds the number to be predicted, and not that of another row."""
        held, others = (float(lists.hold(one_R).mean()) for one_R in (own_R, np.roll(own_R, 1)))
        if held < _HELD or held - others < _APART:
            return None
        return (
            f"it holds the row's own {self.target.task!r} in {held:.1%} of the rows, as one "
            "written after it does"
        )

    def own_label(self, lists: "_Lists") -> str | None:
        """Says that its length, its first or its last item tells the label, or None.

        Rates come from the other half of the rows.
        """
        lengths_R, ends_R = lists.lengths_R, np.cumsum(lists.lengths_R)
        numbers_R = np.arange(len(lengths_R), dtype=np.uint64)
        half_R = (mix64(numbers_R, seed=3) & np.uint64(1)).astype(bool)
        padded_V = np.append(lists.items_V, MISSING_HASH)
        readings = {
            "length": lengths_R.astype(np.uint64),
            "first item": np.where(lengths_R > 0, padded_V[ends_R - lengths_R], MISSING_HASH),
            "last item": np.where(lengths_R > 0, padded_V[ends_R - 1], MISSING_HASH),
        }
        for what, value_R in readings.items():
            distinct, codes_R = np.unique(value_R, return_inverse=True)
            auc = auc_by_rates(codes_R, len(distinct), self.labels_R, half_R)
            if auc > TOO_GOOD:
                return f"its {what} alone predicts {self.said} with AUC {auc:.4f}"
        return None


def look_at(sample: Sample) -> list[LookedAt]:
    """Chooses the rows of each label that has enough of them to tell."""
    found = []
    for target in sample.targets:
        labels_L = target.raw_L
        if not target.is_event:  # above the median, or the least number where it is most of them
            labels_L = (labels_L > np.median(labels_L)).astype(np.float64)
        rows = [np.flatnonzero(labels_L == event) for event in (0.0, 1.0)]
        for event, mine in enumerate(rows):
            if len(mine) > _ROWS:
                order = np.argsort(mix64(mine.astype(np.uint64), seed=4), kind="stable")
                rows[event] = mine[order[:_ROWS]]
        counts = [len(part) for part in rows]
        if min(counts) < _FEWEST or not enough_to_tell(counts[1], counts[0], TOO_GOOD, SURE):
            continue
        rows_R = np.sort(np.concatenate(rows))
        found.append(LookedAt(target, rows_R, labels_L[rows_R]))
    return found


def lists_that_tell(
    table: pa.Table,
    profiles: Mapping[str, ColumnProfile],
    lists: list[str],
    sample: Sample,
    looked_at: Sequence[LookedAt],
) -> dict[str, str]:
    """Finds lists that hold what their row's event adds to them: column → why.

    A history of before the event holds the candidate as often whatever the label comes to be; one
    that is written after it holds each candidate that was clicked.

    Args:
        table: All rows.
        profiles: Of all columns.
        lists: Names of the lists.
        sample: What the rows are of.
        looked_at: Rows of each label.
    """
    found: dict[str, str] = {}
    if not lists:
        return found
    scalars = [p for p in profiles.values() if p.nature not in ("list", "vector", "other")]
    scalars = [p for p in scalars if p.distinct >= _ITEMS and not p.separator]
    scalars = sorted(scalars, key=lambda p: -p.distinct)[:_COMPARED]
    for rows in looked_at:
        target, rows_R, _ = rows
        chosen = pa.array(sample.rows_S[target.index_L[rows_R]])
        own_R = None if target.is_event else _hashes(pa.chunked_array([target.raw_L[rows_R]]))
        values = {p.name: _hashes(table[p.name].take(chosen)) for p in scalars}
        for name in lists:
            if name in found:
                continue
            cells = _as_lists(table[name].take(chosen), profiles[name])
            if cells is None:
                continue
            held = _Lists.of(cells)
            reason = rows.own_target(held, values) or rows.own_label(held)
            if own_R is not None:
                reason = reason or rows.own_number(held, own_R)
            if reason is not None:
                found[name] = reason
        for name in [*found]:  # parts of one sequence have the same length in each row
            cells = _as_lists(table[name].take(chosen), profiles[name])
            lengths_R = None if cells is None else list_lengths(cells)
            for other in lists:
                if other in found or lengths_R is None or lengths_R.min() == lengths_R.max():
                    continue
                theirs = _as_lists(table[other].take(chosen), profiles[other])
                if theirs is not None and np.array_equal(list_lengths(theirs), lengths_R):
                    found[other] = f"its events are those of {name!r}: {found[name]}"
    return found


def pairs_that_tell(columns: Mapping[str, Coded], looked_at: Sequence[LookedAt]) -> dict[str, str]:
    """Finds pairs of columns that give a label away where neither does alone: column → why.

    A tree of depth 2 that may cut each column in eight, grown on one half of the rows and judged
    on the other; numbers are also compared with each other. Of a label of numbers the tree tells
    what is high.

    Args:
        columns: What else would be inputs.
        looked_at: Rows of each label.
    """
    found: dict[str, str] = {}
    names = sorted(columns, key=lambda name: -min(columns[name].size, 2))[:_PAIRED]
    if len(names) < 2:
        return found
    for rows in looked_at:
        target, rows_R, labels_R = rows
        index_R = target.index_L[rows_R]
        half_R = (mix64(index_R.astype(np.uint64), seed=3) & np.uint64(1)).astype(bool)
        codes = [_bucketed(columns[name], index_R) for name in names]
        numbers = [_numbers(columns[name], index_R) for name in names]
        cells_CC = _at_a_glance([codes_R for codes_R, _ in codes], labels_R) > _GLANCED
        order_CC = _may_tell(numbers, labels_R == 1)
        for u, v in np.argwhere(cells_CC | order_CC).tolist():
            one, other = names[u], names[v]
            if one in found or other in found:
                continue
            tried = []
            if cells_CC[u, v]:
                (u_R, size_u), (v_R, size_v) = codes[u], codes[v]
                tried.append((u_R * size_v + v_R, size_u * size_v))
            a_R, b_R = numbers[u], numbers[v]
            if order_CC[u, v] and a_R is not None and b_R is not None:
                tried.append((np.nan_to_num(np.sign(a_R - b_R), nan=2.0).astype(int) + 1, 4))
            auc = max(auc_by_rates(c_R, size, labels_R, half_R) for c_R, size in tried)
            if auc > (TOO_GOOD if target.is_event else _HIGH):
                words = f"together they predict {rows.said} with AUC {auc:.4f}"
                found[one] = f"with {other!r}: {words}; keep one of them if it is known before"
                found[other] = f"with {one!r}: {words}"
    return found


def _at_a_glance(codes: list[np.ndarray], labels_R: np.ndarray) -> np.ndarray:
    """AUC of each pair of columns by the rates of the rows themselves, [C, C] above the diagonal.

    It is more than that by the rates of other rows, and takes one product of matrices for all.
    """
    cells = _BUCKETS + 1
    hot_RK = np.zeros((len(labels_R), len(codes) * cells), np.float32)
    for column, codes_R in enumerate(codes):
        hot_RK[np.arange(len(labels_R)), column * cells + codes_R] = 1.0
    u_P, v_P = np.triu_indices(len(codes), 1)
    positives, negatives = (
        (rows_EK.T @ rows_EK)
        .reshape(len(codes), cells, len(codes), cells)[u_P, :, v_P]
        .reshape(len(u_P), -1)
        for rows_EK in (hot_RK[labels_R == 1], hot_RK[labels_R == 0])
    )
    order = np.argsort(positives / np.maximum(positives + negatives, 1.0), axis=1)
    positives, negatives = (
        np.take_along_axis(part, order, axis=1) for part in (positives, negatives)
    )
    below = np.cumsum(negatives, axis=1) - negatives / 2
    auc_CC = np.zeros((len(codes), len(codes)))
    auc_CC[u_P, v_P] = (positives * below).sum(axis=1)
    return auc_CC / ((labels_R == 1).sum() * (labels_R == 0).sum())


def _may_tell(numbers: list[np.ndarray | None], event_R: np.ndarray) -> np.ndarray:
    """Pairs of numbers where one is the smaller far more often in one class.

    Returns:
        bool [C, C], above the diagonal.
    """
    ordered = [place for place, values_R in enumerate(numbers) if values_R is not None]
    found_CC = np.zeros((len(numbers), len(numbers)), bool)
    if len(ordered) < 2:
        return found_CC
    values_NR = np.array([numbers[place] for place in ordered])
    share_R = np.where(event_R, 1 / event_R.sum(), -1 / (~event_R).sum())
    less_NN = np.array([(values_R < values_NR) @ share_R for values_R in values_NR])
    apart_NN = np.maximum(np.abs(less_NN), np.abs(less_NN.T)) >= _APART
    found_CC[np.ix_(ordered, ordered)] = np.triu(apart_NN, 1)
    return found_CC


def _hashes(column: pa.ChunkedArray) -> np.ndarray:
    return value_hashes(one_chunk(plain(column)))


def _as_lists(column: pa.ChunkedArray, profile: ColumnProfile) -> pa.Array | None:
    """Cells as lists; of text the parts between separators."""
    column = plain(column)
    if profile.separator and pa.types.is_large_string(column.type):
        between = profile.separator.strip() or " "
        if mark := profile.keys.get("weight_separator"):
            weight = rf"{mark}[^{mark}]*?({re.escape(between)}|$)"
            column = pc.replace_substring_regex(column, weight, r"\1")
        column = pc.split_pattern(pc.utf8_trim(column, "[] "), between)
    return one_chunk(column) if is_list(column.type) else None


class _Lists(NamedTuple):
    """Items of R rows' lists by their hashes, and the row of each."""

    lengths_R: np.ndarray
    items_V: np.ndarray
    owner_V: np.ndarray

    @classmethod
    def of(cls, cells: pa.Array) -> "_Lists":
        lengths_R = list_lengths(cells)
        items_V = _hashes(pa.chunked_array([cells.flatten()]))
        return cls(lengths_R, items_V, np.repeat(np.arange(len(lengths_R)), lengths_R))

    def hold(self, value_R: np.ndarray) -> np.ndarray:
        """Whether a row's list holds the row's value, bool [R]."""
        same_V = self.items_V == value_R[self.owner_V]
        return np.bincount(self.owner_V[same_V], minlength=len(self.lengths_R)) > 0


def _bucketed(coded: Coded, index_R: np.ndarray) -> tuple[np.ndarray, int]:
    """Numbers in eight buckets of as many rows, ids as the seven commonest and the others."""
    codes_R = coded.codes_S[index_R]
    if coded.size <= _BUCKETS:
        return codes_R, coded.cells
    counts_V = np.bincount(codes_R, minlength=coded.cells)[: coded.size]
    if coded.values_V is None:
        bucket_V = np.full(coded.size, _BUCKETS - 1)
        bucket_V[np.argsort(-counts_V, kind="stable")[: _BUCKETS - 1]] = np.arange(_BUCKETS - 1)
    else:
        below_V = np.cumsum(counts_V) - counts_V / 2
        bucket_V = np.minimum(below_V * _BUCKETS // max(counts_V.sum(), 1), _BUCKETS - 1)
    return np.append(bucket_V, _BUCKETS).astype(np.int64)[codes_R], _BUCKETS + 1


def _numbers(coded: Coded, index_R: np.ndarray) -> np.ndarray | None:
    """The values themselves, NaN where missing; None where they have no order, or are few."""
    if coded.values_V is None or coded.size <= _BUCKETS:
        return None
    return np.append(coded.values_V.astype(np.float64), np.nan)[coded.codes_S[index_R]]

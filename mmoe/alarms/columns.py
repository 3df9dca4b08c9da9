"""Columns as checks read them, and their counts in training, small enough to keep with a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from mmoe.alarms.alarm import Alarm
from mmoe.config import Count, Number, Stored
from mmoe.config.json_files import Share

ColumnKind = Literal["number", "id", "part", "list"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One input of N rows, as an encoder gave it; V = N items but for lists.

    Attributes:
        name: The feature's.
        kind: number, id, part (of a datetime) or list.
        items: Scaled numbers, float32 [V]; or ids, int [V]: 0 missing, 1 unseen, 2 and up.
        missing: Bool [V].
        rows: N.
        at_zero: Where missing numbers cannot be told from those scaled to 0: the share of the items
            that are 0; None elsewhere, and of ids.
        empty_rows: Of lists: the share of the rows that have none; None elsewhere.
        empty: What a file calls an item that is missing, or that `at_zero` counts.
        zero: What the number 0 is scaled to; None of ids.
        unseen: Share of the present items that training did not know; None where ids have no
            vocabulary.
        expected_unseen: Of training rows: the share that would be unseen if its row were held out.
        shares_rare: Whether ids that training saw too rarely share the row of unseen ones.
        unscale: Scaled numbers as the file has them.
        shown: An id as the file has it.
    """

    name: str
    kind: ColumnKind
    items: np.ndarray
    missing: np.ndarray
    rows: int
    at_zero: float | None = None
    empty_rows: float | None = None
    empty: str = "empty"
    zero: float | None = None
    unseen: float | None = None
    expected_unseen: float | None = None
    shares_rare: bool = False
    unscale: Callable[[np.ndarray], np.ndarray] = lambda x: x
    shown: Callable[[int], str] = str

    @property
    def coded(self) -> tuple[np.ndarray, int]:
        """Ranks of the items among their values, and how many values; missing ones come first."""
        values, ranks_V = np.unique(self.items, return_inverse=True)
        return np.where(self.missing, 0, ranks_V + 1), len(values) + 1


# Quantile bins of a number, and ids that are counted one by one: enough to judge a column alone by,
# and a file of some 10 kB a column
_BINS = 32
_IDS = 256
# Over all columns, where these are many: then the file stays within some megabytes
_ALL_IDS = 16_384
# Rows of the base rate added to each bin's: a rate of few rows says little
_SMOOTHING = 20.0

_LARGEST_TABLE = 1 << 22  # ids that are looked up in a table: 8 MiB
_LARGEST = 1e100  # that a `Number` may be
_Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class StoredColumn(Stored):
    """Counts of one column in training, bin by bin.

    Bins of a number: missing, then (edges[i − 1], edges[i]] of its scaled values. Of ids: missing,
    all others, then `ids`.

    Attributes:
        kind: As of `Column`.
        edges: Between the bins of a number, ascending.
        ids: Those with a bin of their own.
        counts: Items in each bin.
        at_zero: As of `Column`.
        empty_rows: As of `Column`.
        unseen: Share of the items that would be unseen if their row were held out.
        median: Of the numbers, as the file has them.
        positives: Task → labels that are 1 in each bin.
        observed: Task → labels in each bin.
    """

    kind: ColumnKind
    edges: list[Number] = Field(default_factory=list)
    ids: list[_Id] = Field(default_factory=list)
    counts: list[Count]
    at_zero: Share | None = None
    empty_rows: Share | None = None
    unseen: Share | None = None
    median: Number | None = None
    positives: dict[str, list[Number]] = Field(default_factory=dict)
    observed: dict[str, list[Count]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fit(self) -> "StoredColumn":
        bins = 2 + len(self.edges if self.kind == "number" else self.ids)
        for name, counted in [
            ("counts", self.counts),
            *self.positives.items(),
            *self.observed.items(),
        ]:
            if len(counted) != bins:
                raise ValueError(f"{name} has {len(counted)} values for {bins} bins")
        if self.positives.keys() != self.observed.keys():
            raise ValueError("positives and observed are of other tasks")
        return self

    def codes(self, column: Column) -> np.ndarray:
        """Returns the bin of each item, int [V]."""
        if self.kind == "number":
            codes_V = 1 + np.searchsorted(self._edges, column.items, side="left")
        elif self._bin_of_id is not None:
            # A negative id is a large one, of no bin either
            indices_V = column.items.astype(np.int64, copy=False).view(np.uint64)
            last = np.uint64(len(self._bin_of_id) - 1)
            codes_V = self._bin_of_id[np.minimum(indices_V, last).view(np.int64)]
        else:
            ids = self._ids
            order = np.argsort(ids)
            indices_V = np.searchsorted(ids, column.items, sorter=order)
            indices_V = order[np.minimum(indices_V, len(ids) - 1)]
            codes_V = np.where(ids[indices_V] == column.items, 2 + indices_V, 1)
        return np.where(column.missing, 0, codes_V)

    @cached_property
    def _edges(self) -> np.ndarray:
        return np.array(self.edges)

    @cached_property
    def _bin_of_id(self) -> np.ndarray | None:
        """The bin of each id up to the last that has one, and of one beyond; None: too many."""
        ids = self._ids
        if len(ids) and not 0 <= ids.min() <= ids.max() < _LARGEST_TABLE:
            return None
        bins = np.ones(int(ids.max(initial=0)) + 2, np.uint16)
        bins[ids] = 2 + np.arange(len(ids))
        return bins

    @cached_property
    def _ids(self) -> np.ndarray:
        return np.array(self.ids, np.int64)

    def rates(self, task: str) -> np.ndarray:
        """Returns each bin's rate of positives in training; to the mean where rows are few."""
        positives, observed = np.array(self.positives[task]), np.array(self.observed[task])
        base = positives.sum() / max(observed.sum(), 1)
        return (positives + base * _SMOOTHING) / (observed + _SMOOTHING)

    @property
    def shares(self) -> np.ndarray:
        """Returns each bin's part of the items."""
        return np.array(self.counts) / max(sum(self.counts), 1)

    @property
    def missing(self) -> float | None:
        """Share of the items that were missing, at most; of lists, of the rows that had none."""
        if self.kind == "list":
            return self.empty_rows
        if self.at_zero is not None:
            return self.at_zero
        return self.counts[0] / sum(self.counts) if sum(self.counts) else None

    def counted(self, column: Column) -> np.ndarray:
        """Returns how many items lie in each bin; faster than to look for each item's."""
        there_V = column.items[~column.missing] if column.missing.any() else column.items
        if self.kind == "number":
            # A sorted column has only the edges to be searched for
            ends = np.searchsorted(np.sort(there_V), self._edges, side="right")
            of_bins = np.diff(ends, prepend=0, append=len(there_V))
        elif self._bin_of_id is not None and len(self._bin_of_id) <= len(there_V):
            last = np.uint64(len(self._bin_of_id) - 1)
            indices_V = np.minimum(there_V.astype(np.int64, copy=False).view(np.uint64), last)
            by_id = np.bincount(indices_V.view(np.int64), minlength=int(last) + 1)
            of_ids = by_id[self._ids]
            of_bins = np.concatenate([[len(there_V) - of_ids.sum()], of_ids])
        else:
            return np.bincount(self.codes(column), minlength=len(self.counts))
        return np.concatenate([[len(column.items) - len(there_V)], of_bins])

    @classmethod
    def of(
        cls,
        column: Column,
        labels_NT: np.ndarray,
        observed_NT: np.ndarray,
        events: Mapping[str, int],
        most_ids: int = _IDS,
    ) -> "StoredColumn":
        """Counts a column of training rows.

        Args:
            column: N rows.
            labels_NT: Their labels.
            observed_NT: Where these are.
            events: Name of each task whose labels are 0 and 1 → its place.
            most_ids: That have bins of their own.
        """
        present = column.items[~column.missing]
        edges, ids, median = [], [], None
        if column.kind == "number":
            edges = _edges(present)
            raw = column.unscale(np.median(present, keepdims=True)) if len(present) else [np.nan]
            median = float(raw[0]) if abs(float(raw[0])) < _LARGEST else None
            bins = len(edges) + 2
        else:
            values, counts = np.unique(present[present > 1], return_counts=True)
            ids = values[np.argsort(-counts, kind="stable")[:most_ids]].tolist()
            bins = len(ids) + 2
        empty = cls(kind=column.kind, edges=edges, ids=ids, counts=[0] * bins)
        codes_V = empty.codes(column)
        labels = {} if column.kind == "list" else {
            task: _labels(codes_V, bins, labels_NT[:, t], observed_NT[:, t])
            for task, t in events.items()
        }  # fmt: skip
        update = {
            "counts": np.bincount(codes_V, minlength=bins).tolist(),
            "at_zero": column.at_zero,
            "empty_rows": column.empty_rows,
            "unseen": column.expected_unseen,
            "median": median,
            "positives": {task: positives for task, (positives, _) in labels.items()},
            "observed": {task: observed for task, (_, observed) in labels.items()},
        }
        return empty.model_copy(update=update)


class TrainingColumns(Stored):
    """Counts of the training rows' columns, which `mmoe train` keeps in columns.json.

    Attributes:
        format: Of the file.
        rows: Training rows that were looked at.
        judged_by: How many of them count as independent: groups where rows have groups.
        alarms: Found in these rows.
        columns: By name.
    """

    FORMAT: ClassVar[int] = 1

    format: int
    rows: Count
    judged_by: Annotated[Count, Field(gt=0)]
    alarms: list[Alarm]
    columns: dict[str, StoredColumn]

    @classmethod
    def of(
        cls,
        columns: Iterable[Column],
        labels_NT: np.ndarray,
        observed_NT: np.ndarray,
        events: Mapping[str, int],
        *,
        judged_by: int,
        alarms: Sequence[Alarm] = (),
    ) -> "TrainingColumns":
        """Counts columns of training rows; arguments as of `StoredColumn.of`.

        Args:
            columns: N rows each.
            labels_NT: Their labels.
            observed_NT: Where these are, bool.
            events: Name of each task whose labels are 0 and 1 → its place.
            judged_by: How many rows count as independent: groups where rows have groups.
            alarms: Of training, kept beside the columns.
        """
        columns = list(columns)
        most_ids = min(_IDS, max(_BINS, _ALL_IDS // max(len(columns), 1)))
        stored = {
            c.name: StoredColumn.of(c, labels_NT, observed_NT, events, most_ids) for c in columns
        }
        return cls(
            format=cls.FORMAT,
            rows=len(labels_NT),
            judged_by=judged_by,
            alarms=list(alarms),
            columns=stored,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return self.model_dump(exclude_defaults=True)


def _edges(present: np.ndarray) -> list[float]:
    """Quantiles, each half-way to the next value: last bits differ from machine to machine."""
    values = np.unique(present).astype(np.float64)
    if len(values) < 2:
        return []
    if len(values) > _BINS:
        steps = np.linspace(0, 1, _BINS + 1)[1:-1]
        cuts = np.quantile(present, steps, method="inverted_cdf").astype(np.float64)
        indices = np.unique(np.searchsorted(values, cuts))
    else:
        indices = np.arange(len(values) - 1)
    indices = indices[indices < len(values) - 1]
    return ((values[indices] + values[indices + 1]) / 2).tolist()


def _labels(
    codes_N: np.ndarray, bins: int, labels_N: np.ndarray, observed_N: np.ndarray
) -> tuple[list[float], list[int]]:
    """Labels that are 1 in each bin, and all labels there."""
    codes_N, labels_N = codes_N[observed_N], labels_N[observed_N]
    positives = np.bincount(codes_N, weights=labels_N, minlength=bins)
    return positives.tolist(), np.bincount(codes_N, minlength=bins).tolist()

"""Rows of a log that come again: what is inferred, is inferred from each of them once."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import visible_columns
from mmoe.datasets.rows.repeats import RepeatCounter, hashes_of, later_copies, widest_columns
from mmoe.datasets.values.row_hashes import column_part, row_hashes

_FEW = 0.05  # of the rows; more that repeat are judged by chance alone


@dataclass(frozen=True)
class Distinct:
    """A table without copies of rows; `said`: how many there were, or "" where they are its own."""

    table: pa.Table
    said: str = ""


def without_copies(table: pa.Table, *, sampled: bool = False) -> Distinct:
    """Leaves out rows that come before already, unless chance alone explains them.

    Args:
        table: A log, with all its columns.
        sampled: It is a part of the log.

    Example:
        >>> rows = pa.table({"row": [*range(500), *range(200)], "x": [*range(500), *range(200)]})
        >>> without_copies(rows).table.num_rows
        500
    """
    names = visible_columns(table)
    if not names:
        return Distinct(table)
    widest = widest_columns(table, names)
    copies_N = _copies(table, widest)
    count = int(copies_N.sum())
    if not count:
        return Distinct(table)
    kept = table.filter(pa.array(~copies_N))
    if not (count <= _FEW * table.num_rows and _has_row_ids(kept, widest)):
        counter = RepeatCounter(table.num_rows, names)
        counter.add(0, table)
        if not counter.finish().unusual:
            return Distinct(table)
    of = (
        f"the {table.num_rows:,} rows that were looked at"
        if sampled
        else f"{table.num_rows:,} rows"
    )
    return Distinct(kept, f"{count:,} of {of} ({count / table.num_rows:.1%}) are copies of others")


def _copies(table: pa.Table, widest: list[str]) -> np.ndarray:
    """Which rows come before already, bool [N]; all columns are hashed where a few repeat alone."""
    again_N = np.zeros(table.num_rows, bool)
    _, place_N, times_K = np.unique(
        row_hashes(table, widest), return_inverse=True, return_counts=True
    )
    rows = np.flatnonzero(times_K[place_N] > 1)
    if len(rows):
        again_N[rows] = later_copies([hashes_of(table.take(pa.array(rows)))])[0]
    return again_N


def _has_row_ids(table: pa.Table, widest: list[str]) -> bool:
    """Whether a column tells all rows apart: who has one of them twice has a row twice."""
    return any(len(np.unique(column_part(table[n], 0))) == table.num_rows for n in widest)

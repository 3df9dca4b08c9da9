"""Stored columns of training rows: items are counted as their bins say."""

import numpy as np
import pytest

from mmoe.alarms import Column
from mmoe.alarms.columns import StoredColumn

EDGES = [-1.5, 0.1, 0.1 + 1e-9, 2.0]  # two of which no float32 lies between
IDS = [7, 2, 0, 900]


def column(kind: str, items: np.ndarray, missing: np.ndarray) -> Column:
    return Column(name="x", kind=kind, items=items, missing=missing, rows=len(items))


@pytest.mark.parametrize(("rows", "share"), [(0, 0.0), (1, 1.0), (5000, 0.0), (5000, 0.3)])
def test_counted_numbers_are_those_of_their_bins(rows, share):
    rng = np.random.default_rng(rows)
    items = rng.choice(np.float32([*EDGES, -np.inf, np.inf, np.nan, 0.3, -4]), rows)
    stored = StoredColumn(kind="number", edges=EDGES, counts=[0] * 6)
    given = column("number", items, rng.random(rows) < share)
    expected = np.bincount(stored.codes(given), minlength=6)
    np.testing.assert_array_equal(stored.counted(given), expected)
    assert stored.counted(given).sum() == rows


@pytest.mark.parametrize("ids", [IDS, [], [2**40, 5]], ids=["some", "none", "too large a table"])
def test_counted_ids_are_those_of_their_bins(ids):
    rng = np.random.default_rng(1)
    items = rng.choice(np.int64([*IDS, *ids, 1, 901, 10**12, -3]), 4000)[::2]  # strided
    stored = StoredColumn(kind="id", ids=ids, counts=[0] * (2 + len(ids)))
    given = column("id", items, rng.random(2000) < 0.3)
    expected = np.bincount(stored.codes(given), minlength=2 + len(ids))
    np.testing.assert_array_equal(stored.counted(given), expected)

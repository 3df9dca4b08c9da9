import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.datasets.stream.order import row_order, window_rows, windows


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    rows=st.integers(1, 60),
    first=st.integers(0, 300),
)
def test_windows_cover_every_row_once(counts, rows, first):
    counts_P = np.array(counts)
    total = int(counts_P.sum())
    found = list(windows(counts_P, rows, seed=1, epoch=2))
    assert [w.start for w in found] == list(range(0, total, rows))
    assert sum(w.stop - w.start for w in found) == total
    taken = np.zeros(len(counts), int)
    for window in found:
        need = window.stop - window.start
        skip = window.skip
        for piece in window.pieces:
            assert counts_P[piece] > 0
            got = min(need, counts_P[piece] - skip)
            assert got > 0, "no piece is opened in vain"
            taken[piece] += got
            need, skip = need - got, 0
        assert need == 0
    np.testing.assert_array_equal(taken, counts_P)
    assert list(windows(counts_P, rows, 1, 2, first)) == found[first // rows :]


def test_orders_differ_by_epoch_seed_and_window():
    counts_P = np.full(20, 10)
    pieces = {
        (s, e): [w.pieces for w in windows(counts_P, 50, s, e)] for s in (0, 1) for e in (0, 1)
    }
    assert len({str(order) for order in pieces.values()}) == 4
    one, two = list(windows(counts_P, 50, 0, 0))[:2]
    assert not np.array_equal(row_order(one, 0, 0), row_order(two, 0, 0))
    np.testing.assert_array_equal(
        row_order(one, 3, 1), np.random.default_rng([3, 1]).permutation(50)
    )


@pytest.mark.parametrize(("buffer", "batch", "rows"), [(1, 64, 64), (100, 64, 128), (128, 64, 128)])
def test_windows_hold_whole_batches(buffer, batch, rows):
    assert window_rows(buffer, batch) == rows

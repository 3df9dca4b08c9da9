import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.datasets.rows.order import row_order, window_rows, windows


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    rows=st.integers(1, 60),
    first=st.integers(0, 300),
    interleave=st.integers(1, 5),
)
def test_windows_cover_every_row_once(counts, rows, first, interleave):
    counts_P = np.array(counts)
    total = int(counts_P.sum())
    found = list(windows(counts_P, rows, 1, 2, 0, interleave))
    assert [w.start for w in found] == list(range(0, total, rows))
    assert [w.number for w in found] == list(range(len(found)))
    done = np.zeros(len(counts), int)
    for window in found:
        assert sum(take.rows for take in window.takes) == window.stop - window.start
        for take in window.takes:
            assert take.rows > 0, "no piece is opened in vain"
            assert take.start == done[take.piece], "a piece is read from its start to its end"
            done[take.piece] += take.rows
        begun = (done > 0) & (done < counts_P)
        assert begun.sum() <= interleave
    np.testing.assert_array_equal(done, counts_P)
    assert list(windows(counts_P, rows, 1, 2, first, interleave)) == found[first // rows :]


def test_orders_differ_by_epoch_seed_and_window():
    counts_P = np.full(20, 10)
    orders = {str([w.takes for w in windows(counts_P, 50, s, e)]) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    one, two = list(windows(counts_P, 50, 0, 0))[:2]
    assert not np.array_equal(row_order(one, 0, 0), row_order(two, 0, 0))
    np.testing.assert_array_equal(
        row_order(one, 3, 1), np.random.default_rng([3, 1]).permutation(50)
    )


def test_a_window_has_rows_of_all_pieces_that_are_read_side_by_side():
    first = next(windows(np.full(4, 1000), 100, 0, 0, 0, interleave=4))
    assert sorted(take.piece for take in first.takes) == [0, 1, 2, 3]
    assert {take.rows for take in first.takes} == {25}


@pytest.mark.parametrize(("buffer", "batch", "rows"), [(1, 64, 64), (100, 64, 128), (128, 64, 128)])
def test_windows_hold_whole_batches(buffer, batch, rows):
    assert window_rows(buffer, batch) == rows

import numpy as np
import pytest

from mmoe.datasets.rows.order import GroupOrder, Share, cut_groups, row_order, window_rows, windows


def test_orders_differ_by_epoch_seed_and_window():
    counts_P = np.full(20, 10)
    orders = {str([w.takes for w in windows(counts_P, 50, s, e)]) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    one, two = list(windows(counts_P, 50, 0, 0))[:2]
    assert not np.array_equal(row_order(one, 0, 0), row_order(two, 0, 0))
    expected = np.random.default_rng([3, 1]).permutation(50)
    np.testing.assert_array_equal(row_order(one, 3, 1), expected)
    first = next(windows(np.full(4, 1000), 100, 0, 0, 0, interleave=4))
    assert sorted(take.piece for take in first.takes) == [0, 1, 2, 3]
    assert {take.rows for take in first.takes} == {25}
    assert [window_rows(buffer, 64) for buffer in (1, 100, 128)] == [64, 128, 128]


RNG = np.random.default_rng(0)
CASES = {
    "small": RNG.integers(0, 40, 200),
    "with rows on their own": RNG.integers(-1, 10, 150),
    "one group": np.zeros(70, int),
    "groups of one": np.arange(33),
    "all missing": np.full(20, -1),
    "larger than a batch": np.repeat([0, 1, 2, 3], [50, 3, 17, 1]),
    "one row": np.array([5]),
    "none": np.zeros(0, int),
}


def batches(groups, size, epoch=0, ranks=1):
    order = GroupOrder.of(groups, size, 3, epoch)
    return [
        [order.batch(number, size, Share(rank, ranks)) for rank in range(ranks)]
        for number in range(order.batches(size))
    ]


@pytest.mark.parametrize("groups", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("size", "ranks"), [(1, 1), (7, 3), (16, 1), (1000, 3)])
def test_every_row_comes_once_and_groups_stay_together(groups, size, ranks):
    found = batches(groups, size, ranks=ranks)
    rows = [rows for batch in found for rows, _ in batch]
    assert sorted(np.concatenate([*rows, np.zeros(0, int)]).tolist()) == list(range(len(groups)))
    assert len(found) in (-(-len(groups) // size), max(-(-len(groups) // size) - 1, 1))
    for batch in found:
        total = sum(len(rows) for rows, _ in batch)
        assert 0 < total < 2 * size
    parts = [
        groups[rows_B[parts_B == part]]
        for batch in found
        for rows_B, parts_B in batch
        for part in range(int(parts_B.max(initial=-1)) + 1)
    ]
    # A part is of one group; rows without a key are on their own; no more parts than are needed
    assert all(len(set(part.tolist())) == 1 for part in parts)
    assert all(len(part) == 1 for part in parts if part[0] < 0)
    counts = np.bincount(groups[groups >= 0])
    assert len(parts) == (groups < 0).sum() + sum(-(-count // size) for count in counts)


def test_ranks_have_the_batch_of_one_process_and_epochs_differ():
    groups = CASES["small"]
    for one, many in zip(batches(groups, 32), batches(groups, 32, ranks=3), strict=True):
        assert np.array_equal(one[0][0], np.concatenate([rows for rows, _ in many]))
    first, again, second = (GroupOrder.of(groups, 16, 3, epoch).rows_N for epoch in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, second)
    assert cut_groups(CASES["larger than a batch"], 16) == 2
    assert cut_groups(CASES["all missing"], 1) == 0

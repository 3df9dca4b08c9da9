"""Lanes: what a batch holds depends on their number, never on who reads them."""

from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.datasets.rows.order import Lane, LanesOfRank, Share, row_order, windows
from mmoe.datasets.stream import describe_lanes, open_stream
from mmoe.datasets.stream.source import StreamSource
from tests.small_configs import click_config

SIZE = 32
GROUPS = (1, 70, 13, 250, 2, 40, 40, 90, 130, 5)  # rows of row groups


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    rows=st.integers(1, 60),
    first=st.integers(0, 300),
    interleave=st.integers(1, 5),
    lanes=st.integers(1, 7),
)
def test_lanes_cover_every_row_once(counts, rows, first, interleave, lanes):
    counts_P, total = np.array(counts), sum(counts)
    mine = [Lane(number, lanes) for number in range(lanes)]
    done = np.zeros(total, int)
    before_P = np.cumsum(counts_P) - counts_P
    in_lane_LP = np.zeros((lanes, len(counts)), bool)
    for lane in mine:
        plan = list(windows(counts_P, rows, 1, 2, 0, interleave, lane))
        assert [w.start for w in plan] == list(range(0, total, rows)), "lanes go in step"
        assert list(windows(counts_P, rows, 1, 2, first, interleave, lane)) == plan[first // rows :]
        seen = {}
        for window in plan:
            assert len(window) == window.rows_before(window.stop)
            for take in window.takes:
                assert take.rows > 0
                assert seen.get(take.piece, take.start) == take.start, "no row is passed over"
                seen[take.piece] = take.start + take.rows
                at = before_P[take.piece] + take.start
                done[at : at + take.rows] += 1
                in_lane_LP[lane.number, take.piece] = True
            begun = [p for p, end in seen.items() if 0 < end < counts_P[p]]
            assert lanes > 1 or len(begun) <= interleave
    assert (done == 1).all()
    # A piece is in two lanes only where one ends and the next begins (or in all that it fills)
    assert in_lane_LP.sum() <= np.count_nonzero(counts_P) + lanes - 1


@given(total=st.integers(0, 500), size=st.integers(1, 40), lanes=st.integers(1, 9))
def test_a_batch_has_as_many_rows_of_each_lane(total, size, lanes):
    mine = [Lane(number, lanes) for number in range(lanes)]
    sizes = [lane.rows_before(total) for lane in mine]
    assert [lane.first_row(total) for lane in mine] == [sum(sizes[:n]) for n in range(lanes)]
    for start in range(0, total, size):
        stop = min(start + size, total)
        rows = [lane.rows_before(stop) - lane.rows_before(start) for lane in mine]
        assert sum(rows) == stop - start
        assert max(rows) - min(rows) <= 1


@given(ranks=st.integers(1, 12), lanes=st.integers(1, 12))
def test_ranks_share_lanes_in_order(ranks, lanes):
    found = [LanesOfRank.of(Share(rank, ranks), lanes) for rank in range(ranks)]
    pairs = [(lane.number, *of.share) for of in found for lane in of.lanes]
    expected = []
    for number in range(lanes):
        sharers = ranks * (number + 1) // lanes - ranks * number // lanes if ranks > lanes else 1
        expected += [(number, rank, sharers) for rank in range(sharers)]
    assert pairs == expected


def test_lanes_and_their_windows_are_shuffled_apart():
    plan = [next(windows(np.full(40, 10), 100, 0, 0, 0, 1, Lane(n, 4))) for n in range(4)]
    orders = [row_order(window, 0, 0).tolist() for window in plan]
    assert len({str(order) for order in orders}) == 4
    pieces = [{take.piece for take in window.takes} for window in plan]
    assert len(set.union(*pieces)) == sum(map(len, pieces))


def log(folder, groups=GROUPS, files=2):
    """Row groups of these sizes; `row` numbers all rows."""
    table = pa.table({"row": np.arange(sum(groups)), "click": np.arange(sum(groups)) % 2})
    ends, each = np.cumsum(groups), -(-len(groups) // files)
    for n in range(files):
        mine = range(n * each, min((n + 1) * each, len(groups)))
        with pq.ParquetWriter(folder / f"{n}.parquet", table.schema) as writer:
            for g in mine:
                writer.write_table(table.slice(ends[g] - groups[g], groups[g]))
    return str(folder)


def train_rows(path, lanes, **streaming):
    """The training split, 90 % of the rows of each row group."""
    settings = {"shuffle_buffer_rows": 120, "chunk_rows": 16, "interleave": 3, "lanes": lanes}
    config = click_config(
        {"kind": "numeric", "name": "row", "standardise": False},
        data={
            "path": path,
            "input": "stream",
            "split": {"validation": 0.05, "test": 0.05},
            "streaming": {**settings, **streaming},
        },
    )
    splits = open_stream(config)
    return splits.rows("train", splits.fit())


def batches(rows, share, epoch=0, first=0, seed=3):
    """The row numbers of every batch that the rank takes."""
    return [
        batch.dense_BF[:, 0].int().tolist()
        for batch in rows.epoch_batches(seed, epoch, SIZE, first, share)
    ]


def flat(lists):
    return list(chain.from_iterable(lists))


def joined(rows, ranks, **which):
    """The batches of all ranks, their parts joined in order of ranks."""
    of_ranks = [batches(rows, Share(rank, ranks), **which) for rank in range(ranks)]
    return [flat(parts) for parts in zip(*of_ranks, strict=True)]


@pytest.mark.parametrize(("lanes", "buffer"), [(1, 40), (3, 40), (3, 10_000)])
def test_any_number_of_ranks_trains_on_the_same_batches(tmp_path, lanes, buffer):
    rows = train_rows(log(tmp_path), lanes, shuffle_buffer_rows=buffer)
    alone = joined(rows, 1, epoch=1)
    assert [len(batch) for batch in alone[:-1]] == [SIZE] * (len(rows) // SIZE)
    numbers = flat(alone)
    assert len(set(numbers)) == len(numbers) == len(rows)
    for ranks in (2, 3, 4):
        assert joined(rows, ranks, epoch=1) == alone


def test_an_epoch_goes_on_after_every_batch_on_other_ranks(tmp_path):
    rows = train_rows(log(tmp_path), 3)
    whole = joined(rows, 4)
    for first in range(len(whole) + 1):
        assert joined(rows, 1 + first % 4, first=first) == whole[first:]


def test_orders_differ_by_seed_epoch_and_lanes(tmp_path):
    path = log(tmp_path)
    four, three = train_rows(path, 4), train_rows(path, 3)
    same = joined(four, 1)
    others = [joined(four, 1, seed=4), joined(four, 1, epoch=1), joined(three, 1)]
    assert len({str(found) for found in (same, *others)}) == 4
    for other in others:
        assert sorted(flat(other)) == sorted(flat(same))


@pytest.mark.parametrize("groups", [(1, 1, 1, 1), (5,)])
def test_fewer_rows_than_lanes(tmp_path, groups):
    """Two or three rows to train on: as many of seven ranks have one, the others none."""
    split = train_rows(log(tmp_path, groups, files=1), 7)
    alone = joined(split, 1)
    assert [len(batch) for batch in alone] == [len(split)]
    for ranks in (2, 7, 9):
        assert joined(split, ranks) == alone
    of_ranks = [len(batches(split, Share(rank, 7))[0]) for rank in range(7)]
    assert of_ranks == [1] * len(split) + [0] * (7 - len(split))


@pytest.fixture(name="reads")
def _reads(monkeypatch):
    """The row groups that were opened, by number."""
    found, read = [], StreamSource.read

    def counted(self, piece, columns):
        found.append(self.pieces.index(piece))
        yield from read(self, piece, columns)

    monkeypatch.setattr(StreamSource, "read", counted)
    return found


def test_a_rank_reads_its_own_row_groups(tmp_path, reads):
    """Of 40 row groups each of 4 ranks reads 10, and at most one more at either end."""
    rows, everything = train_rows(log(tmp_path, (20,) * 40), 4), []
    for rank in range(4):
        reads.clear()
        batches(rows, Share(rank, 4))
        assert len(set(reads)) == len(reads) <= 12
        everything += reads
    assert set(everything) == set(range(40))
    assert len(everything) <= 43
    reads.clear()
    batches(rows, Share(0, 4), first=15)
    assert len(reads) <= 6, "a resumed epoch leaves alone what is done"


def test_a_rank_keeps_its_own_rows_where_the_buffer_holds_the_split(tmp_path, reads):
    rows = train_rows(log(tmp_path, (20,) * 40), 4, shuffle_buffer_rows=1000)
    reads.clear()
    first = batches(rows, Share(1, 4), epoch=0)
    assert reads == sorted(reads) and len(reads) <= 12, "in file order"
    reads.clear()
    second = batches(rows, Share(1, 4), epoch=1)
    assert reads == [], "nothing is read again"
    assert sorted(flat(first)) == sorted(flat(second))
    assert first != second
    assert batches(rows, Share(0, 2)) != first, "another rank's lanes are read"
    assert reads


@pytest.mark.parametrize(("lanes", "least"), [(4, 4), (1, 2)])
def test_batches_mix_rows_of_several_row_groups(tmp_path, lanes, least):
    rows = train_rows(log(tmp_path, (20,) * 40), lanes, interleave=1)
    numbers = joined(rows, 1)
    assert min(len({number // 20 for number in batch}) for batch in numbers[:-1]) >= least
    assert abs(np.corrcoef(flat(numbers), np.arange(len(rows)))[0, 1]) < 0.5


@pytest.mark.parametrize(("lanes", "ranks", "says"), [
    (4, 1, "4 lanes, all read here"),
    (8, 4, "8 lanes: each of 4 ranks reads 2 of them"),
    (8, 3,
     "8 lanes: each of 3 ranks reads 2 or 3 of them; a multiple of 3 would give each as many rows"),
    (1, 2,
     "note: 2 ranks, data.streaming.lanes: 1: 2 ranks read each row; with lanes: 2 (or a "
     "multiple) one does, and rows come in another order"),
    (2, 3,
     "note: 3 ranks, data.streaming.lanes: 2: up to 2 ranks read each row; with lanes: 3 (or a "
     "multiple) one does, and rows come in another order"),
])  # fmt: skip
def test_what_ranks_read_is_said(lanes, ranks, says):
    assert describe_lanes(lanes, ranks) == says

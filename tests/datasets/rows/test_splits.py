import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import SplitConfig
from mmoe.datasets.files.readers import read_table
from mmoe.datasets.rows.splits import assign_splits, split_table


def table(**columns):
    return pa.table(columns)


def test_random_shares_are_exact_and_rows_keep_their_order():
    rows = table(x=np.arange(1000))
    parts = split_table(rows, SplitConfig(validation=0.1, test=0.2), 1, "log.csv")
    assert [part.num_rows for part in parts] == [700, 100, 200]
    taken = [part["x"].to_numpy() for part in parts]
    assert all((np.diff(part) > 0).all() for part in taken)
    assert np.array_equal(np.sort(np.concatenate(taken)), np.arange(1000))
    parts = split_table(table(x=[1, 2, 3]), SplitConfig(), 1, "log.csv")
    assert [part.num_rows for part in parts] == [1, 1, 1]


def test_random_split_is_the_same_for_ever():
    # Written down once: another machine or library version must give the same rows.
    split_N = assign_splits(table(x=np.arange(20)), SplitConfig(), 1, "x")
    assert split_N.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 2]
    other = assign_splits(table(x=np.arange(20)), SplitConfig(), 2, "x")
    assert other.tolist() != split_N.tolist()


def test_hash_split_is_the_same_for_ever_and_for_every_type_of_key():
    keys = list(range(20))
    split = SplitConfig(by="hash", column="key", validation=0.3, test=0.3)
    split_N = assign_splits(table(key=keys), split, 1, "x")
    assert split_N.tolist() == [0, 0, 2, 1, 0, 2, 0, 0, 1, 2, 2, 2, 2, 0, 2, 2, 0, 1, 2, 1]
    for same in (pa.array(keys, pa.uint8()), pa.array([float(key) for key in keys])):
        assert assign_splits(table(key=same), split, 1, "x").tolist() == split_N.tolist()


def test_hash_split_keeps_a_key_together_and_spreads_rows_without_one():
    draw = np.random.default_rng(0)
    split = SplitConfig(by="hash", column="key", validation=0.2, test=0.2)
    keys = draw.choice([*"abcdefghijklmnopqrstuvwxyz"], 400)
    split_N = assign_splits(table(key=[*keys, *map(str, range(100))]), split, 5, "x")[:400]
    for key in set(keys):
        assert len(set(split_N[keys == key])) == 1
    without = assign_splits(table(key=pa.array([None] * 3000, pa.string())), split, 1, "x")
    assert np.bincount(without).tolist() == pytest.approx([1800, 600, 600], rel=0.1)
    rows = pa.Table.from_arrays([[1] * 200, [2] * 200, list(range(200))], ["x", "x", "key"])
    found, alone = (assign_splits(part, split, 1, "x") for part in (rows, rows.select([2])))
    assert found.tolist() == alone.tolist(), "columns that are not looked at may share a name"


def test_times_beyond_int64_are_in_order():
    times = np.random.default_rng(0).integers(0, 40, 200).astype("u8") * np.uint64(2**58)
    config = SplitConfig(by="time", column="t", validation=0.2, test=0.2)
    splits = assign_splits(pa.table({"t": times}), config, 3, "log")
    assert times[splits == 0].max() < times[splits == 1].min()
    assert times[splits == 1].max() < times[splits == 2].min()


@pytest.mark.parametrize("times", [
    list(range(100)),
    [float(i) for i in range(100)],
    [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(100)],
    [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(100)],
    [(datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i)).isoformat() for i in range(100)],
    [f"{datetime.date(2024, 1, 1) + datetime.timedelta(days=i)}" for i in range(100)],
    [str(i) for i in range(100)],
], ids=["int", "float", "datetime", "date", "iso", "isodate", "digits"])  # fmt: skip
def test_time_split_trains_on_the_past(times):
    order = np.random.default_rng(0).permutation(100)
    rows = table(when=[times[i] for i in order], rank=order)
    parts = split_table(rows, SplitConfig(by="time", column="when"), 1, "log.csv")
    ranks = [np.sort(part["rank"].to_numpy()).tolist() for part in parts]
    assert ranks == [list(range(80)), list(range(80, 90)), list(range(90, 100))]


@settings(max_examples=25, deadline=None)
@given(times=st.lists(st.integers(0, 20), min_size=3, max_size=200))
def test_time_split_keeps_ties_together_and_in_order(times):
    if len(set(times)) < 3:
        with pytest.raises(ValueError, match="needs at least 3"):
            assign_splits(table(t=times), SplitConfig(by="time", column="t"), 1, "x")
        return
    split_N = assign_splits(table(t=times), SplitConfig(by="time", column="t"), 1, "x")
    spans = [np.array(times)[split_N == part] for part in range(3)]
    assert spans[0].max() < spans[1].min()
    assert spans[1].max() < spans[2].min()


def error(rows, split):
    with pytest.raises(ValueError, match=r"log\.csv") as caught:
        split_table(rows, split, 1, "log.csv")
    return str(caught.value)


def test_errors_say_how_to_mend():
    by_time = SplitConfig(by="time", column="t")
    assert "1 distinct time(s), but a split by time needs at least 3; split by random" in error(
        table(t=[5, 5, 5]), by_time
    )
    assert "row 2: column 't' is empty" in error(table(t=[1, None, 2]), by_time)
    assert "cannot be ordered in time (such as '31/01/2024'); write ISO 8601" in error(
        table(t=["31/01/2024", "01/02/2024", "02/02/2024"]), by_time
    )
    for by in ("time", "hash"):
        no_column = "there is no column 'T', which data.split.column needs (did you mean 't'?)"
        assert no_column in error(table(t=[1]), SplitConfig(by=by, column="T"))
    assert "the validation split is empty, out of 2 rows; give more rows" in error(
        table(t=[1, 2]), SplitConfig()
    )
    assert "column 't' has too few distinct keys" in error(
        table(t=[1] * 50), SplitConfig(by="hash", column="t")
    )


def test_two_units_of_time_in_two_files_are_refused(tmp_path):
    start = 1_700_000_000
    for number, unit in enumerate((1, 1, 1000)):
        times = [(start + 9 * number + n) * unit for n in range(9)]
        pq.write_table(table(at=times), tmp_path / f"{number}.parquet")
    rows = read_table(tmp_path, numbered=True)
    says = (
        r"2\.parquet: column 'at' looks like milliseconds since 1970, but like seconds in .*0\.par"
    )
    with pytest.raises(ValueError, match=says):
        split_table(rows, SplitConfig(by="time", column="at"), 1, "log")
    part = split_table(rows.slice(0, 18), SplitConfig(by="time", column="at"), 1, "log")
    assert sum(rows.num_rows for rows in part) == 18

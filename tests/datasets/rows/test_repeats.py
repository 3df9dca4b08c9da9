"""Rows that come more than once: counted, kept together, dropped; in memory as streamed."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import config_from_dict
from mmoe.datasets.rows import repeats
from mmoe.datasets.rows.repeats import RepeatCounter
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.stream import open_stream
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import row_hashes
from tests.small_configs import click_config

NAMES = ("train", "validation", "test")


def drawn(rows=4_000, seed=0):
    """A log whose rows do not repeat."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": rng.integers(0, 300, rows),
            "price": rng.gamma(2, 10, rows).round(2),
            "word": [f"w{n}" for n in rng.integers(0, 50, rows)],
            "seen": [rng.integers(0, 40, n).tolist() for n in rng.integers(0, 5, rows)],
            "day": [f"2024-01-{n:02d}" for n in 1 + np.arange(rows) * 20 // rows],
            "click": rng.integers(0, 2, rows),
        }
    )


def again(table, share=0.4, seed=0):
    """Some rows once more, behind all others."""
    chosen = np.random.default_rng(seed).choice(
        table.num_rows, int(share * table.num_rows), replace=False
    )
    return pa.concat_tables([table, table.take(pa.array(chosen))])


def counted(table, chunk=1_000):
    counter = RepeatCounter(table.num_rows, table.column_names)
    split_N = np.random.default_rng(1).choice(3, table.num_rows, p=[0.8, 0.1, 0.1])
    for start in range(0, table.num_rows, chunk):
        part, splits = table.slice(start, chunk), split_N[start : start + chunk]
        for number in range(3):
            counter.add(number, part.filter(pa.array(splits == number)))
    rows = [np.flatnonzero(split_N == number) for number in range(3)]
    return counter.finish(), rows


def test_copies_are_counted_across_splits():
    found, rows = counted(again(drawn()))
    assert found.unusual
    assert found.copies == pytest.approx(0.4 / 1.4)
    assert found.test == pytest.approx(2 * 0.4 / 1.4 * 0.8, abs=0.05)
    hashes_N = row_hashes(again(drawn()), drawn().column_names)
    trained = set(hashes_N[rows[0]].tolist())
    assert found.copied_S.tolist() == [h in trained for h in hashes_N[rows[2]].tolist()]
    assert found.test_rows_S.tolist() == list(range(len(rows[2])))


def test_memory_is_bounded_and_copies_are_both_in_or_out(monkeypatch):
    monkeypatch.setattr(repeats, "_KEPT", 2_000)
    whole, _ = counted(again(drawn(20_000)))
    assert 100 < len(whole.test_rows_S) < 400
    assert whole.unusual
    assert whole.copies == pytest.approx(0.4 / 1.4, abs=0.06)
    assert whole.test == pytest.approx(2 * 0.4 / 1.4 * 0.8, abs=0.1)


def test_few_columns_repeat_by_chance():
    rng = np.random.default_rng(0)
    user = rng.zipf(1.3, 30_000) % 400
    item = (user * 7 + rng.zipf(1.2, 30_000)) % 300  # a user has his items
    label = rng.random(30_000) < 0.1 + 0.4 * (item % 7 == 0)
    found, _ = counted(pa.table({"user": user, "item": item, "click": label.astype(int)}))
    assert found.copies > 0.3
    assert not found.unusual


def test_one_row_that_comes_often_is_no_delivery():
    """As that of users of whom nothing is known."""
    rows = drawn(1_500)
    blank = pa.table({name: rows[name].slice(0, 1).to_pylist() * 200 for name in rows.column_names})
    found, _ = counted(pa.concat_tables([rows, blank]))
    assert found.test > 0.05
    assert not found.unusual


def test_rows_drawn_again_and_again_are_seen():
    """Positives that were repeated before the split, or retries that repeat once in a while."""
    rows = drawn(3_000)
    positives = rows.filter(pc.equal(rows["click"], 1))
    for times in (2, 20):
        assert counted(pa.concat_tables([rows, *[positives] * times]))[0].unusual
    retries = np.random.default_rng(0).geometric(0.8, rows.num_rows)
    again_N = pa.array(np.repeat(np.arange(rows.num_rows), retries))
    assert counted(rows.take(again_N))[0].unusual


@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-5, 5), st.floats(-3, 3)), min_size=1))
def test_a_value_hashes_as_itself_in_any_type(values):
    numbers = pa.array([None if v is None else float(v) for v in values], pa.float64())
    text = pa.array([None if v is None else repr(float(v)) for v in values], pa.large_string())
    wanted = row_hashes(pa.table({"x": numbers}), ["x"]).tolist()
    assert row_hashes(pa.table({"x": text}), ["x"]).tolist() == wanted
    assert row_hashes(pa.table({"x": text.dictionary_encode()}), ["x"]).tolist() == wanted
    lists = [pa.array([[v] for v in column.to_pylist()]) for column in (numbers, text)]
    one, other = (row_hashes(pa.table({"x": column}), ["x"]).tolist() for column in lists)
    assert one == other


SPLITS = {
    "random": {"by": "random"},
    "hash": {"by": "hash", "column": "user"},
    "time": {"by": "time", "column": "day"},
    "day": {"by": "day", "column": "day", "train_days": ["2024-01-02", "2024-01-03"],
            "test_days": ["2024-01-04"]},
}  # fmt: skip


def configured(**data):
    features = [{"kind": "numeric", "name": "price"}, {"kind": "list", "name": "seen"}]
    features += [{"kind": "categorical", "name": "word"}, {"kind": "categorical", "name": "user"}]
    data.setdefault("streaming", {"chunk_rows": 128})
    return click_config(*features, data=data)


def contents(config, streamed):
    """Hashes of the rows of each split, in order."""
    splits = load_splits(config)
    held = {
        name: row_hashes(table, [c for c in table.column_names if not c.startswith("__")])
        for name in NAMES
        for table in [getattr(splits, name)]
    }
    if streamed:
        stream = open_stream(config)
        for name in NAMES:
            split = getattr(stream, name)
            names = list(split.source.schema.names)
            parts = [
                row_hashes(table, names)
                for piece in range(len(split.source.pieces))
                for table in split.tables(piece, names)
            ]
            np.testing.assert_array_equal(np.concatenate(parts), held[name])
            assert len(split) == len(held[name])
    return held


@pytest.mark.parametrize(("by", "repeated"), [
    ("random", "keep"),
    ("hash", "together"),
    ("time", "together"),
    ("day", "together"),
    ("random", "together"),
    ("hash", "drop"),
    ("day", "drop"),
])  # fmt: skip
def test_copies_stay_together_or_are_dropped(tmp_path, by, repeated):
    rows = drawn(2_000)
    user = np.array(rows["user"].to_pylist(), object)
    user[::9] = None  # rows without a key are drawn one by one
    rows = again(rows.set_column(0, "user", pa.array(user.tolist(), pa.int64())))
    pq.write_table(rows, tmp_path / "log.parquet", row_group_size=350)
    path = str(tmp_path / "log.parquet")
    split = SPLITS[by]
    found = contents(configured(path=path, split=split, repeated_rows=repeated), streamed=True)
    shared = set(found["train"].tolist()) & {*found["test"].tolist(), *found["validation"].tolist()}
    assert bool(shared) == (repeated == "keep" and by != "time")
    everything = np.concatenate(list(found.values()))
    kept = contents(configured(path=path, split=split), streamed=False)
    assert (len(np.unique(everything)) == len(everything)) == (repeated == "drop")
    if by != "day":
        assert set(everything.tolist()) == set(np.concatenate(list(kept.values())).tolist())
        for name in NAMES:
            share = {"train": 0.8}.get(name, 0.1)
            assert len(found[name]) / len(everything) == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize(("kind", "carved"), [("csv", False), ("parquet", True)])
def test_files_of_splits_keep_what_comes_first(tmp_path, kind, carved):
    """CSV columns of a test file stay text, which is no reason to take a copy for another row."""
    rows = drawn(1_500).drop_columns(["seen"] if kind == "csv" else [])
    parts = {"train": rows.slice(0, 1_000), "validation": rows.slice(900, 200)}
    parts["test"] = pa.concat_tables([rows.slice(1_050, 450), rows.slice(0, 300)])
    for name, part in parts.items():
        write = pacsv.write_csv if kind == "csv" else pq.write_table
        write(part, tmp_path / f"{name}.{kind}")
    files = {
        name: str(tmp_path / f"{name}.{kind}") for name in NAMES if not carved or name != NAMES[1]
    }
    raw = configured(split={"by": "file"}, repeated_rows="drop", **files).model_dump(mode="json")
    if kind == "csv":
        raw["features"] = [one for one in raw["features"] if one["name"] != "seen"]
    config = config_from_dict(raw)
    found = contents(config, streamed=True)
    if carved:
        assert len(found["train"]) + len(found["validation"]) == 1_000
        assert len(found["test"]) == 450
    else:
        assert [len(found[name]) for name in NAMES] == [1_000, 100, 400]


@pytest.mark.parametrize(("data", "message"), [
    ({"split": {"by": "file"}, "repeated_rows": "together"}, "the files say which split a row"),
    ({"source": "hillstrom", "repeated_rows": "drop"}, "is for files, but source is hillstrom"),
    ({"requests": {"candidates": "items"}, "repeated_rows": "drop"}, "rows of requests.cand"),
])  # fmt: skip
def test_what_cannot_be_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        configured(**data)


def test_a_test_without_rows_of_its_own_is_refused(tmp_path):
    pq.write_table(drawn(100), tmp_path / "train.parquet")
    pq.write_table(drawn(100), tmp_path / "test.parquet")
    paths = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "test")}
    config = configured(split={"by": "file"}, **paths, repeated_rows="drop")
    for read in (load_splits, open_stream):
        with pytest.raises(ValueError, match="the test split is empty"):
            read(config)

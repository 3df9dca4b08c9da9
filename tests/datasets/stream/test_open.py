"""A stream has the rows, the splits and the encoder of the same files in memory."""

import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.config import SplitConfig, config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import join
from mmoe.datasets.rows.order import Share
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.rows.splits import TimeFit, smallest_hashes, time_cuts
from mmoe.datasets.stream import open_stream
from mmoe.datasets.stream.source import StreamSource
from mmoe.datasets.values.hashing import mix64
from tests.small_configs import click_config

SPLITS = {
    "random": {},
    "hash": {"by": "hash", "column": "user"},
    "hash-of-floats": {"by": "hash", "column": "price"},
    "hash-with-gaps": {"by": "hash", "column": "shop"},
    "time": {"by": "time", "column": "row"},
    "iso": {"by": "time", "column": "day"},
    "real-time": {"by": "time", "column": "price"},
}


@pytest.fixture(name="log", scope="module")
def _log(funnel_table):
    table = funnel_table.append_column(
        "day", pa.array([f"2024-01-{1 + n % 28:02d}" for n in range(len(funnel_table))])
    )
    shops = [None if n % 3 == 0 else n % 50 for n in range(len(table))]
    return table.append_column("shop", pa.array(shops))


def write(log, folder, kind="parquet", files=3):
    size = -(-len(log) // files)
    for n in range(files):
        part = log.slice(n * size, size)
        path = folder / f"part-{n}.{kind}"
        if kind == "parquet":
            pq.write_table(part, path, row_group_size=300)
        elif kind == "arrow":
            with pa.ipc.new_file(str(path), part.schema) as writer:
                writer.write_table(part, max_chunksize=300)
        else:
            tags = pa.array(["|".join(tags) for tags in part["tags"].to_pylist()])
            position = part.column_names.index("tags")
            pacsv.write_csv(part.set_column(position, "tags", tags), path)
    return str(folder)


def configured(raw, path, split=None, **streaming):
    data = {"path": path, "split": split or {}, "input": "stream", "group_column": "user"}
    data["streaming"] = {"shuffle_buffer_rows": 500, "chunk_rows": 128, **streaming}
    return config_from_dict({**raw, "data": data})


def assert_same(mine, theirs):
    np.testing.assert_array_equal(mine.features.dense_NF, theirs.features.dense_NF)
    np.testing.assert_array_equal(mine.features.ids_NC, theirs.features.ids_NC)
    for one, other in zip(mine.features.lists, theirs.features.lists, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    for name in ("labels_NT", "observed_NT", "weights_NT", "groups_N"):
        np.testing.assert_array_equal(getattr(mine.labels, name), getattr(theirs.labels, name))


def assert_streams_as_memory(config):
    splits, memory = open_stream(config), load_splits(config)
    encoder = splits.fit()
    expected = FeatureEncoder.fit(config, memory.train, "x")
    assert encoder.numeric == expected.numeric
    for name, id_map in encoder.ids.items():
        assert id_map.kind == expected.ids[name].kind
        assert id_map.keys.equals(expected.ids[name].keys)
    for name in ("train", "validation", "test"):
        table = getattr(memory, name)
        mine = join(list(splits.rows(name, encoder).chunks()))
        theirs = type(mine)(
            features=encoder.encode(table, "x"), labels=encode_labels(config, table, "x")
        )
        assert len(getattr(splits, name)) == len(theirs)
        assert_same(mine, theirs)


@pytest.mark.parametrize(("split", "kind", "path"), [
    ("random", "csv", "{}"),
    ("hash", "arrow", "{}"),
    ("hash-of-floats", "parquet", "file://{}/part-*.parquet"),
    ("hash-with-gaps", "parquet", "{}"),
    ("time", "parquet", "{}/part-[01].parquet"),
    ("iso", "parquet", "{}"),
    ("real-time", "parquet", "{}"),
])  # fmt: skip
def test_every_split_of_every_kind_of_file_is_that_of_memory(
    log, funnel_config, tmp_path, split, kind, path
):
    folder = write(log, tmp_path, kind)
    assert_streams_as_memory(configured(funnel_config, path.format(folder), SPLITS[split]))


@pytest.fixture(name="streamed", scope="module")
def _streamed(log, funnel_config, tmp_path_factory):
    """The splits of a stream in chunks of 40 rows and buffers of 500, and their encoder."""
    raw = {**funnel_config, "training": {**funnel_config["training"], "eval_batch_size": 16}}
    path = write(log, tmp_path_factory.mktemp("log"))
    splits = open_stream(configured(raw, path, chunk_rows=40))
    return splits, splits.fit()


def test_chunks_of_ranks_are_those_of_one(streamed):
    """Codes of groups included, which rest on the rows of the ranks before."""
    splits, encoder = streamed
    rows = splits.rows("test", encoder)
    whole = join(list(rows.chunks()))
    for ranks in (3, 60):
        parts = []
        for rank in range(ranks):
            first, stop = Share(rank, ranks).span(len(rows), 16)
            chunks = list(rows.chunks(first, stop))
            assert sum(map(len, chunks)) == stop - first
            assert len(chunks) >= 1
            assert all(len(chunk) <= 48 for chunk in chunks)
            parts += chunks
        assert_same(join(parts), whole)


def test_chunks_of_a_rank_leave_other_row_groups_alone(streamed, monkeypatch):
    splits, encoder = streamed
    rows = splits.rows("test", encoder)
    found, read = [], StreamSource.read

    def counted(self, piece, columns):
        found.append((self.pieces.index(piece), columns))
        yield from read(self, piece, columns)

    monkeypatch.setattr(StreamSource, "read", counted)
    assert sum(map(len, rows.chunks(200, 250))) == 50
    whole = [piece for piece, columns in found if columns != ["user"]]
    assert [piece for piece, columns in found if columns == ["user"]] == list(range(whole[0]))
    assert whole[0] > 3 and len(whole) <= 4 and whole[-1] < 13
    found.clear()
    assert [len(chunk) for chunk in rows.chunks(300, 300)] == [0]
    assert found == [], "no rows, nothing to read"
    rows.reader.group = None
    assert sum(map(len, rows.chunks(200, 250))) == 50
    assert [piece for piece, _ in found] == whole


def test_folders_that_name_columns(log, funnel_config, tmp_path):
    for n, day in enumerate(("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04")):
        (tmp_path / f"day={day}" / f"hour={n}").mkdir(parents=True)
        part = log.drop_columns(["day"]).slice(n * 1000, 1000)
        pq.write_table(part, tmp_path / f"day={day}" / f"hour={n}" / "a.parquet")
    raw = set_values(funnel_config, ["features.user.column=hour", "features.user.encoding=hash"])
    raw["features"][0] = {"kind": "categorical", "name": "hour"}
    config = configured(raw, str(tmp_path), {"by": "time", "column": "day"})
    assert_streams_as_memory(config)
    splits = open_stream(config)
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [2000, 1000, 1000]
    assert splits.fit().ids["hour"].kind == "int"


def test_split_by_file(log, funnel_config, tmp_path):
    write(log, tmp_path)
    raw = {**funnel_config, "data": {"split": {"by": "file"}, "input": "stream"}}
    for n, name in enumerate(("train", "validation", "test")):
        raw["data"][name] = str(tmp_path / f"part-{n}.parquet")
    assert_streams_as_memory(config_from_dict(raw))
    del raw["data"]["validation"]
    assert_streams_as_memory(config_from_dict(raw))


def epoch_rows(rows, seed, epoch, size=64):
    return [
        str((b.dense_BF[n].tolist(), b.labels_BT[n].tolist(), b.values[n].item()))
        for b in rows.epoch_batches(seed, epoch, size)
        for n in range(b.num_rows)
    ]


def test_a_buffer_for_everything_gives_the_batches_of_memory(log, funnel_config, tmp_path):
    config = configured(funnel_config, write(log, tmp_path), shuffle_buffer_rows=10_000)
    splits, memory = open_stream(config), load_splits(config)
    encoder = splits.fit()
    rows = splits.rows("train", encoder)
    held = BatchSource.of_table(memory.train, encoder, "x", config)
    for epoch in range(2):
        assert epoch_rows(rows, 3, epoch) == epoch_rows(held, 3, epoch)
    before = splits.fingerprint()
    assert before == open_stream(config).fingerprint()
    (tmp_path / "part-2.parquet").rename(tmp_path / "part-3.parquet")
    assert open_stream(config).fingerprint() != before


SPLIT = SplitConfig(by="time", column="at")


def fitted(times, chunk):
    fit = TimeFit("at")
    for start in range(0, len(times), chunk):
        fit.add(times[start : start + chunk], "a")
    return fit.finish()


@pytest.mark.parametrize("kind", ["int", "real"])
def test_moments_are_counted_coarsely_where_they_are_many(kind, monkeypatch):
    monkeypatch.setattr("mmoe.datasets.rows.splits._LEAST", 20)
    rng = np.random.default_rng(0)
    few = rng.integers(-50, 50, 1000) if kind == "int" else rng.normal(size=1000).round(1) + 0.0
    for chunk in (7, 1000):
        for mine, theirs in zip(
            fitted(few, chunk), np.unique(few, return_counts=True), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    monkeypatch.setattr("mmoe.datasets.rows.splits._MOST", 1_000)
    monkeypatch.setattr("mmoe.datasets.rows.splits._LEAST", 100)
    times = rng.integers(0, 2**40, 50_000) if kind == "int" else rng.uniform(1, 2, 50_000)
    found = [fitted(times, chunk) for chunk in (999, 50_000)]
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(found[0][0]) <= 1_000
    validation, test = time_cuts(*found[0], SPLIT, "x")
    assert (times >= test).mean() == pytest.approx(0.1, abs=0.003)
    assert (times >= validation).mean() == pytest.approx(0.2, abs=0.003)


def test_negative_and_positive_reals_keep_their_order():
    times = np.array([-1e300, -2.5, -0.0, 0.0, 1e-300, 2.5])
    moments, counts = fitted(times, 2)
    np.testing.assert_array_equal(moments, [-1e300, -2.5, 0.0, 1e-300, 2.5])
    assert counts.tolist() == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("rows", [1, 2, 30_000])
def test_ranks_among_hashes(rows):
    hashes = np.sort(mix64(np.arange(rows, dtype=np.uint64), 5))
    ranks = [0, rows // 3, rows - 1]
    assert smallest_hashes(rows, 5, ranks) == [int(hashes[rank]) for rank in ranks]


ROWS = 10_000


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """Ten files of 10,000 rows, a third of a megabyte of numbers each."""
    folder = tmp_path_factory.mktemp("log")
    for n in range(10):
        rng = np.random.default_rng(n)
        columns = {f"x{i}": rng.normal(size=ROWS).astype(np.float32) for i in range(8)}
        tags = rng.integers(0, 50, 3 * ROWS)
        columns["tags"] = pa.ListArray.from_arrays(np.arange(0, 3 * ROWS + 1, 3), tags)
        columns["click"] = rng.integers(0, 2, ROWS)
        pq.write_table(pa.table(columns), folder / f"{n:02d}.parquet", row_group_size=2_500)
    return folder


MEGABYTE = 1e6


def peaks(folder, files, split, lanes):
    """Most bytes of NumPy and of Arrow over the survey, the fit, an epoch and an evaluation."""
    features = [{"kind": "numeric", "name": f"x{i}"} for i in range(8)]
    config = click_config(
        *features,
        {"kind": "list", "name": "tags"},
        data={
            "path": str(folder / files),
            "input": "stream",
            "split": split,
            "streaming": {"shuffle_buffer_rows": 4_000, "chunk_rows": 2_000, "lanes": lanes},
        },
        training={"eval_batch_size": 1_000},
    )
    gc.collect()
    tracemalloc.start()
    arrow = 0
    splits = open_stream(config)
    encoder = splits.fit()
    for batch in splits.rows("train", encoder).epoch_batches(0, 0, 500):
        assert batch.num_rows
        arrow = max(arrow, pa.total_allocated_bytes())
    for chunk in splits.rows("test", encoder).chunks():
        assert len(chunk) <= 2_000
        arrow = max(arrow, pa.total_allocated_bytes())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MEGABYTE, arrow / MEGABYTE


def test_ten_times_the_rows_take_no_more_memory(folder, monkeypatch):
    settings = {"by": "time", "column": "x0"}, 3
    # Row numbers hashed, and moments kept apart, at a time: constants, here small against the rows
    for name in ("rows.splits._ROWS", "stream.source._ROWS", "rows.splits._LEAST"):
        monkeypatch.setattr(f"mmoe.datasets.{name}", 4_000)
    monkeypatch.setattr("mmoe.datasets.rows.splits._MOST", 8_000)
    peaks(folder, "00.parquet", *settings)  # what is imported and cached once
    small, small_arrow = peaks(folder, "00.parquet", *settings)
    bounds = small * 1.2 + 1, small_arrow * 1.2 + 1
    for _ in range(3):  # what an earlier test left running in the background is counted as well
        large = peaks(folder, "*.parquet", *settings)
        if large[0] < bounds[0] and large[1] < bounds[1]:
            break
    assert large[0] < bounds[0]
    assert large[1] < bounds[1]

"""Streams of requests: the batches of the same rows in memory, where those are promised."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.order import Share
from mmoe.datasets.rows.sources import load_splits
from mmoe.datasets.stream import open_stream
from tests.datasets.request_log import assert_same, config_of, expanded, log_of_requests, nested_log

SPLITS = {
    "random": {"by": "random", "validation": 0.2, "test": 0.2},
    "hash": {"by": "hash", "column": "user", "validation": 0.3, "test": 0.3},
    "hash of numbers": {"by": "hash", "column": "request", "validation": 0.3, "test": 0.3},
    "time": {"by": "time", "column": "at"},
    "day": {"by": "day", "column": "at", "validation": 0.3,
            "train_days": [f"2024-01-{d:02d}" for d in range(1, 20)],
            "test_days": [f"2024-01-{d:02d}" for d in range(20, 29)]},
}  # fmt: skip


def write(log, folder, form, kind="parquet"):
    """Two files; the flat form is cut in the middle of a request."""
    rows = nested_log(log) if form == "nested" else log
    half = len(rows) // 2
    for n, part in enumerate((rows.slice(0, half), rows.slice(half))):
        if kind == "parquet":
            pq.write_table(part, folder / f"part-{n}.parquet", row_group_size=9)
        elif kind == "arrow":
            with pa.ipc.new_file(str(folder / f"part-{n}.arrow"), part.schema) as writer:
                writer.write_table(part, max_chunksize=9)
        else:
            lines = "\n".join(map(json.dumps, part.to_pylist()))
            (folder / f"part-{n}.jsonl").write_text(lines + "\n")
    return str(folder)


def of_stream(form, path, split="random", **streaming):
    streaming = {"shuffle_buffer_rows": 100_000, "chunk_rows": 10, **streaming}
    return config_of(form, path=path, split=SPLITS[split], input="stream", streaming=streaming)


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(60)


@pytest.mark.parametrize(("form", "kind", "split"), [
    ("flat", "parquet", "random"),
    ("flat", "arrow", "hash of numbers"),
    ("flat", "json", "day"),
    ("nested", "json", "hash"),
    ("nested", "arrow", "time"),
    ("nested", "parquet", "day"),
])  # fmt: skip
def test_a_window_that_holds_all_rows_gives_the_batches_in_memory(log, tmp_path, form, kind, split):
    config = of_stream(form, write(log, tmp_path, form, kind), split)
    streamed, held = open_stream(config), load_splits(config)
    encoder = streamed.fit()
    assert FeatureEncoder.fit(config, held.train, "log").fingerprint() == encoder.fingerprint()
    for name in ("train", "validation", "test"):
        rows = streamed.rows(name, encoder)
        in_memory = BatchSource.of_table(getattr(held, name), encoder, "log", config)
        pairs = zip(rows.epoch_batches(0, 1, 16), in_memory.epoch_batches(0, 1, 16), strict=True)
        for left, right in pairs:
            assert_same(left, right)
        found = [chunk.features.flat().ids_NC for chunk in rows.chunks()]
        assert np.array_equal(np.concatenate(found), in_memory.held.features.flat().ids_NC)


@pytest.mark.parametrize(("form", "lanes"), [("flat", 3), ("nested", 2)])
def test_small_windows_have_every_row_once_and_few_cut_requests(log, tmp_path, form, lanes):
    config = of_stream(
        form, write(log, tmp_path, form), shuffle_buffer_rows=64, interleave=2, lanes=lanes
    )
    streamed = open_stream(config)
    encoder = streamed.fit()
    rows = streamed.rows("train", encoder)
    batches = list(rows.epoch_batches(0, 0, 16))
    assert sum(map(len, batches)) == len(rows)
    place = encoder.dense_names.index("price")

    def prices(of_batches):
        return [expanded(b, encoder).dense_BF[: b.num_rows, place].tolist() for b in of_batches]

    alone = prices(batches)
    data = BatchSource.of_table(load_splits(config).train, encoder, "log", config).held
    assert sorted(np.concatenate(alone)) == sorted(data.features.flat().dense_NF[:, place])
    computed = sum(len(batch.request_dense_QF) for batch in batches)
    assert len(data.features.requests) <= computed < 0.7 * len(rows)
    again = list(rows.epoch_batches(0, 0, 16, first=3))
    for left, right in zip(batches[3:], again, strict=True):
        assert_same(left, right)
    parts = [prices(rows.epoch_batches(0, 0, 16, share=Share(rank, 2))) for rank in range(2)]
    assert [first + second for first, second in zip(*parts, strict=True)] == alone


def test_chunks_to_evaluate_hold_the_requests_of_their_rows_alone(log, tmp_path):
    config = of_stream("flat", write(log, tmp_path, "flat"))
    config = config.model_copy(
        update={"training": config.training.model_copy(update={"eval_batch_size": 16})}
    )
    streamed = open_stream(config)
    for chunk in streamed.rows("train", streamed.fit()).chunks():
        assert len(chunk.features.requests) <= len(chunk)
        assert chunk.features.requests.request_N.max() < len(chunk.features.requests)


def test_what_a_request_does_not_share_is_refused_before_training(log, tmp_path):
    ages = log["age"].to_pylist()
    requests = log["request"].to_pylist()
    row = next(n for n in range(60, len(log)) if requests[n] == requests[n - 1])
    ages[row] = 1234.0
    at = log.column_names.index("age")
    bad = log.set_column(at, "age", pa.array(ages, pa.float64()))
    streamed = open_stream(of_stream("flat", write(bad, tmp_path, "flat"), chunk_rows=1000))
    with pytest.raises(ValueError, match=r"row \d+: column 'age' .* is 1234.0, but"):
        streamed.fit()


def test_a_split_that_cuts_requests_is_refused(log, tmp_path):
    late = log.append_column("late", pa.array(np.arange(len(log)) % 11))
    path = write(late, tmp_path, "flat")
    config = config_of("flat", path=path, input="stream", split={"by": "time", "column": "late"})
    with pytest.raises(ValueError, match=r"two; say split: \{by: hash, column: request\}"):
        open_stream(config)

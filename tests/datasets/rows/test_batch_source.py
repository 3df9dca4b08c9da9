"""What is read once, and what anew: the window and the chunks of a source."""

import itertools
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, EncodedLabels, in_chunks, join
from mmoe.datasets.rows.prefetch import prefetch
from mmoe.datasets.stream import open_stream


@pytest.mark.parametrize(
    ("buffer_rows", "again"), [(4000, ()), (1000, ("train", "validation")), (3300, ("validation",))]
)
def test_what_fits_into_the_buffer_is_encoded_once(
    funnel_config, funnel_table, tmp_path, monkeypatch, buffer_rows, again
):
    """Of two epochs over training and validation rows, with a buffer of so many rows."""
    pq.write_table(funnel_table, tmp_path / "log.parquet", row_group_size=500)
    streaming = {"shuffle_buffer_rows": buffer_rows, "chunk_rows": 256}
    data = {"path": str(tmp_path), "input": "stream", "streaming": streaming}
    splits = open_stream(config_from_dict({**funnel_config, "data": data}))
    encoder, encoded, encode = splits.fit(), [], FeatureEncoder.encode

    def counted(self, table, origin):
        encoded.append(table.num_rows)
        return encode(self, table, origin)

    sources = {name: splits.rows(name, encoder) for name in ("train", "validation")}
    monkeypatch.setattr(FeatureEncoder, "encode", counted)
    for epoch in range(2):
        batches = sources["train"].epoch_batches(0, epoch, 64)
        assert sum(map(len, batches)) == len(sources["train"])
        assert sum(map(len, sources["validation"].chunks())) == len(sources["validation"])
    assert sum(encoded) == sum(len(rows) * (1 + (name in again)) for name, rows in sources.items())


def test_rows_in_memory_are_one_chunk_or_a_part_of_it(funnel_config, funnel_table):
    config = config_from_dict(funnel_config)
    encoder = FeatureEncoder.fit(config, funnel_table, "log")
    source = BatchSource.of_table(funnel_table, encoder, "log", config)
    assert next(source.chunks()) is source.held
    assert [len(chunk) for chunk in source.chunks(10, 30)] == [20]
    assert [len(chunk) for chunk in source.chunks(7, 7)] == [0]
    assert next(source.epoch_batches(0, 0, 64)).labels_BT is not None
    unlabelled = BatchSource.of_table(funnel_table, encoder, "log")
    assert next(unlabelled.epoch_batches(0, 0, 64)).labels_BT is None
    assert list(BatchSource.of_table(funnel_table[:0], encoder, "log").epoch_batches(0, 0, 2)) == []


def random_data(rng, rows, dense, single, lists, labels=True):
    ragged = []
    for _ in range(lists):
        lengths = rng.integers(1, 5, rows)
        values = rng.integers(1, 99, lengths.sum()).astype(np.int32)
        ragged.append((values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)))
    features = EncodedFeatures(
        dense_NF=rng.normal(size=(rows, dense)).astype(np.float32),
        ids_NC=rng.integers(1, 99, (rows, single)).astype(np.int32),
        lists=ragged,
    )
    if not labels:
        return EncodedData(features=features)
    targets = EncodedLabels(
        labels_NT=rng.integers(0, 2, (rows, 2)).astype(np.float32),
        observed_NT=rng.integers(0, 2, (rows, 2)).astype(bool),
        weights_NT=rng.random((rows, 2)).astype(np.float32),
    )
    return EncodedData(features=features, labels=targets)


def expected_ids(data, rows, height):
    """Row by row and feature by feature, as the contract says."""
    values, lengths = [], []
    for column in range(data.features.ids_NC.shape[1]):
        for place in range(height):
            values.append(data.features.ids_NC[rows[place], column] if place < len(rows) else 0)
            lengths.append(1)
    for ids, offsets in data.features.lists:
        for place in range(height):
            items = [0]
            if place < len(rows):
                items = ids[offsets[rows[place]] : offsets[rows[place] + 1]].tolist()
            values += items
            lengths.append(len(items))
    return values, lengths


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 12),
    dense=st.integers(0, 3),
    single=st.integers(0, 3),
    lists=st.integers(0, 2),
    taken=st.integers(0, 15),
    padding=st.integers(0, 4),
)
def test_batch_is_feature_major(seed, rows, dense, single, lists, taken, padding):
    rng = np.random.default_rng(seed)
    data = random_data(rng, rows, dense, single, lists)
    chosen = rng.integers(0, rows, taken)
    batch = data.batch(chosen, pad_to=taken + padding)
    values, lengths = expected_ids(data, chosen, taken + padding)
    assert batch.values.tolist() == values
    assert batch.lengths_CB.tolist() == lengths
    assert (batch.values.dtype, batch.lengths_CB.dtype) == (torch.int64, torch.int32)
    assert (len(batch), batch.num_rows) == (taken + padding, taken)
    assert data.labels is not None
    pairs = [
        (batch.dense_BF, data.features.dense_NF),
        (batch.labels_BT, data.labels.labels_NT),
        (batch.observed_BT, data.labels.observed_NT),
        (batch.weights_BT, data.labels.weights_NT),
    ]
    for tensor, source in pairs:
        assert tensor is not None
        assert torch.equal(tensor[:taken], torch.from_numpy(source[chosen]))
        assert not tensor[taken:].any()
        assert tensor.shape[0] == taken + padding


def test_slices_scoring_and_errors():
    rng = np.random.default_rng(0)
    data = random_data(rng, 10, 2, 2, 1, labels=False)
    batch = data.batch(slice(8, 20), pad_to=4)
    assert batch.labels_BT is batch.observed_BT is batch.weights_BT is None
    assert batch.num_rows == 2
    assert torch.equal(batch.values, data.batch(np.array([8, 9]), pad_to=4).values)
    before = data.features.dense_NF.copy()
    data.batch(slice(0, 4)).dense_BF.add_(1)
    np.testing.assert_array_equal(data.features.dense_NF, before)
    with pytest.raises(ValueError, match="pad_to: expected at least 10, the rows given, got 4"):
        data.batch(slice(0, 10), pad_to=4)
    with pytest.raises(ValueError, match="labels: expected 10 rows, as many as features, got 4"):
        EncodedData(features=data.features, labels=random_data(rng, 4, 1, 1, 0).labels)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), size=st.integers(1, 12))
def test_chunks_of_one_size_hold_the_same_rows(sizes, size):
    whole = random_data(np.random.default_rng(0), sum(sizes), 2, 1, 1)
    ends = np.cumsum(sizes)
    parts = (whole.rows(end - n, end) for end, n in zip(ends, sizes, strict=True))
    chunks = list(in_chunks(parts, size))
    assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    joined = join(chunks)
    np.testing.assert_array_equal(joined.features.dense_NF, whole.features.dense_NF)
    np.testing.assert_array_equal(joined.features.ids_NC, whole.features.ids_NC)
    for mine, theirs in zip(joined.features.lists[0], whole.features.lists[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(joined.labels.weights_NT, whole.labels.weights_NT)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "mmoe-input"]


def test_items_come_in_order_never_more_than_depth_ahead():
    assert list(prefetch(iter(range(100)), 3)) == list(range(100))
    assert not threads()
    made = []
    taken = prefetch((made.append(n) or n for n in range(20)), 3)
    for n in range(5):
        assert next(taken) == n
        time.sleep(0.02)
        assert len(made) <= n + 1 + 3
    taken.close()


class _Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt(), _Odd()])
def test_errors_come_as_they_are(error):
    def items():
        yield 1
        raise error

    found = prefetch(items(), 2)
    assert next(found) == 1
    with pytest.raises(type(error)) as raised:
        next(found)
    assert raised.value is error
    assert not threads()


def test_closing_stops_the_thread_and_what_it_reads():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    outer = prefetch(prefetch(items(), 1), 2)
    next(outer)
    outer.close()
    assert closed.is_set()
    assert not threads()


def test_a_forgotten_one_stops_as_well():
    items = prefetch(itertools.count(), 2)
    next(items)
    del items
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()

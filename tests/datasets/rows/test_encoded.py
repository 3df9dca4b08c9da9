import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, EncodedLabels, in_chunks, join


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


@settings(max_examples=60, deadline=None)
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


def test_slices_and_scoring():
    data = random_data(np.random.default_rng(0), 10, 2, 2, 1, labels=False)
    batch = data.batch(slice(8, 20), pad_to=4)
    assert batch.labels_BT is batch.observed_BT is batch.weights_BT is None
    assert batch.num_rows == 2
    again = data.batch(np.array([8, 9]), pad_to=4)
    assert torch.equal(batch.values, again.values)


def test_batches_own_their_memory():
    data = random_data(np.random.default_rng(0), 4, 1, 1, 0)
    before = data.features.dense_NF.copy()
    data.batch(slice(0, 4)).dense_BF.add_(1)
    np.testing.assert_array_equal(data.features.dense_NF, before)


def test_errors():
    rng = np.random.default_rng(0)
    data = random_data(rng, 5, 1, 1, 0)
    with pytest.raises(ValueError, match="pad_to: expected at least 5, the rows given, got 4"):
        data.batch(slice(0, 5), pad_to=4)
    with pytest.raises(ValueError, match="labels: expected 5 rows, as many as features, got 4"):
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

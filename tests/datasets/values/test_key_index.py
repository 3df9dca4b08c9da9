"""Keys are found as Arrow finds them, in a table that is made once."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mmoe.datasets.features.fit_ids import Counts
from mmoe.datasets.features.id_map import Vocabulary
from mmoe.datasets.values import keys
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import KeyIndex

NUMBERS = np.random.default_rng(3).permutation(500) - 100
KEYS = {
    "int": pa.array([*NUMBERS.tolist(), 2**63 - 1, -(2**63)], pa.int64()),
    "float": pa.array([*(NUMBERS / 8).tolist(), float("inf")], pa.float64()),
    "text": pa.array([f"käy {n}" for n in NUMBERS], pa.large_string()),
}
OTHERS = {"int": [None, 7_000, -7_000], "float": [None, 1e300], "text": [None, "", "zzz", "käy"]}


@pytest.fixture(name="many")
def _many(monkeypatch):
    """So many keys as here are no few."""
    monkeypatch.setattr(keys, "_FEW_KEYS", 0)


@pytest.fixture(name="made")
def _made(monkeypatch):
    """Counts the tables that are made."""
    counted, make = [], KeyIndex._make

    def counting(index):
        counted.append(index)
        return make(index)

    monkeypatch.setattr(KeyIndex, "_make", counting)
    return counted


def calls_on(kind):
    """Few values at a time, known, unknown and missing ones, in columns of several chunks."""
    keys = KEYS[kind]
    values = pa.concat_arrays([keys.slice(3, 200), pa.array(OTHERS[kind], keys.type), keys[:9]])
    for start in range(0, len(values), 50):
        part = values.slice(start, 50)
        yield pa.chunked_array([part[:20], part[20:]], keys.type)


@pytest.mark.parametrize("kind", KEYS)
def test_small_calls_share_one_table(kind, made, many):
    index = KeyIndex(KEYS[kind])
    for values in [*calls_on(kind), pa.chunked_array([], KEYS[kind].type)]:
        expected = pc.fill_null(pc.index_in(values, KEYS[kind], skip_nulls=True), -1).to_pylist()
        assert index.places(values).tolist() == expected
    assert len(made) == 1
    whole = pa.chunked_array([KEYS[kind], KEYS[kind]])
    assert index.places(whole).tolist() == [*range(len(KEYS[kind]))] * 2


@pytest.mark.parametrize("kind", KEYS)
def test_few_keys_need_no_table(kind, made):
    index = KeyIndex(KEYS[kind])
    for values in [*calls_on(kind), pa.chunked_array([], KEYS[kind].type)]:
        expected = pc.fill_null(pc.index_in(values, KEYS[kind], skip_nulls=True), -1).to_pylist()
        assert index.places(values).tolist() == expected
    assert not made


def test_a_vocabulary_keeps_its_table_for_all_calls_and_threads(made, many):
    numbers = pa.chunked_array([NUMBERS])
    vocabulary = Vocabulary.fit([numbers], ["x"], min_count=1)
    calls = [pa.chunked_array([NUMBERS[n : n + 5]]) for n in range(0, 500, 5)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda call: vocabulary.lookup(call, "x"), calls))
    assert len(made) == 1
    assert np.concatenate(found).tolist() == vocabulary.lookup(numbers, "x").tolist()
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again.lookup(calls[3], "x").tolist() == found[3].tolist()
    assert len(made) == 2


def test_texts_that_share_a_hash_are_told_apart(monkeypatch, many):
    crowded = keys.hash_text
    monkeypatch.setattr(keys, "hash_text", lambda keys: crowded(keys) % np.uint64(41))
    index = KeyIndex(KEYS["text"])
    for values in calls_on("text"):
        expected = pc.fill_null(pc.index_in(values, KEYS["text"], skip_nulls=True), -1).to_pylist()
        assert index.places(values).tolist() == expected


def test_counts_of_one_column_are_added_up():
    """Over chunks, and over values that are one key."""
    counts = Counts(
        pa.chunked_array([["1", "1.0"], ["2", "1"]]), pa.chunked_array([[2, 3, 4, 5]]), "x"
    )
    other = Counts(pa.chunked_array([[1, 7]]), pa.chunked_array([[1, 1]]), "y")
    vocabulary = Vocabulary.of([other, counts], 1)
    assert vocabulary.kind == "text"
    assert vocabulary.keys.to_pylist() == ["1", "2", "1.0", "7"]
    assert vocabulary.counts.tolist() == [8, 4, 3, 1]
    frame = pd.DataFrame({"n": np.repeat(NUMBERS, 3)})
    numbers = Vocabulary.fit([pa.chunked_array([frame["n"][:600], frame["n"][600:]])], ["n"], 3)
    assert numbers.keys.to_pylist() == sorted(NUMBERS.tolist())
    assert set(numbers.counts) == {3}

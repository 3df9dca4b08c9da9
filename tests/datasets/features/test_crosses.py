"""Crosses: one id for several columns, whatever the files store them as."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.config import ManagedIds
from mmoe.datasets.features.cross import CrossColumns, cross_keys
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.values.hashing import raw_ids
from tests.small_configs import click_config

CROSS = {"kind": "cross", "name": "x", "columns": ["a", "b"]}
HASHED = {**CROSS, "encoding": "hash", "hash_size": 100_000}
LOG = {"a": [1, 1, 2, 2, None, 7], "b": ["u", "v", "u", "u", "u", None]}


def fitted(train, *features, tables=()):
    return FeatureEncoder.fit(click_config(*features, tables=tables), pa.table(train), "log.csv")


def ids(encoder, table, column=0):
    return encoder.encode(pa.table(table), "new.csv").ids_NC[:, column].tolist()


def test_a_row_of_its_own_for_each_pair_of_ids():
    encoder = fitted(LOG, CROSS)
    assert encoder.tables[0].num_rows == 2 + 3
    seen = ids(encoder, LOG)
    assert seen[2] == seen[3] == 2, "the most frequent comes first"
    assert sorted(seen[:3]) == [2, 3, 4]
    assert seen[4:] == [0, 0], "missing where one of its columns is"
    assert ids(encoder, {"a": [2, 3], "b": ["v", "u"]}) == [1, 1], "never seen together"
    assert ids(fitted(LOG, {**CROSS, "min_count": 2}), LOG) == [1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("feature", [CROSS, HASHED])
def test_columns_of_other_types_have_the_same_ids(feature):
    encoder = fitted(LOG, feature)
    for a in (
        [1.0, 1.0, 2.0, 2.0, np.nan, 7.0],
        ["1", "1.0", "02", "2", "NA", "7"],
        [Decimal("1.00"), Decimal("1"), Decimal("2"), Decimal("2.0"), None, Decimal("7")],
        pa.array([1, 1, 2, 2, None, 7], pa.uint8()),
        pa.array([1, 1, 2, 2, None, 7]).dictionary_encode(),
    ):
        assert ids(encoder, {"a": a, "b": LOG["b"]}) == ids(encoder, LOG)
    assert ids(encoder, {"a": ["one", "", "one"], "b": ["u", "u", ""]}) == [1, 0, 0]


def test_ids_are_not_glued_order_matters_and_keys_never_change():
    pairs = {"a": ["a", "ab", "bc", "b", "", "abc"], "b": ["bc", "c", "a", "a", "abc", ""]}
    kinds = ["text", "text"]
    columns = [pa.chunked_array([pairs[name]]) for name in "ab"]
    keys, alien_N = cross_keys(CrossColumns(columns, ["a", "b"]), kinds)
    assert len(set(keys.drop_null().to_pylist())) == 4
    assert keys.null_count == 2 and not alien_N.any()
    turned, _ = cross_keys(CrossColumns(columns[::-1], ["b", "a"]), kinds)
    assert not any(np.equal(keys.drop_null(), turned.drop_null()))
    assert turned[0] == keys[2], "(bc, a) both times"
    columns = [pa.chunked_array([[1, 2]]), pa.chunked_array([["u", "wörld"]])]
    keys, _ = cross_keys(CrossColumns(columns, ["a", "b"]), ["int", "text"])
    assert keys.to_pylist() == [2239927976733879782, -7429752087922040818]


def test_days_datetimes_booleans_and_nothing():
    train = {
        "a": [True, False, None],
        "b": [datetime.datetime(2024, 1, 1, 3), datetime.datetime(2024, 1, 1), None],
    }
    text = {"a": ["true", "False", ""], "b": ["2024-01-01T03:00", "2024-01-01", ""]}
    encoder = fitted(train, CROSS)
    assert ids(encoder, text) == ids(encoder, train)
    assert sorted(ids(encoder, train)) == [0, 2, 3]
    empty = fitted({"a": pa.nulls(2), "b": [1, 2]}, CROSS)
    assert ids(empty, {"a": ["1", ""], "b": [1, 2]}) == [0, 0], "training says nothing of it"
    assert ids(empty, {"a": pa.array([], pa.string()), "b": pa.array([], pa.int64())}) == []


def test_crosses_share_a_table():
    other = {"kind": "cross", "name": "y", "columns": ["c", "b"], "table": "t"}
    train = {"a": [1, 2], "b": ["u", "u"], "c": ["2", "z"]}
    encoder = fitted(train, {**CROSS, "table": "t"}, other, tables=[{"name": "t"}])
    assert encoder.rules["crosses"] == {"t": ("text", "text")}, "c makes all of them text"
    assert ids(encoder, train, 0)[1] == ids(encoder, train, 1)[0] == 2, "2 × u, seen twice"
    assert [table.num_rows for table in encoder.tables] == [2 + 3]


def test_chunks_change_nothing():
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.integers(0, 9, 300) / 2, "b": rng.integers(0, 5, 300).astype(str)})
    for feature in (CROSS, HASHED):
        whole, fit = fitted(table, feature), EncoderFit(click_config(feature), "log.csv")
        for start in range(0, 300, 7):
            fit.add(table.slice(start, 7))
        chunked = FeatureEncoder.of(fit)
        assert chunked.rules["crosses"] == whole.rules["crosses"] == {"x": ("float", "text")}
        assert ids(chunked, table) == ids(whole, table)


@pytest.mark.parametrize(("train", "more", "says"), [
    ({"a": [[1]], "b": [1]}, {}, r"log.csv: column 'a' \(of feature 'x'\) holds list<"),
    ({"a": [1]}, {}, r"log.csv: there is no column 'b', which feature 'x'"),
    (LOG, {"max_rows": 2}, r"log.csv: cross 'a' × 'b' \(of feature 'x'\) has 3 ids"),
])  # fmt: skip
def test_what_is_no_cross_is_refused(train, more, says):
    with pytest.raises(ValueError, match=says):
        fitted(train, {**CROSS, **more})


ITEM = {"kind": "categorical", "name": "item", "encoding": "managed", "rows": 50}
SEEN = {"kind": "list", "name": "seen", "encoding": "managed", "rows": 50}
WORD = {"kind": "categorical", "name": "word"}


def _raw(encoder, column) -> list[int]:
    return encoder.encode(pa.table({"item": column}), "new.csv").ids_NC[:, 0].tolist()


def test_integers_stay_integers():
    encoder = fitted({"item": [5, 7]}, ITEM)
    assert _raw(encoder, [0, 5, 10**15, None]) == [2, 7, 10**15 + 2, 0]
    assert _raw(encoder, ["5", "", "x", "5.0"]) == [7, 0, 1, 7]
    assert _raw(encoder, [5.0, float("nan"), 6.5]) == [7, 0, 1]


def _mix(value: int) -> int:
    """SplitMix64's finalizer, once more in plain Python."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _hashed(hash_: int) -> int:
    return 2**62 + 2 + hash_ % (2**62 - 4)


def test_text_is_hashed_the_same_everywhere():
    """The numbers are stored with models: they must never change."""
    encoder = fitted({"item": ["a", "b"]}, ITEM)
    found = _raw(encoder, ["ß€", "a", "", None])
    data = "ß€".encode()
    of_bytes = sum(_mix(256 * place + byte) for place, byte in enumerate(data))
    assert found == [_hashed(_mix((of_bytes + len(data)) % 2**64)), 6071658631677739551, 0, 0]
    keys = [-1, 2**62, 2**63 - 1]
    assert _raw(fitted({"item": [1, 2]}, ITEM), keys) == [
        _hashed(_mix(key % 2**64)) for key in keys
    ]
    bits = int(np.float64(0.5).view(np.uint64))
    assert _raw(fitted({"item": [0.5, 1.5]}, ITEM), [0.5]) == [_hashed(_mix(bits))]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=200))
def test_integers_never_share_an_id_and_none_is_reserved(keys):
    ids = raw_ids(pa.chunked_array([pa.array(keys, pa.int64())]), 2)
    assert ids.dtype == np.int64
    assert len(np.unique(ids)) == len(keys)
    assert ids.min() >= 2 and ids.max() < 2**63 - 1


def test_only_managed_ids_take_64_bits():
    columns = {"item": [1, 2], "word": ["a", "b"], "seen": [["u", "v"], []]}
    both = fitted(columns, ITEM, WORD, SEEN)
    encoded = both.encode(pa.table(columns), "x")
    [(values, offsets)] = encoded.lists
    assert (encoded.ids_NC.dtype, values.dtype) == (np.int64, np.int64)
    assert encoded.ids_NC.tolist() == [[3, 2], [4, 3]]
    assert values[-1] == 0 and offsets.tolist() == [0, 2, 3], "an empty list is missing"
    batch = EncodedData(features=encoded).batch(np.array([1, 0]), pad_to=3)
    assert batch.values.tolist() == [4, 3, 0, 3, 2, 0, 0, *values[:2].tolist(), 0]
    lists_only = fitted(columns, WORD, SEEN).encode(pa.table(columns), "x")
    assert (lists_only.ids_NC.dtype, lists_only.lists[0][0].dtype) == (np.int32, np.int64)


def test_tables_and_files(tmp_path):
    shared = {"name": "thing", "encoding": "managed", "rows": 9, "admit_after": 2, "evict": "lru",
              "evict_every": 7, "dim": 8}  # fmt: skip
    config = click_config(
        {"kind": "categorical", "name": "item", "table": "thing"},
        {"kind": "list", "name": "seen", "table": "thing"},
        tables=[shared],
    )
    columns = {"item": [3, None], "seen": [["9"], ["3", "4"]]}
    encoder = FeatureEncoder.fit(config, pa.table(columns), "train")
    [table] = encoder.tables
    assert (table.num_rows, table.dim) == (11, 8)
    assert table.managed == ManagedIds(rows=9, admit_after=2, evict="lru", evict_every=7)
    encoder.save(tmp_path)
    again = FeatureEncoder.load(tmp_path)
    assert again.ids == encoder.ids and again.tables == encoder.tables
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.json"], "no vocabulary"
    encoded = again.encode(pa.table(columns), "new")
    assert encoded.ids_NC[:, 0].tolist() == [5, 0]
    assert encoded.lists[0][0].tolist() == [11, 5, 6], "columns that share a table share ids"

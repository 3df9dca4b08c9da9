"""Crosses: one id for several columns, whatever the files store them as."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.cross import CrossColumns, cross_keys
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder

CROSS = {"kind": "cross", "name": "x", "columns": ["a", "b"]}
HASHED = {**CROSS, "encoding": "hash", "hash_size": 100_000}
LOG = {"a": [1, 1, 2, 2, None, 7], "b": ["u", "v", "u", "u", "u", None]}


def configured(*features, tables=()):
    tasks = [{"name": "click", "label": "click"}]
    return config_from_dict({"features": list(features), "tables": list(tables), "tasks": tasks})


def fitted(train, *features, tables=()):
    return FeatureEncoder.fit(configured(*features, tables=tables), pa.table(train), "log.csv")


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


def test_rare_pairs_share_the_row_of_unseen_ones():
    assert ids(fitted(LOG, {**CROSS, "min_count": 2}), LOG) == [1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("feature", [CROSS, HASHED])
@pytest.mark.parametrize(
    "a",
    [
        [1.0, 1.0, 2.0, 2.0, np.nan, 7.0],
        ["1", "1.0", "02", "2", "NA", "7"],
        [Decimal("1.00"), Decimal("1"), Decimal("2"), Decimal("2.0"), None, Decimal("7")],
        pa.array([1, 1, 2, 2, None, 7], pa.uint8()),
        pa.array([1, 1, 2, 2, None, 7]).dictionary_encode(),
    ],
)
def test_columns_of_other_types_have_the_same_ids(feature, a):
    encoder = fitted(LOG, feature)
    assert ids(encoder, {"a": a, "b": LOG["b"]}) == ids(encoder, LOG)


@pytest.mark.parametrize("feature", [CROSS, HASHED])
def test_an_id_of_another_kind_is_unseen(feature):
    encoder = fitted(LOG, feature)
    assert ids(encoder, {"a": ["one", "", "one"], "b": ["u", "u", ""]}) == [1, 0, 0]


def test_ids_are_not_glued_and_order_matters():
    pairs = {"a": ["a", "ab", "bc", "b", "", "abc"], "b": ["bc", "c", "a", "a", "abc", ""]}
    kinds = ["text", "text"]
    columns = [pa.chunked_array([pairs[name]]) for name in "ab"]
    keys, alien_N = cross_keys(CrossColumns(columns, ["a", "b"]), kinds)
    assert len(set(keys.drop_null().to_pylist())) == 4
    assert keys.null_count == 2 and not alien_N.any()
    turned, _ = cross_keys(CrossColumns(columns[::-1], ["b", "a"]), kinds)
    assert not any(np.equal(keys.drop_null(), turned.drop_null()))
    assert turned[0] == keys[2], "(bc, a) both times"


def test_keys_are_the_same_on_every_machine_and_in_every_version():
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


def test_too_many_pairs_are_not_called_those_of_one_column():
    with pytest.raises(ValueError, match=r"log.csv: cross 'a' × 'b' \(of feature 'x'\) has 3 ids"):
        fitted(LOG, {**CROSS, "max_rows": 2})


def test_crosses_share_a_table():
    other = {"kind": "cross", "name": "y", "columns": ["c", "b"], "table": "t"}
    train = {"a": [1, 2], "b": ["u", "u"], "c": ["2", "z"]}
    encoder = fitted(train, {**CROSS, "table": "t"}, other, tables=[{"name": "t"}])
    assert encoder.crosses == {"t": ("text", "text")}, "c makes all of them text"
    assert ids(encoder, train, 0)[1] == ids(encoder, train, 1)[0] == 2, "2 × u, seen twice"
    assert [table.num_rows for table in encoder.tables] == [2 + 3]


@pytest.mark.parametrize("feature", [CROSS, HASHED])
def test_chunks_change_nothing_and_files_keep_everything(feature, tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.integers(0, 9, 300) / 2, "b": rng.integers(0, 5, 300).astype(str)})
    whole = fitted(table, feature)
    fit = EncoderFit(configured(feature), "log.csv")
    for start in range(0, 300, 7):
        fit.add(table.slice(start, 7))
    chunked = FeatureEncoder.of(fit)
    chunked.save(tmp_path)
    loaded = FeatureEncoder.load(tmp_path)
    assert loaded.crosses == whole.crosses == {"x": ("float", "text")}
    assert ids(loaded, table) == ids(chunked, table) == ids(whole, table)


def test_lists_and_missing_columns_are_named():
    with pytest.raises(ValueError, match=r"log.csv: column 'a' \(of feature 'x'\) holds list<"):
        fitted({"a": [[1]], "b": [1]}, CROSS)
    with pytest.raises(ValueError, match=r"log.csv: there is no column 'b', which feature 'x'"):
        fitted({"a": [1]}, CROSS)

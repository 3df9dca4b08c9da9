"""Vectors: read, standardised, in chunks as at once; stored and extended."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import ProjectionSpec, config_from_dict
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder, extend_encoder
from mmoe.datasets.rows.columns import columns_of
from mmoe.datasets.values.columns import to_vectors


def _config(**keys):
    features = [
        {"kind": "numeric", "name": "age"},
        {"kind": "vector", "name": "title", **keys},
    ]
    tasks = [{"name": "click", "label": "click"}]
    return config_from_dict({"features": features, "tasks": tasks})


def _table(rows=3000, length=5, seed=0):
    rng = np.random.default_rng(seed)
    vectors = [row.tolist() for row in rng.normal(3, [1, 2, 0.5, 10, 1e-4], (rows, 5))[:, :length]]
    for row in range(0, rows, 7):
        vectors[row] = None
    return pa.table({"age": rng.random(rows), "title": vectors})


def test_each_number_is_standardised_and_a_missing_vector_says_so():
    table = _table()
    encoder = FeatureEncoder.fit(_config(), table, "log")
    names = ["age", *(f"title[{i}]" for i in range(5)), "title[missing]"]
    assert encoder.dense_names == names
    dense_NF = encoder.encode(table, "log").dense_NF
    assert dense_NF.dtype == np.float32
    missing_N = dense_NF[:, 6] == 1
    assert missing_N.tolist() == [row % 7 == 0 for row in range(3000)]
    np.testing.assert_array_equal(dense_NF[missing_N, 1:6], 0)
    np.testing.assert_allclose(dense_NF[~missing_N, 1:6].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(dense_NF[~missing_N, 1:6].std(axis=0), 5**-0.25, atol=1e-5)
    plain = FeatureEncoder.fit(_config(standardise=False), table, "log").encode(table, "log")
    expected = np.array([row for row in table["title"].to_pylist() if row], np.float32)
    np.testing.assert_array_equal(plain.dense_NF[~missing_N, 1:6], expected)


def test_without_missing_rows_in_training_no_column_says_so():
    table = _table().filter(pa.compute.is_valid(_table()["title"]))
    encoder = FeatureEncoder.fit(_config(), table, "log")
    assert encoder.dense_names[-1] == "title[4]"
    row = encoder.encode(pa.table({"age": [0.5], "title": pa.nulls(1)}), "new").dense_NF
    np.testing.assert_array_equal(row[0, 1:], 0)


@pytest.mark.parametrize("cuts", [[1], [700, 1400, 1500], [1024, 2048]])
def test_in_chunks_as_at_once_to_the_bit(cuts):
    table, config = _table(), _config()
    fit = EncoderFit(config, "log")
    for start, stop in zip([0, *cuts], [*cuts, 3000], strict=True):
        fit.add(table[start:stop])
    assert FeatureEncoder.of(fit).rules == FeatureEncoder.fit(config, table, "log").rules


def test_saved_and_loaded(tmp_path):
    table = _table()
    encoder = FeatureEncoder.fit(_config(dim=3), table, "log")
    encoder.save(tmp_path)
    loaded = FeatureEncoder.load(tmp_path)
    assert loaded.rules == encoder.rules
    assert loaded.fingerprint() == encoder.fingerprint()
    [spec] = loaded.input_layers
    assert spec == ProjectionSpec(name="title", first=1, width=6, dim=3)


def test_alarms_take_the_numbers_behind_a_vector_for_what_they_are():
    config = config_from_dict(
        {
            "features": [{"kind": "vector", "name": "title"}, {"kind": "numeric", "name": "age"}],
            "tasks": [{"name": "click", "label": "click"}],
        }
    )
    for length in (2, 5):
        table = _table(rows=50, length=length)
        encoder = FeatureEncoder.fit(config, table, "log")
        features = encoder.encode(table, "log")
        [age] = columns_of(features, encoder)
        assert age.name == "age"
        np.testing.assert_array_equal(age.items, features.dense_NF[:, -1])


def test_a_warm_start_keeps_the_scaling_and_refuses_another_length():
    config = _config()
    monday, tuesday = (FeatureEncoder.fit(config, _table(seed=s), "log") for s in (1, 2))
    extended, before = (e.rules["vectors"]["title"] for e in (
        extend_encoder(tuesday, monday, "log"), monday
    ))  # fmt: skip
    assert replace(extended, seen=before.seen) == before
    ranges = zip(before.seen, tuesday.rules["vectors"]["title"].seen, strict=True)
    assert [*extended.seen] == [(min(a, c), max(b, d)) for (a, b), (c, d) in ranges]
    shorter = FeatureEncoder.fit(config, _table(length=4), "log")
    message = "vectors of 4 numbers, but 5 in the run that is continued; give the feature another"
    with pytest.raises(ValueError, match=message):
        extend_encoder(shorter, monday, "log")


ROWS = [[0.5, -1.25], None, [3.0, 1e-3]]
TEXTS = [
    ["[0.5, -1.25]", "", "[3.0, 0.001]"],
    ["(0.5,-1.25)", "NA", "(3, 1e-3)"],
    [" [ 0.5   -1.25]", "[]", "[3.\n  1.e-03]"],
    ["0.5|-1.25", None, "3.0|0.001"],
    ["0.5;-1.25", "null", "3.0; 0.001"],
    ["[0.5,-1.25]", "[nan, nan]", "3.0 0.001"],
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_holds_the_same_vectors(text):
    vectors = to_vectors(pa.table({"x": pa.array(text, pa.string())}), "x", "log", "feature 'x'")
    assert vectors.present_N.tolist() == [True, False, True]
    assert vectors.numbers_ML.tolist() == [row for row in ROWS if row]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.list_(pa.float64(), 2),
        pa.large_list(pa.float64()),
        pa.list_(pa.decimal128(9, 3)),
        pa.list_view(pa.float16()),
    ],
    ids=str,
)
def test_lists_of_any_type_hold_the_same_vectors(kind):
    items = np.array([0.5, -1.25, 3.0, 1e-3])
    if kind == pa.list_(pa.decimal128(9, 3)):
        rows = pa.array([[0.5, -1.25], None, [3.0, 0.001]], pa.list_(pa.float64()))
        rows = pa.array([None if r is None else [f"{x:.3f}" for x in r] for r in rows.to_pylist()])
        rows = rows.cast(kind)
    else:
        value = np.float16 if pa.types.is_float16(kind.value_type) else np.float64
        items = items.astype(value)
        rows = pa.array([items[:2], None, items[2:]], kind)
    table = pa.table({"x": pa.chunked_array([rows[:1], rows[1:]])})
    vectors = to_vectors(table, "x", "log", "feature 'x'")
    assert vectors.present_N.tolist() == [True, False, True]
    np.testing.assert_allclose(vectors.numbers_ML, items.reshape(2, 2).astype(float), rtol=1e-3)


def test_a_number_that_is_missing_within_a_vector_is_the_mean():
    table = pa.table({"age": [1.0] * 4, "title": [[1, 5.0], [None, 7], [float("nan")] * 2, [3, 6]]})
    encoder = FeatureEncoder.fit(_config(), table, "log")
    rule = encoder.rules["vectors"]["title"]
    assert (rule.mean, rule.missing) == ((2.0, 6.0), True)
    dense_NF = encoder.encode(table, "log").dense_NF
    assert dense_NF[1, 1] == 0
    assert dense_NF[:, 3].tolist() == [0, 0, 1, 0]
    assert np.isfinite(dense_NF).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2], [1.0]], r"log: row 2: column 'x' \(of .*'x'\) holds 1 numbers, expected 2"),
        (["[1, 2]", "[1, 2, 3]"], "log: row 2: .* holds 3 numbers, expected 2 as in other rows"),
        ([[1.0, 2], [3.0, float("inf")]], "log: row 2: .* holds inf, expected finite numbers"),
        (["[1, 2]", "[3, x]"], "log: row 2: .* holds 'x', expected finite numbers; mend"),
        ([1.5, 2.5], "log: column 'x' .* holds double, expected lists of numbers, or text such"),
        ([[[1.0]], [[2.0]]], r"log: .* holds list<.*, expected lists of numbers"),
        ([{"a": 1}], "log: .* holds struct<.*, expected lists of numbers"),
    ],
)  # fmt: skip
def test_refuses(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        to_vectors(pa.table({"x": values}), "x", "log", "feature 'x'")
    assert "\n" not in str(caught.value)


def test_rows_that_do_not_train_are_as_long_and_training_has_a_vector():
    table, config = _table(rows=20), _config()
    fit = EncoderFit(config, "log")
    fit.add(table)
    with pytest.raises(ValueError, match=r"row 2: column 'title' .* holds 4 numbers, expected 5"):
        fit.check(_table(rows=20, length=4))
    encoder = FeatureEncoder.of(fit)
    with pytest.raises(ValueError, match=r"new: row 2: .* holds 4 numbers, expected 5"):
        encoder.encode(_table(rows=20, length=4), "new")
    empty = pa.table({"age": [1.0], "title": pa.nulls(1)})
    with pytest.raises(
        ValueError, match=r"log: column 'title' .* is empty in every training row; remove"
    ):
        FeatureEncoder.fit(config, empty, "log")

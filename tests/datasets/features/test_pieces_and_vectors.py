"""Pieces of numbers, and vectors: fitted, encoded, stored, streamed and extended."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import NumericFeature, PiecesSpec, ProjectionSpec
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder, extend_encoder
from mmoe.datasets.features.fit_numbers import piece_ends
from mmoe.datasets.features.numeric import NumericRule
from mmoe.datasets.rows.columns import columns_of
from mmoe.datasets.values.columns import to_vectors
from tests.small_configs import click_config


def _config(**keys):
    return click_config({"kind": "numeric", "name": "x", **keys}, {"kind": "numeric", "name": "y"})


def _fit(x, **keys):
    x = pa.array(x, pa.float64())
    return FeatureEncoder.fit(_config(**keys), pa.table({"x": x, "y": np.zeros(len(x))}), "log")


def _positions(encoder, x):
    x = pa.array(x, pa.float64())
    return encoder.encode(pa.table({"x": x, "y": np.zeros(len(x))}), "new").dense_NF[:, 1]


def test_a_position_counts_pieces_and_lies_between_the_plain_numbers():
    encoder = _fit([0.0, 1.0, 3.0, 7.0], pieces=10)
    assert encoder.dense_names == ["x", "x[position]", "y"]
    assert encoder.input_layers == [PiecesSpec(name="x", first=1, pieces=3, missing=False)]
    x = [-5.0, 0.0, 0.25, 2.0, 3.0, 6.0, 7.0, 1e300, None]
    assert _positions(encoder, x).tolist() == [0, 0, 0.25, 1.5, 2, 2.75, 3, 3, -1]


@pytest.mark.parametrize("log", [False, True])
def test_ends_are_quantiles_and_positions_linear_in_what_is_scaled(log):
    x = np.random.default_rng(0).lognormal(3, 2, 10_001)
    encoder = _fit(x, pieces=8, log=log)
    ends = np.array(encoder.numeric["x"].ends)
    quantiles = np.quantile(x, np.arange(9) / 8)
    rows = np.searchsorted(np.sort(x), [ends, quantiles])
    assert np.abs(np.diff(rows, axis=0)).max() <= 1
    new = np.random.default_rng(1).lognormal(3, 2, 1000)
    f = np.log1p if log else np.positive
    expected = np.interp(f(new), f(ends), np.arange(9))
    np.testing.assert_allclose(_positions(encoder, new), expected, rtol=1e-6, atol=1e-6)


def test_a_heavy_value_has_a_step_on_each_side():
    x = np.concatenate([np.arange(-300.0, 0), np.zeros(900), np.arange(1.0, 301)])
    encoder = _fit(x, pieces=12)
    ends = encoder.numeric["x"].ends
    below = ends.index(-1.0)
    assert ends[below : below + 3] == (-1.0, 0.0, 1.0)
    assert len(ends) <= 13
    assert np.diff(_positions(encoder, [-1.0, 0.0, 1.0])).tolist() == [1, 1]


@pytest.mark.parametrize(("x", "pieces", "expected"), [
    ([5.0] * 4, 0, [0.0, 0.0, 0.0]),
    ([None] * 3, 0, [-1.0, -1.0, -1.0]),
    ([float("nan")] * 2, 0, [-1.0, -1.0, -1.0]),
    ([1.0, 2.0, None], 1, [1.0, 0.0, -1.0]),
])  # fmt: skip
def test_few_values_have_few_pieces(x, pieces, expected):
    encoder = _fit(x, pieces=6)
    [spec] = encoder.input_layers
    assert (spec.pieces, spec.missing) == (pieces, x[-1] != 5.0)
    assert _positions(encoder, [5.0, -5.0, None]).tolist() == expected


def test_what_is_missing_is_said_once():
    assert _fit([1.0, None, 3.0], pieces=2).numeric["x"].missing
    assert not _fit([1.0, 2.0, 3.0], pieces=2).numeric["x"].missing, "no training row says it"
    assert not _fit([1.0, None, 3.0], pieces=2, buckets=2).numeric["x"].missing, "a bucket says it"
    sentinel = _fit([1.0, -999.0, 3.0], pieces=2, missing_values=[-999])
    assert sentinel.numeric["x"].ends == (1.0, 3.0)
    assert _positions(sentinel, [-999.0, None]).tolist() == [-1, -1]


@pytest.mark.parametrize("log", [False, True])
def test_ends_as_far_apart_as_numbers_can_be(log):
    largest = np.finfo(float).max
    encoder = _fit([-largest, largest, 5e-324, 0.0], pieces=3, log=log)
    positions = _positions(encoder, [-largest, 0.0, 5e-324, 1.0, largest])
    assert np.isfinite(positions).all()
    assert (np.diff(positions) >= 0).all()
    assert positions[-1] == encoder.numeric["x"].num_pieces
    top = np.nextafter(largest, 0)  # its logarithm is the same
    pair = _fit([top, largest], pieces=2, log=log)
    assert pair.numeric["x"].num_pieces == 1 - log
    assert np.isfinite(_positions(pair, [0.0, top, largest])).all()


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(-20, 20), min_size=1, max_size=200), pieces=st.integers(2, 30))
def test_pieces_are_at_most_so_many_and_follow_the_order(values, pieces):
    x = np.array(values, float)
    ends = piece_ends(*np.unique(x, return_counts=True), pieces)
    assert len(ends) <= pieces + 1
    assert (np.diff(ends) > 0).all()
    assert (ends[0], ends[-1]) == (x.min(), x.max())
    rule = NumericRule.fit(NumericFeature(name="x", pieces=pieces), x)
    positions = rule.position(np.sort(x))
    assert (np.diff(positions) >= 0).all()
    assert (positions.min(), positions.max()) == (0, rule.num_pieces)
    if len(set(values)) <= pieces + 1:
        assert rule.ends == tuple(sorted(set(values)))


def test_buckets_are_the_same_beside_pieces():
    x = np.random.default_rng(0).normal(size=5000).round(2)
    alone, both = _fit(x, buckets=20), _fit(x, buckets=20, pieces=1000)
    assert both.numeric["x"].edges == alone.numeric["x"].edges


def test_they_are_stored_and_a_warm_start_keeps_them(tmp_path):
    encoder = _fit([1.0, 2.0, 4.0, None], pieces=2)
    encoder.save(tmp_path)
    loaded = FeatureEncoder.load(tmp_path)
    assert loaded.rules == encoder.rules
    assert loaded.input_layers == encoder.input_layers
    content = json.loads((tmp_path / "encoder.json").read_text())["numeric"]
    always = {"log", "mean", "deviation", "edges", "seen", "gaps", "clips"}
    assert set(content["x"]) == {*always, "ends", "missing"}
    assert set(content["y"]) == always, "as before there were pieces"
    monday, tuesday = _fit([1.0, 2.0, 3.0], pieces=2), _fit([5.0, None], pieces=2)
    extended = extend_encoder(tuesday, monday, "log")
    assert extended.numeric["x"] == replace(monday.numeric["x"], seen=(1.0, 5.0), gaps=True)
    assert extended.input_layers == monday.input_layers


def test_alarms_see_which_numbers_are_missing_and_those_behind_a_vector():
    x, y = [1.0, None, 3.0], [1.0, 2.0, 3.0]
    encoder = FeatureEncoder.fit(_config(pieces=2), pa.table({"x": x, "y": y}), "log")
    features = encoder.encode(pa.table({"x": x, "y": y}), "log")
    of_x, of_y = columns_of(features, encoder)
    assert (of_x.name, of_x.missing.tolist()) == ("x", [False, True, False])
    assert (of_y.name, of_y.items.tolist()) == ("y", pytest.approx([-1.2247449, 0.0, 1.2247449]))
    config = click_config({"kind": "vector", "name": "title"}, {"kind": "numeric", "name": "age"})
    for length in (2, 5):
        table = _table(rows=50, length=length)
        encoder = FeatureEncoder.fit(config, table, "log")
        features = encoder.encode(table, "log")
        [age] = columns_of(features, encoder)
        assert age.name == "age"
        np.testing.assert_array_equal(age.items, features.dense_NF[:, -1])


def _vector_config(**keys):
    title = {"kind": "vector", "name": "title", **keys}
    return click_config({"kind": "numeric", "name": "age"}, title)


def _table(rows=3000, length=5, seed=0):
    rng = np.random.default_rng(seed)
    vectors = [row.tolist() for row in rng.normal(3, [1, 2, 0.5, 10, 1e-4], (rows, 5))[:, :length]]
    for row in range(0, rows, 7):
        vectors[row] = None
    return pa.table({"age": rng.random(rows), "title": vectors})


def test_each_number_is_standardised_and_a_missing_vector_says_so():
    table = _table()
    encoder = FeatureEncoder.fit(_vector_config(), table, "log")
    names = ["age", *(f"title[{i}]" for i in range(5)), "title[missing]"]
    assert encoder.dense_names == names
    dense_NF = encoder.encode(table, "log").dense_NF
    assert dense_NF.dtype == np.float32
    missing_N = dense_NF[:, 6] == 1
    assert missing_N.tolist() == [row % 7 == 0 for row in range(3000)]
    np.testing.assert_array_equal(dense_NF[missing_N, 1:6], 0)
    np.testing.assert_allclose(dense_NF[~missing_N, 1:6].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(dense_NF[~missing_N, 1:6].std(axis=0), 5**-0.25, atol=1e-5)
    plain = FeatureEncoder.fit(_vector_config(standardise=False), table, "log").encode(table, "log")
    expected = np.array([row for row in table["title"].to_pylist() if row], np.float32)
    np.testing.assert_array_equal(plain.dense_NF[~missing_N, 1:6], expected)


def test_without_missing_rows_in_training_no_column_says_so():
    table = _table().filter(pa.compute.is_valid(_table()["title"]))
    encoder = FeatureEncoder.fit(_vector_config(), table, "log")
    assert encoder.dense_names[-1] == "title[4]"
    row = encoder.encode(pa.table({"age": [0.5], "title": pa.nulls(1)}), "new").dense_NF
    np.testing.assert_array_equal(row[0, 1:], 0)


def test_vectors_in_chunks_as_at_once_to_the_bit_and_stored(tmp_path):
    table, config = _table(), _vector_config(dim=3)
    encoder = FeatureEncoder.fit(config, table, "log")
    for cuts in ([1], [700, 1400, 1500], [1024, 2048]):
        fit = EncoderFit(config, "log")
        for start, stop in zip([0, *cuts], [*cuts, 3000], strict=True):
            fit.add(table[start:stop])
        assert FeatureEncoder.of(fit).rules == encoder.rules
    encoder.save(tmp_path)
    loaded = FeatureEncoder.load(tmp_path)
    assert loaded.rules == encoder.rules
    assert loaded.fingerprint() == encoder.fingerprint()
    assert loaded.input_layers == [ProjectionSpec(name="title", first=1, width=6, dim=3)]


def test_rows_that_do_not_train_are_as_long_and_training_has_a_vector():
    config, fours = _vector_config(), _table(rows=20, length=4)
    fit = EncoderFit(config, "log")
    fit.add(_table(rows=20))
    with pytest.raises(ValueError, match=r"row 2: column 'title' .* holds 4 numbers, expected 5"):
        fit.check(fours)
    encoder = FeatureEncoder.of(fit)
    with pytest.raises(ValueError, match=r"new: row 2: .* holds 4 numbers, expected 5"):
        encoder.encode(fours, "new")
    empty = pa.table({"age": [1.0], "title": pa.nulls(1)})
    with pytest.raises(ValueError, match=r"log: column 'title' .* is empty in every training row"):
        FeatureEncoder.fit(config, empty, "log")
    message = "vectors of 4 numbers, but 5 in the run that is continued; give the feature another"
    with pytest.raises(ValueError, match=message):
        extend_encoder(FeatureEncoder.fit(config, fours, "log"), encoder, "log")


def test_a_warm_start_keeps_the_scaling():
    fits = [FeatureEncoder.fit(_vector_config(), _table(seed=s), "log") for s in (1, 2)]
    both = extend_encoder(*fits[::-1], "log")
    before, tuesday, extended = (one.rules["vectors"]["title"] for one in (*fits, both))
    assert replace(extended, seen=before.seen) == before
    ranges = zip(before.seen, tuesday.seen, strict=True)
    assert [*extended.seen] == [(min(a, c), max(b, d)) for (a, b), (c, d) in ranges]


ROWS = [[0.5, -1.25], None, [3.0, 1e-3]]
TEXTS = [
    ["[0.5, -1.25]", "", "[3.0, 0.001]"],
    ["(0.5,-1.25)", "NA", "(3, 1e-3)"],
    [" [ 0.5   -1.25]", "[]", "[3.\n  1.e-03]"],
    ["0.5|-1.25", None, "3.0|0.001"],
    ["0.5;-1.25", "null", "3.0; 0.001"],
    ["[0.5,-1.25]", "[nan, nan]", "3.0 0.001"],
]


def test_text_holds_the_same_vectors():
    for text in TEXTS:
        table = pa.table({"x": pa.array(text, pa.string())})
        vectors = to_vectors(table, "x", "log", "feature 'x'")
        assert vectors.present_N.tolist() == [True, False, True]
        assert vectors.numbers_ML.tolist() == [row for row in ROWS if row]


@pytest.mark.parametrize("kind", [
    pa.list_(pa.float32()),
    pa.list_(pa.float64(), 2),
    pa.large_list(pa.float64()),
    pa.list_(pa.decimal128(9, 3)),
    pa.list_view(pa.float16()),
], ids=str)  # fmt: skip
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
    encoder = FeatureEncoder.fit(_vector_config(), table, "log")
    rule = encoder.rules["vectors"]["title"]
    assert (rule.mean, rule.missing) == ((2.0, 6.0), True)
    dense_NF = encoder.encode(table, "log").dense_NF
    assert dense_NF[1, 1] == 0
    assert dense_NF[:, 3].tolist() == [0, 0, 1, 0]
    assert np.isfinite(dense_NF).all()


@pytest.mark.parametrize(("values", "message"), [
    ([[1.0, 2], [1.0]], r"log: row 2: column 'x' \(of .*'x'\) holds 1 numbers, expected 2"),
    (["[1, 2]", "[1, 2, 3]"], "log: row 2: .* holds 3 numbers, expected 2 as in other rows"),
    ([[1.0, 2], [3.0, float("inf")]], "log: row 2: .* holds inf, expected finite numbers"),
    (["[1, 2]", "[3, x]"], "log: row 2: .* holds 'x', expected finite numbers; mend"),
    ([1.5, 2.5], "log: column 'x' .* holds double, expected lists of numbers, or text such"),
    ([[[1.0]], [[2.0]]], r"log: .* holds list<.*, expected lists of numbers"),
    ([{"a": 1}], "log: .* holds struct<.*, expected lists of numbers"),
])  # fmt: skip
def test_vectors_that_are_refused(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        to_vectors(pa.table({"x": values}), "x", "log", "feature 'x'")
    assert "\n" not in str(caught.value)

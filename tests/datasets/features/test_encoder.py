import copy
import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import config_from_dict
from mmoe.datasets.features import Coded
from mmoe.datasets.features.encoder import FeatureEncoder, sections
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.files.readers import iter_tables, read_table
from mmoe.datasets.rows.projection import required_columns
from mmoe.datasets.values.hashing import hash_text, mix64


def configured(*features, **others):
    task = {"name": "click", "label": "click"}
    return config_from_dict({"features": list(features), "tasks": [task], **others})


def fit(config, **columns):
    return FeatureEncoder.fit(config, pa.table(columns), "train.csv")


def ids(encoder, position=0, **columns):
    return encoder.encode(pa.table(columns), "new.csv").ids_NC[:, position].tolist()


WORD = {"kind": "categorical", "name": "word"}
NUMBER = {"kind": "numeric", "name": "x"}


def test_vocabulary_is_by_frequency_then_key():
    encoder = fit(configured(WORD), word=["b", "a", "c", "c", None, "", "a2"])
    assert encoder.ids["word"].keys.to_pylist() == ["c", "a", "a2", "b"]
    assert encoder.ids["word"].counts.tolist() == [2, 1, 1, 1]
    assert ids(encoder, word=["c", "a", "b", "new", "", None]) == [2, 3, 5, 1, 0, 0]
    [table] = encoder.tables
    assert (table.name, table.num_rows, table.dim) == ("word", 6, 16)


def test_min_count_sends_rare_ids_to_the_unseen_row():
    encoder = fit(configured(WORD | {"min_count": 2}), word=["b", "a", "a"])
    assert ids(encoder, word=["a", "b", "z", None]) == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("coded", "message"),
    [
        (Coded(), "returned 0 of the 1 in its `dense_names`"),
        (Coded(dense=[np.zeros(3)]), "returned a column of 3 rows; expected 2"),
    ],
)
def test_what_a_codec_returns_has_to_be_what_it_said(monkeypatch, coded, message):
    encoder = fit(configured(NUMBER), x=[1.0, 3.0])
    monkeypatch.setattr(NumericCodec, "encode", lambda *_: coded)
    with pytest.raises(ValueError, match=f"feature 'x': NumericCodec.encode {message}"):
        encoder.encode(pa.table({"x": [1.0, 2.0]}), "new.csv")


def test_fitting_looks_at_training_rows_only():
    config = configured(WORD, NUMBER | {"buckets": 2})
    encoder = fit(config, word=["a", "b"], x=[1.0, 3.0])
    encoded = encoder.encode(pa.table({"word": ["c"], "x": [4.0]}), "test.csv")
    assert encoded.ids_NC.tolist() == [[1, 3]]
    assert encoded.dense_NF.tolist() == [[2.0]]


@pytest.mark.parametrize(
    "trained",
    [
        pa.array([7, 3, 7, -1, None, 2**40]),
        pa.array([7.0, 3.0, 7.0, -1.0, None, 2.0**40]),
        pa.array([7, 3, 7, -1, None, 2**40]).dictionary_encode(),
        pa.array(["7", "3", "7", "-1", None, str(2**40)]),
    ],
    ids=["int", "float", "dictionary", "text"],
)
@pytest.mark.parametrize(
    "scored",
    [
        pa.array([7, 3, 5, None, 2**40]),
        pa.array([7.0, 3.0, 5.0, None, 2.0**40]),
        pa.array([7.0, 3.0, 5.0, float("nan"), 2.0**40]),
        pa.array(["7", "3", "5", "", str(2**40)]),
        pa.array(["7", "3", "word", None, str(2**40)]),
        pa.array([7, 3, 5, None, 2**40], pa.uint64()),
    ],
    ids=["int", "float", "nan", "text", "word", "unsigned"],
)
def test_ids_agree_whatever_their_type(trained, scored):
    encoder = fit(configured(WORD), word=trained)
    seven, three, unseen, missing, large = ids(encoder, word=scored)
    known = [str(key) for key in encoder.ids["word"].keys.to_pylist()]
    assert (known[seven - 2], known[three - 2], known[large - 2]) == ("7", "3", str(2**40))
    assert (unseen, missing) == (1, 0)


def test_float_ids_text_forms():
    encoder = fit(configured(WORD), word=[0.5, 1.5, 1.5, None])
    assert ids(encoder, word=["1.50", "0.5", "2", "x", ""]) == [2, 3, 1, 1, 0]
    assert ids(encoder, word=[1.5, 0.5, 1.0, float("nan"), None]) == [2, 3, 1, 0, 0]


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
def test_negative_zero_is_zero(encoding):
    encoder = fit(configured(WORD | {"encoding": encoding}), word=[0.0, -0.0, 0.5])
    zero = ids(encoder, word=[0.0])
    for same in ([-0.0], ["-0.0"], ["0"], [0]):
        assert ids(encoder, word=same) == zero


def test_boolean_ids():
    encoder = fit(configured(WORD), word=[True, False, True, None])
    expected = [2, 3, 0]
    assert ids(encoder, word=[True, False, None]) == expected
    assert ids(encoder, word=["true", "false", ""]) == expected
    assert ids(encoder, word=[1, 0, None]) == expected


def test_ids_beyond_31_and_53_and_63_bits():
    large = [2**31 + 1, 2**53 + 1, 2**63 - 1]
    encoder = fit(configured(WORD), word=large)
    assert ids(encoder, word=large) == [2, 3, 4]
    assert ids(encoder, word=[str(key) for key in large]) == [2, 3, 4]
    assert ids(encoder, word=[str(2**53)]) == [1]
    unsigned = pa.array([2**64 - 1, 5], pa.uint64())
    encoder = fit(configured(WORD), word=unsigned)
    assert ids(encoder, word=[str(2**64 - 1), "5"]) == ids(encoder, word=unsigned) != [1, 1]


def test_ids_that_lost_digits_as_floats_are_refused():
    config = configured(WORD)
    message = r"train.csv: column 'word' \(of feature 'word'\) holds ids as floating point, and"
    with pytest.raises(ValueError, match=message):
        fit(config, word=[2.0**53 + 2, 1.0])
    encoder = fit(config, word=[2**53 + 1, 1])
    with pytest.raises(ValueError, match="store the ids as integers or text"):
        ids(encoder, word=[2.0**53, float("nan")])


def test_a_list_in_a_single_id_column_is_refused():
    with pytest.raises(ValueError, match="expected ids; make it a list feature"):
        fit(configured(WORD), word=[[1], [2]])
    encoder = fit(configured(WORD), word=[1, 2])
    with pytest.raises(ValueError, match="expected ids; make it a list feature"):
        ids(encoder, word=[[1], [2]])


def test_hashing_is_by_value_and_stable():
    config = configured(WORD | {"encoding": "hash", "hash_size": 1000})
    encoder = fit(config, word=[1, 2, None])
    expected = (2 + mix64(np.array([1, 2**40])) % np.uint64(1000)).tolist()
    assert ids(encoder, word=[1, 2**40, None]) == [*expected, 0]
    assert ids(encoder, word=["1", str(2**40), "word"]) == [*expected, 1]
    words = fit(config, word=["a", "b"])
    expected = (2 + hash_text(pa.array(["a", "7"])) % np.uint64(1000)).tolist()
    assert ids(words, word=["a", "7"]) == expected
    assert ids(words, word=[7]) == expected[1:]
    assert encoder.tables[0].num_rows == 1002


def test_shared_table_counts_all_its_features_together():
    item = {"kind": "categorical", "name": "item", "table": "items"}
    seen = {"kind": "list", "name": "seen", "table": "items", "pooling": "sum"}
    table = {"name": "items", "min_count": 2, "dim": 8}
    config = configured(item, seen, tables=[table])
    encoder = fit(config, item=[1, 2, 3], seen=["2|3", "3", None])
    assert encoder.ids["items"].keys.to_pylist() == [3, 2]
    assert [(t.name, t.num_rows, t.dim) for t in encoder.tables] == [("items", 4, 8)]
    assert [spec.table for spec in (*encoder.categorical, *encoder.lists)] == ["items"] * 2
    assert encoder.lists[0].pooling == "sum"
    encoded = encoder.encode(pa.table({"item": [3, 1], "seen": ["1|2", "3"]}), "x")
    assert encoded.ids_NC.tolist() == [[2], [1]]
    values, offsets = encoded.lists[0]
    assert (values.tolist(), offsets.tolist()) == ([1, 3, 2], [0, 2, 3])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2, 3], [], None, [2, None], [9]]),
        pa.array([[1, 2, 3], [], None, [2, None], [9]], pa.large_list(pa.int32())),
        pa.array([["1", "2", "3"], [], None, ["2", ""], ["9"]]),
        pa.array(["1|2|3", "", None, " 2 |", "9"]),
        pa.array([[1.0, 2.0, 3.0], [], None, [2.0, None], [9.0]]),
    ],
    ids=["list", "large_list", "words", "text", "floats"],
)
@pytest.mark.parametrize("trained", ["list", "text"])
def test_lists_agree_whatever_their_type(column, trained):
    feature = {"kind": "list", "name": "seen", "max_length": 2}
    train = [[1, 2], [1]] if trained == "list" else ["1|2", "1"]
    encoder = fit(configured(feature), seen=train)
    [(values, offsets)] = encoder.encode(pa.table({"seen": column}), "x").lists
    assert values.tolist() == [2, 3, 0, 0, 3, 1]
    assert offsets.tolist() == [0, 2, 3, 4, 5, 6]


def test_single_numbers_are_lists_of_one_and_slices_are_right():
    encoder = fit(configured({"kind": "list", "name": "seen"}), seen=[[5], [6]])
    [(values, offsets)] = encoder.encode(pa.table({"seen": [5, None, 6]}), "x").lists
    assert (values.tolist(), offsets.tolist()) == ([2, 0, 3], [0, 1, 2, 3])
    sliced = pa.table({"seen": [[5, 5], [6], [5]]}).slice(1)
    [(values, offsets)] = encoder.encode(sliced, "x").lists
    assert (values.tolist(), offsets.tolist()) == ([3, 2], [0, 1, 2])


def test_numeric_formula():
    encoder = fit(configured(NUMBER | {"log": True}), x=[0.0, -3.0, 8.0, None])
    logs = np.sign([0, -3, 8]) * np.log1p([0, 3, 8])
    encoded = encoder.encode(pa.table({"x": [5.0, None, -1.0]}), "x").dense_NF[:, 0]
    expected = (np.array([np.log1p(5), np.nan, -np.log1p(1)]) - logs.mean()) / logs.std()
    np.testing.assert_allclose(encoded, np.nan_to_num(expected), rtol=1e-6)
    assert encoded.dtype == np.float32
    raw = fit(configured(NUMBER | {"standardise": False}), x=[10.0, 20.0])
    assert raw.encode(pa.table({"x": [5, None]}), "x").dense_NF.tolist() == [[5.0], [0.0]]


@pytest.mark.parametrize(
    "values", [[5.0] * 4, [0.1] * 3, [None, None], [float("nan")] * 2, [1e300]]
)
def test_constant_and_empty_columns_are_zero(values):
    encoder = fit(configured(NUMBER | {"buckets": 4}), x=pa.array(values, pa.float64()))
    encoded = encoder.encode(pa.table({"x": pa.array(values, pa.float64())}), "x")
    assert not encoded.dense_NF.any()
    assert encoder.tables[0].num_rows == 3


def test_enormous_numbers_stay_finite():
    encoder = fit(configured(NUMBER), x=[1.0, 2.0])
    for value in (1e308, -1e308):
        assert np.isfinite(encoder.encode(pa.table({"x": [value]}), "x").dense_NF).all()
    wide = fit(configured(NUMBER), x=[1e308, -1e308, 0.0])
    assert np.isfinite(wide.encode(pa.table({"x": [1e308, -1e308]}), "x").dense_NF).all()


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.integers(-20, 20) | st.none(), min_size=1, max_size=200),
    buckets=st.integers(1, 12),
)
def test_buckets_follow_order_and_hold_similar_numbers_of_rows(values, buckets):
    train = pa.array(values, pa.float64())
    encoder = fit(configured(NUMBER | {"buckets": buckets}), x=train)
    bucket = np.array(ids(encoder, x=train))
    rows = encoder.tables[0].num_rows
    assert bucket.max() < rows <= max(buckets, 1) + 2
    present = np.array([v for v in values if v is not None])
    assert (bucket == 0).sum() == len(values) - len(present)
    order = np.argsort(present, kind="stable")
    assert (np.diff(bucket[bucket > 0][order]) >= 0).all()
    heaviest_value = max((present == v).sum() for v in set(present)) if len(present) else 0
    if len(present):
        heaviest_bucket = np.bincount(bucket[bucket > 0]).max()
        assert heaviest_bucket <= len(present) / buckets + 1 + heaviest_value


def test_few_values_get_a_bucket_each_and_the_mass_at_zero_its_own():
    encoder = fit(configured(NUMBER | {"buckets": 10}), x=[0, 1, 2, 2, 5])
    assert ids(encoder, x=[0, 1, 2, 5, -1, 100, None]) == [2, 3, 4, 5, 2, 5, 0]
    spiky = fit(configured(NUMBER | {"buckets": 4}), x=[0.0] * 90 + list(np.arange(1.0, 11.0)))
    zero, one = ids(spiky, x=[0.0, 1.0])
    assert (zero, one) == (2, 3)


def test_bucket_twin_has_its_own_table_and_order_follows_the_config():
    config = configured(
        WORD,
        NUMBER | {"buckets": 3, "dim": 4},
        {"kind": "list", "name": "tags", "pooling": "mean"},
        {"kind": "categorical", "name": "city", "dim": 8},
        {"kind": "numeric", "name": "y"},
    )
    encoder = fit(config, word=["a"], x=[1.0], tags=["t"], city=["c"], y=[2.0])
    assert encoder.dense_names == ["x", "y"]
    assert [spec.name for spec in encoder.categorical] == ["word", "x__bucket", "city"]
    assert [spec.name for spec in encoder.lists] == ["tags"]
    assert [(t.name, t.dim) for t in encoder.tables] == [
        ("word", 16),
        ("x__bucket", 4),
        ("tags", 16),
        ("city", 8),
    ]


def test_source_columns_with_any_name():
    names = ["a b", "a.b", "名前", "class", "x`y", "__mmoe"]
    features = [
        {"kind": "categorical", "name": f"f{i}", "column": name} for i, name in enumerate(names)
    ]
    columns = {name: ["a", "b"] for name in names}
    encoder = FeatureEncoder.fit(configured(*features), pa.table(columns), "x")
    assert encoder.encode(pa.table(columns), "x").ids_NC.tolist() == [[2] * 6, [3] * 6]


def test_one_row_and_no_features_of_a_kind():
    encoder = fit(configured(WORD), word=["a", "b"])
    encoded = encoder.encode(pa.table({"word": ["b"]}), "x")
    assert (encoded.dense_NF.shape, encoded.ids_NC.shape) == ((1, 0), (1, 1))
    only = fit(configured(NUMBER), x=[1.0])
    assert only.encode(pa.table({"x": [1.0]}), "x").ids_NC.shape == (1, 0)
    assert len(encoder.encode(pa.table({"word": pa.array([], pa.string())}), "x")) == 0


def test_save_and_load(tmp_path):
    config = configured(
        WORD,
        WORD | {"name": "hashed", "column": "word", "encoding": "hash"},
        WORD | {"name": "Word", "column": "n"},
        NUMBER | {"buckets": 7, "log": True},
        {"kind": "categorical", "name": "real"},
    )
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "word": [f"é{i % 13}" for i in range(100)],
            "n": rng.integers(0, 2**62, 100),
            "x": rng.lognormal(size=100),
            "real": rng.normal(size=100),
        }
    )
    encoder = FeatureEncoder.fit(config, table, "x")
    encoder.save(tmp_path / "vocabulary")
    loaded = FeatureEncoder.load(tmp_path / "vocabulary")
    assert loaded.tables == encoder.tables
    assert loaded.config == encoder.config
    before, after = encoder.encode(table, "x"), loaded.encode(table, "x")
    np.testing.assert_array_equal(before.ids_NC, after.ids_NC)
    np.testing.assert_array_equal(before.dense_NF, after.dense_NF)
    names = sorted(path.name for path in (tmp_path / "vocabulary").iterdir())
    assert names == [
        "000-word.parquet", "002-Word.parquet", "003-real.parquet", "encoder.json"
    ]  # fmt: skip
    json.loads((tmp_path / "vocabulary" / "encoder.json").read_text())
    assert pq.read_table(tmp_path / "vocabulary" / "000-word.parquet").num_rows == 13


def test_load_refuses_what_is_no_encoder(tmp_path):
    with pytest.raises(ValueError, match=r"holds no complete encoder .* mmoe train wrote"):
        FeatureEncoder.load(tmp_path / "nothing")
    fit(configured(WORD), word=["a"]).save(tmp_path)
    (tmp_path / "000-word.parquet").unlink()
    with pytest.raises(ValueError, match="holds no complete encoder"):
        FeatureEncoder.load(tmp_path)


def test_no_rows_and_missing_columns():
    with pytest.raises(ValueError, match=r"train\.csv: there are no training rows"):
        fit(configured(WORD), word=pa.array([], pa.string()))
    encoder = fit(configured(WORD, NUMBER), word=["a"], x=[1])
    message = r"new\.csv: there is no column 'x', which feature 'x' needs; the columns are: word"
    with pytest.raises(ValueError, match=message):
        ids(encoder, word=["a"])


def test_bucket_names_and_hash_counts_are_checked_by_the_config():
    with pytest.raises(ValueError, match=r"the buckets of feature 'x' are called x__bucket"):
        configured(NUMBER | {"buckets": 3}, WORD | {"name": "x__bucket"})
    with pytest.raises(ValueError, match="encoding hash counts no ids"):
        configured(WORD | {"encoding": "hash", "min_count": 3})


ODD_TYPES = [
    pa.array([datetime.datetime(2024, 1, 1), None]),
    pa.array([datetime.date(2024, 1, 1), None]),
    pa.array([datetime.time(1, 2), None]),
    pa.array([decimal.Decimal("1.50"), None]),
    pa.array([b"ab", None]),
    pa.array([b"\xff\xfe", None], pa.binary(2)),
    pa.array([True, None]),
    pa.array([None, None]),
    pa.array(["1", None]).dictionary_encode(),
    pa.array(["1", None], pa.string_view()),
    pa.array([1.5, None], pa.float16()),
    pa.array([2**64 - 1, None], pa.uint64()),
]


@pytest.mark.parametrize("scored", ODD_TYPES, ids=lambda array: str(array.type))
@pytest.mark.parametrize("trained", ODD_TYPES, ids=lambda array: str(array.type))
def test_every_type_of_id_encodes_and_knows_itself(trained, scored):
    encoder = fit(configured(WORD), word=trained)
    first, missing = ids(encoder, word=scored)
    assert missing == 0
    assert 0 <= first < encoder.tables[0].num_rows
    if trained.type == scored.type and trained.null_count == 1:
        assert first == 2


def random_log(rng, rows):
    gaps = rng.random(rows) < 0.1
    return pa.table(
        {
            "user": pa.array(rng.integers(0, 2**62, rows) // 2**58, mask=gaps),
            "zip": [f"{i:05d}" for i in rng.integers(0, 40, rows)],
            "code": pa.array([("7", "x", "07")[i] for i in rng.integers(0, 3, rows)], mask=gaps),
            "real": pa.array(rng.normal(size=rows), mask=gaps),
            "flag": pa.array(rng.random(rows) < 0.5, mask=gaps),
            "tags": ["|".join(map(str, rng.integers(0, 9, n))) for n in rng.integers(0, 4, rows)],
            "rate": pa.array(rng.integers(0, 5, rows) / 4, mask=gaps),
        }
    )


def test_scores_do_not_depend_on_file_kind_chunks_or_types(tmp_path):
    """Whole typed CSV, streamed text CSV and Parquet give the same bits."""
    features = [{"kind": "categorical", "name": n} for n in ("user", "zip", "code", "rate")]
    features += [{"kind": "categorical", "name": "hash", "column": "code", "encoding": "hash"}]
    features += [{"kind": "numeric", "name": n, "buckets": 5} for n in ("real", "flag")]
    config = configured(*features, {"kind": "list", "name": "tags"})
    table = random_log(np.random.default_rng(0), 500)
    pacsv.write_csv(table, tmp_path / "a.csv")
    pq.write_table(table, tmp_path / "a.parquet")
    encoder = FeatureEncoder.fit(config, read_table(tmp_path / "a.csv"), "x")
    columns = required_columns(config, labels=False)
    expected = encoder.encode(read_table(tmp_path / "a.csv"), "x")
    assert (expected.ids_NC == 0).any(axis=0)[[0, 2, 3, 4, 5, 6]].all()
    assert (expected.ids_NC != 1).all()
    for name, chunk in (("a.csv", 7), ("a.csv", 1000), ("a.parquet", 64)):
        parts = [encoder.encode(t, "x") for t in iter_tables(tmp_path / name, columns, chunk)]
        for attribute in ("dense_NF", "ids_NC"):
            got = np.concatenate([getattr(part, attribute) for part in parts])
            np.testing.assert_array_equal(got, getattr(expected, attribute))
        got = np.concatenate([part.lists[0][0] for part in parts])
        np.testing.assert_array_equal(got, expected.lists[0][0])


def test_single_rows_are_encoded_as_in_a_table_whatever_came_before():
    """Cells that came before are not encoded again: equal ones of other types and signs are."""
    config = config_from_dict(
        {
            "features": [
                {"kind": "categorical", "name": "item"},
                {"kind": "numeric", "name": "price", "buckets": 3},
                {"kind": "cross", "name": "both", "columns": ["item", "price"]},
                {"kind": "datetime", "name": "at", "parts": ["hour", "weekday"]},
            ],
            "tasks": [{"name": "click", "label": "click"}],
        }
    )
    items = pa.array(["1", "2", "1", None, "x", "1"])
    prices = pa.array([0.0, -0.0, 1.5, None, float("nan"), 7.0])
    times = pa.array([0, 3_600, 7_200, None, 90_000, 0], pa.timestamp("s"))
    table = pa.table({"item": items, "price": prices, "at": times})
    encoder = FeatureEncoder.fit(config, table, "log")
    whole = encoder.encode(table, "log")
    for _ in range(2):
        for n in range(table.num_rows):
            one = encoder.encode(table.slice(n, 1), "log")
            assert np.array_equal(one.ids_NC[0], whole.ids_NC[n])
            assert one.dense_NF[0].tobytes() == whole.dense_NF[n].tobytes()
    integers = pa.table({"item": pa.array([1]), "price": pa.array([0]), "at": times[:1]})
    assert np.array_equal(encoder.encode(integers, "log").ids_NC[0], whole.ids_NC[0])
    with pytest.raises(ValueError, match="'item'"):
        encoder.encode(table.slice(0, 1).drop_columns(["item"]), "log")
    assert "_known_cells" not in vars(copy.copy(encoder))


def test_a_single_row_may_hold_a_datetime_that_python_has_not():
    config = configured({"kind": "categorical", "name": "at"})
    known = pa.table({"at": pa.array([0, 86_400] * 20, pa.timestamp("s"))})
    encoder = FeatureEncoder.fit(config, known, "log")
    for rows in (2, 1):
        far = pa.table({"at": pa.array([2**43] * rows, pa.timestamp("s"))})
        assert encoder.encode(far, "log").ids_NC[:, 0].tolist() == [1] * rows


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("table_vectors", {"mean": [0.0], "deviation": [1.0]}),
        ("tables", {"encoding": "hash", "kind": "int", "size": 3}),
    ],
)
def test_further_keys_of_an_entry_say_nothing(tmp_path, section, entry):
    read = sections()[section].read
    assert read({**entry, "note": "x"}, tmp_path) == read(entry, tmp_path)

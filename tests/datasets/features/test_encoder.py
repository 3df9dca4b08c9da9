import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.features import Coded
from mmoe.datasets.features.encoder import FeatureEncoder, sections
from mmoe.datasets.features.numeric import NumericCodec
from mmoe.datasets.files.readers import iter_tables, read_table
from mmoe.datasets.rows.projection import required_columns
from mmoe.datasets.values.hashing import hash_text, mix64
from tests.small_configs import click_config


def fit(config, **columns):
    return FeatureEncoder.fit(config, pa.table(columns), "train.csv")


def ids(encoder, position=0, **columns):
    return encoder.encode(pa.table(columns), "new.csv").ids_NC[:, position].tolist()


WORD = {"kind": "categorical", "name": "word"}
NUMBER = {"kind": "numeric", "name": "x"}


def test_vocabulary_is_by_frequency_then_key():
    encoder = fit(click_config(WORD), word=["b", "a", "c", "c", None, "", "a2"])
    assert encoder.ids["word"].keys.to_pylist() == ["c", "a", "a2", "b"]
    assert encoder.ids["word"].counts.tolist() == [2, 1, 1, 1]
    assert ids(encoder, word=["c", "a", "b", "new", "", None]) == [2, 3, 5, 1, 0, 0]
    [table] = encoder.tables
    assert (table.name, table.num_rows, table.dim) == ("word", 6, 16)
    encoder = fit(click_config(WORD | {"min_count": 2}), word=["b", "a", "a"])
    assert ids(encoder, word=["a", "b", "z", None]) == [2, 1, 1, 0]


def test_ids_that_mostly_come_once_share_a_row_where_auto_decides():
    config, often = click_config(WORD | {"min_count": "auto"}), ["often"] * 20
    usual = fit(config, word=[*often, *(f"w{i}" for i in range(20))])
    assert ids(usual, word=["often", "w0", "new"]) == [2, 3, 1]
    rare = fit(config, word=[*often, *(f"w{i}" for i in range(21))])
    assert ids(rare, word=["often", "w0", "new"]) == [2, 1, 1]


@pytest.mark.parametrize(("coded", "message"), [
    (Coded(), "returned 0 of the 1 in its `dense_names`"),
    (Coded(dense=[np.zeros(3)]), "returned a column of 3 rows; expected 2"),
])  # fmt: skip
def test_what_a_codec_returns_has_to_be_what_it_said(monkeypatch, coded, message):
    encoder = fit(click_config(NUMBER), x=[1.0, 3.0])
    monkeypatch.setattr(NumericCodec, "encode", lambda *_: coded)
    with pytest.raises(ValueError, match=f"feature 'x': NumericCodec.encode {message}"):
        encoder.encode(pa.table({"x": [1.0, 2.0]}), "new.csv")


@pytest.mark.parametrize("trained", [
    pa.array([7, 3, 7, -1, None, 2**40]),
    pa.array([7.0, 3.0, 7.0, -1.0, None, 2.0**40]),
    pa.array([7, 3, 7, -1, None, 2**40]).dictionary_encode(),
    pa.array(["7", "3", "7", "-1", None, str(2**40)]),
], ids=["int", "float", "dictionary", "text"])  # fmt: skip
def test_ids_agree_whatever_their_type(trained):
    encoder = fit(click_config(WORD), word=trained)
    known = [str(key) for key in encoder.ids["word"].keys.to_pylist()]
    for scored in (
        pa.array([7, 3, 5, None, 2**40]),
        pa.array([7.0, 3.0, 5.0, None, 2.0**40]),
        pa.array([7.0, 3.0, 5.0, float("nan"), 2.0**40]),
        pa.array(["7", "3", "5", "", str(2**40)]),
        pa.array(["7", "3", "word", None, str(2**40)]),
        pa.array([7, 3, 5, None, 2**40], pa.uint64()),
    ):
        seven, three, unseen, missing, large = ids(encoder, word=scored)
        assert (known[seven - 2], known[three - 2], known[large - 2]) == ("7", "3", str(2**40))
        assert (unseen, missing) == (1, 0)


def test_ids_of_floats_and_booleans():
    encoder = fit(click_config(WORD), word=[0.5, 1.5, 1.5, None])
    assert ids(encoder, word=["1.50", "0.5", "2", "x", ""]) == [2, 3, 1, 1, 0]
    assert ids(encoder, word=[1.5, 0.5, 1.0, float("nan"), None]) == [2, 3, 1, 0, 0]
    for encoding in ("vocabulary", "hash"):
        encoder = fit(click_config(WORD | {"encoding": encoding}), word=[0.0, -0.0, 0.5])
        zero = ids(encoder, word=[0.0])
        for same in ([-0.0], ["-0.0"], ["0"], [0]):
            assert ids(encoder, word=same) == zero
    encoder = fit(click_config(WORD), word=[True, False, True, None])
    for same in ([True, False, None], ["true", "false", ""], [1, 0, None]):
        assert ids(encoder, word=same) == [2, 3, 0]


def test_ids_beyond_31_and_53_and_63_bits():
    large = [2**31 + 1, 2**53 + 1, 2**63 - 1]
    encoder = fit(click_config(WORD), word=large)
    assert ids(encoder, word=large) == [2, 3, 4]
    assert ids(encoder, word=[str(key) for key in large]) == [2, 3, 4]
    assert ids(encoder, word=[str(2**53)]) == [1]
    unsigned = pa.array([2**64 - 1, 5], pa.uint64())
    encoder = fit(click_config(WORD), word=unsigned)
    assert ids(encoder, word=[str(2**64 - 1), "5"]) == ids(encoder, word=unsigned) != [1, 1]


def test_lists_and_ids_that_lost_digits_as_floats_are_refused():
    message = r"train.csv: column 'word' \(of feature 'word'\) holds ids as floating point, and"
    with pytest.raises(ValueError, match=message):
        fit(click_config(WORD), word=[2.0**53 + 2, 1.0])
    encoder = fit(click_config(WORD), word=[2**53 + 1, 1])
    with pytest.raises(ValueError, match="store the ids as integers or text"):
        ids(encoder, word=[2.0**53, float("nan")])
    for read in (
        lambda **words: fit(click_config(WORD), **words),
        lambda **words: ids(encoder, **words),
    ):
        with pytest.raises(ValueError, match="expected ids; make it a list feature"):
            read(word=[[1], [2]])


def test_hashing_is_by_value_and_stable():
    config = click_config(WORD | {"encoding": "hash", "hash_size": 1000})
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
    config = click_config(item, seen, tables=[table])
    encoder = fit(config, item=[1, 2, 3], seen=["2|3", "3", None])
    assert encoder.ids["items"].keys.to_pylist() == [3, 2]
    assert [(t.name, t.num_rows, t.dim) for t in encoder.tables] == [("items", 4, 8)]
    assert [spec.table for spec in (*encoder.categorical, *encoder.lists)] == ["items"] * 2
    assert encoder.lists[0].pooling == "sum"
    encoded = encoder.encode(pa.table({"item": [3, 1], "seen": ["1|2", "3"]}), "x")
    assert encoded.ids_NC.tolist() == [[2], [1]]
    values, offsets = encoded.lists[0]
    assert (values.tolist(), offsets.tolist()) == ([1, 3, 2], [0, 2, 3])


@pytest.mark.parametrize("train", [[[1, 2], [1]], ["1|2", "1"]])
def test_lists_agree_whatever_their_type(train):
    feature = {"kind": "list", "name": "seen", "max_length": 2}
    encoder = fit(click_config(feature), seen=train)
    for column in (
        pa.array([[1, 2, 3], [], None, [2, None], [9]]),
        pa.array([[1, 2, 3], [], None, [2, None], [9]], pa.large_list(pa.int32())),
        pa.array([["1", "2", "3"], [], None, ["2", ""], ["9"]]),
        pa.array(["1|2|3", "", None, " 2 |", "9"]),
        pa.array([[1.0, 2.0, 3.0], [], None, [2.0, None], [9.0]]),
    ):
        [(values, offsets)] = encoder.encode(pa.table({"seen": column}), "x").lists
        assert values.tolist() == [2, 3, 0, 0, 3, 1]
        assert offsets.tolist() == [0, 2, 3, 4, 5, 6]
    [(values, offsets)] = encoder.encode(pa.table({"seen": [1, None, 2]}), "x").lists
    assert (values.tolist(), offsets.tolist()) == ([2, 0, 3], [0, 1, 2, 3]), "lists of one"
    sliced = pa.table({"seen": [[1, 1], [2], [1]]}).slice(1)
    [(values, offsets)] = encoder.encode(sliced, "x").lists
    assert (values.tolist(), offsets.tolist()) == ([3, 2], [0, 1, 2])


def test_numeric_formula():
    encoder = fit(click_config(NUMBER | {"log": True}), x=[0.0, -3.0, 8.0, None])
    logs = np.sign([0, -3, 8]) * np.log1p([0, 3, 8])
    encoded = encoder.encode(pa.table({"x": [5.0, None, -1.0]}), "x").dense_NF[:, 0]
    expected = (np.array([np.log1p(5), np.nan, -np.log1p(1)]) - logs.mean()) / logs.std()
    np.testing.assert_allclose(encoded, np.nan_to_num(expected), rtol=1e-6)
    assert encoded.dtype == np.float32
    raw = fit(click_config(NUMBER | {"standardise": False}), x=[10.0, 20.0])
    assert raw.encode(pa.table({"x": [5, None]}), "x").dense_NF.tolist() == [[5.0], [0.0]]


def test_constant_empty_and_enormous_columns_stay_finite():
    for values in ([5.0] * 4, [0.1] * 3, [None, None], [float("nan")] * 2, [1e300]):
        column = pa.array(values, pa.float64())
        encoder = fit(click_config(NUMBER | {"buckets": 4}), x=column)
        assert not encoder.encode(pa.table({"x": column}), "x").dense_NF.any()
        assert encoder.tables[0].num_rows == 3
    for train in ([1.0, 2.0], [1e308, -1e308, 0.0]):
        encoder = fit(click_config(NUMBER), x=train)
        assert np.isfinite(encoder.encode(pa.table({"x": [1e308, -1e308]}), "x").dense_NF).all()


def test_few_values_get_a_bucket_each_and_the_mass_at_zero_its_own():
    encoder = fit(click_config(NUMBER | {"buckets": 10}), x=[0, 1, 2, 2, 5])
    assert ids(encoder, x=[0, 1, 2, 5, -1, 100, None]) == [2, 3, 4, 5, 2, 5, 0]
    spiky = fit(click_config(NUMBER | {"buckets": 4}), x=[0.0] * 90 + list(np.arange(1.0, 11.0)))
    zero, one = ids(spiky, x=[0.0, 1.0])
    assert (zero, one) == (2, 3)


def test_a_twin_of_buckets_has_its_own_table_and_order_follows_the_config():
    config = click_config(
        WORD,
        NUMBER | {"buckets": 3, "dim": 4},
        {"kind": "list", "name": "tags", "pooling": "mean"},
        {"kind": "categorical", "name": "city", "dim": 8, "column": "a.b `名前"},
        {"kind": "numeric", "name": "y"},
    )
    columns = {"word": ["a"], "x": [1.0], "tags": ["t"], "a.b `名前": ["c"], "y": [2.0]}
    encoder = fit(config, **columns)
    assert encoder.encode(pa.table(columns), "x").ids_NC.tolist() == [[2, 2, 2]]
    assert encoder.dense_names == ["x", "y"]
    assert [spec.name for spec in encoder.categorical] == ["word", "x__bucket", "city"]
    assert [spec.name for spec in encoder.lists] == ["tags"]
    found = {table.name: table.dim for table in encoder.tables}
    assert found == {"word": 16, "x__bucket": 4, "tags": 16, "city": 8}


def test_one_row_no_row_and_no_features_of_a_kind():
    encoder = fit(click_config(WORD), word=["a", "b"])
    encoded = encoder.encode(pa.table({"word": ["b"]}), "x")
    assert (encoded.dense_NF.shape, encoded.ids_NC.shape) == ((1, 0), (1, 1))
    only = fit(click_config(NUMBER), x=[1.0])
    assert only.encode(pa.table({"x": [1.0]}), "x").ids_NC.shape == (1, 0)
    assert len(encoder.encode(pa.table({"word": pa.array([], pa.string())}), "x")) == 0
    with pytest.raises(ValueError, match=r"train\.csv: there are no training rows"):
        fit(click_config(WORD), word=pa.array([], pa.string()))
    message = r"new\.csv: there is no column 'word', which feature 'word' needs; the columns are: x"
    with pytest.raises(ValueError, match=message):
        ids(encoder, x=["a"])


def test_what_is_stored_is_read_and_other_folders_are_refused(tmp_path):
    config = click_config(WORD, {**WORD, "name": "Word", "column": "n"}, {**WORD, "name": "real"})
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "word": [f"é{i % 13}" for i in range(100)],
            "n": rng.integers(0, 2**62, 100),
            "real": rng.normal(size=100),
        }
    )
    encoder = FeatureEncoder.fit(config, table, "x")
    encoder.save(tmp_path / "vocabulary")
    loaded = FeatureEncoder.load(tmp_path / "vocabulary")
    assert (loaded.tables, loaded.config) == (encoder.tables, encoder.config)
    before, after = encoder.encode(table, "x"), loaded.encode(table, "x")
    np.testing.assert_array_equal(before.ids_NC, after.ids_NC)
    names = sorted(path.name for path in (tmp_path / "vocabulary").iterdir())
    assert names == ["000-word.parquet", "001-Word.parquet", "002-real.parquet", "encoder.json"]
    json.loads((tmp_path / "vocabulary" / "encoder.json").read_text())
    (tmp_path / "vocabulary" / "000-word.parquet").unlink()
    for folder in ("vocabulary", "nothing"):
        with pytest.raises(ValueError, match=r"holds no complete encoder .* mmoe train wrote"):
            FeatureEncoder.load(tmp_path / folder)


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


@pytest.mark.parametrize("trained", ODD_TYPES, ids=lambda array: str(array.type))
def test_every_type_of_id_encodes_and_knows_itself(trained):
    encoder = fit(click_config(WORD), word=trained)
    for scored in ODD_TYPES:
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
    config = click_config(*features, {"kind": "list", "name": "tags"})
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


def test_a_single_row_may_hold_a_datetime_that_python_has_not():
    config = click_config({"kind": "categorical", "name": "at"})
    known = pa.table({"at": pa.array([0, 86_400] * 20, pa.timestamp("s"))})
    encoder = FeatureEncoder.fit(config, known, "log")
    for rows in (2, 1):
        far = pa.table({"at": pa.array([2**43] * rows, pa.timestamp("s"))})
        assert encoder.encode(far, "log").ids_NC[:, 0].tolist() == [1] * rows


def test_further_keys_of_an_entry_say_nothing(tmp_path):
    for section, entry in (
        ("table_vectors", {"mean": [0.0], "deviation": [1.0]}),
        ("tables", {"encoding": "hash", "kind": "int", "size": 3}),
    ):
        read = sections()[section].read
        assert read({**entry, "note": "x"}, tmp_path) == read(entry, tmp_path)

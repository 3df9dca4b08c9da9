import datetime
import decimal
import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config.tables import VocabularyEncoding
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.id_map import CountFit, Counts, Vocabulary
from mmoe.datasets.values import keys
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.hashing import hash_text, mix64
from mmoe.datasets.values.keys import KeyIndex, key_kind, to_keys
from tests.small_configs import click_config

DAY = datetime.datetime(2025, 1, 1)
MOMENTS = [DAY + datetime.timedelta(seconds=s) for s in (0, 32, 60, 32.5, 3600.000001)]


def encoder_of(encoding, column):
    config = click_config({"kind": "categorical", "name": "id", "encoding": encoding})
    return FeatureEncoder.fit(config, pa.table({"id": column}), "train")


def ids(encoder, column):
    return encoder.encode(pa.table({"id": column}), "new").ids_NC[:, 0].tolist()


def assert_all_agree(encoding, forms):
    for trained in forms:
        encoder = encoder_of(encoding, trained)
        expected = ids(encoder, trained)
        assert min(expected) >= 2
        assert len(set(expected)) == len(expected)
        for scored in forms:
            assert ids(encoder, scored) == expected, (trained.type, scored.type, scored[0])


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
def test_one_datetime_is_one_id_in_every_form(encoding):
    forms = [pa.array(MOMENTS, pa.timestamp(unit)) for unit in ("us", "ns")]
    texts = [
        [str(m) for m in MOMENTS],
        [m.isoformat() for m in MOMENTS],
        [f"{m:%Y-%m-%dT%H:%M:%S.%f}" for m in MOMENTS],
        [f"{m:%Y-%m-%d %H:%M:%S.%f}000" for m in MOMENTS],
        [str(m).removesuffix(" 00:00:00") for m in MOMENTS],
        ["2025-01-01 00:00", *map(str, MOMENTS[1:2]), "2025-01-01T00:01", *map(str, MOMENTS[3:])],
    ]
    assert_all_agree(encoding, forms + [pa.array(text) for text in texts])


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
def test_datetimes_with_a_zone(encoding):
    forms = [pa.array(MOMENTS, pa.timestamp("us", zone)) for zone in ("UTC", "Europe/Berlin")]
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    aware = [m.replace(tzinfo=datetime.UTC) for m in MOMENTS]
    forms += [
        pa.array([str(m) for m in aware]),
        pa.array([m.isoformat().replace("+00:00", "Z") for m in aware]),
        pa.array([str(m.astimezone(berlin)) for m in aware]),
        pa.array([f"{m.astimezone(berlin):%Y-%m-%dT%H:%M:%S.%f%z}" for m in aware]),
    ]
    assert_all_agree(encoding, forms)
    naive = encoder_of("vocabulary", pa.array(MOMENTS, pa.timestamp("us")))
    assert ids(naive, forms[0]) == [1] * len(MOMENTS)  # which instant it was is not known


def test_text_that_is_no_datetime_stays_and_rows_do_not_depend_on_others():
    words = ["2025-02-30 00:00:00+01:00", "2025-01-01 01:00:32+01:00", "2025-01-01 00:00:32 sharp",
             "x" * 40, "", None, "2025-1-1 00:00:32"]  # fmt: skip
    column = pa.chunked_array([words[:3], words[3:]], pa.large_string())
    keys = to_keys(column, "text", "x").to_pylist()
    assert keys == [words[0], "2025-01-01 00:00:32Z", *words[2:4], None, None, words[6]]
    for word, key in zip(words, keys, strict=True):
        alone = pa.chunked_array([[word]], pa.large_string())
        assert to_keys(alone, "text", "x").to_pylist() == [key]


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
@pytest.mark.parametrize("kind", [pa.decimal128(38, 18), pa.decimal256(50, 8), pa.decimal64(9, 2)])
def test_whole_decimals_are_integers_and_others_floats(encoding, kind):
    numbers = [1, 0, -20, 100]
    decimals = pa.array([decimal.Decimal(n) for n in numbers], kind)
    others = [pa.array(numbers), pa.array(numbers, pa.float64()), pa.array(map(str, numbers))]
    assert_all_agree(encoding, [decimals, *others])
    with_word = encoder_of(encoding, pa.array([*map(str, numbers), "x"]))
    assert ids(with_word, decimals) == ids(with_word, others[0]) == ids(with_word, others[2])
    texts = ["1.5", "0.1", "-0.25", "3", "1234567.89"]
    decimals = pa.array([decimal.Decimal(t) for t in texts], kind)
    assert_all_agree(encoding, [decimals, pa.array(np.array(texts, float))])
    encoder = encoder_of(encoding, decimals)
    padded = pa.array(["1.50", "0.10", "-.25", "3.00", "1234567.890"])
    assert ids(encoder, padded) == ids(encoder, decimals)


def test_decimals_that_float64_cannot_hold_apart_stay_apart():
    values = [decimal.Decimal(f"0.{'1' * 17}{n}") for n in (1, 2)]
    column = pa.chunked_array([pa.array(values, pa.decimal128(20, 18))])
    assert key_kind(column, "x") == "text"
    assert ids(encoder_of("vocabulary", column), column) == [2, 3]
    large = [decimal.Decimal(10) ** 25, decimal.Decimal(10) ** 25 + 1]
    column = pa.chunked_array([pa.array(large, pa.decimal128(38, 2))])
    assert ids(encoder_of("vocabulary", column), column) == [2, 3]
    assert ids(encoder_of("vocabulary", column), pa.array([str(n) for n in large])) == [2, 3]


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


@pytest.mark.parametrize("case", [*KEYS, "crowded"])
def test_small_calls_share_one_table_and_few_keys_need_none(case, made, monkeypatch):
    kind = "text" if case == "crowded" else case
    if case == "crowded":  # texts that share a hash
        crowded = keys.hash_text
        monkeypatch.setattr(keys, "hash_text", lambda keys: crowded(keys) % np.uint64(41))
    for few, tables in ((keys._FEW_KEYS, 0), (0, 1)):
        monkeypatch.setattr(keys, "_FEW_KEYS", few)
        index = KeyIndex(KEYS[kind])
        for values in [*calls_on(kind), pa.chunked_array([], KEYS[kind].type)]:
            expected = pc.fill_null(pc.index_in(values, KEYS[kind], skip_nulls=True), -1)
            assert index.indices(values).tolist() == expected.to_pylist()
        assert len(made) == tables
    whole = pa.chunked_array([KEYS[kind], KEYS[kind]])
    assert index.indices(whole).tolist() == [*range(len(KEYS[kind]))] * 2


def _vocabulary(column, min_count=1):
    fit = CountFit("x")
    fit.add(column)
    return Vocabulary.of([fit.finish()], VocabularyEncoding(min_count=min_count))


def test_a_vocabulary_keeps_its_table_for_all_calls_and_threads(made, many):
    numbers = pa.chunked_array([NUMBERS])
    vocabulary = _vocabulary(numbers)
    calls = [pa.chunked_array([NUMBERS[n : n + 5]]) for n in range(0, 500, 5)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda call: vocabulary.lookup(call, "x"), calls))
    assert len(made) == 1
    assert np.concatenate(found).tolist() == vocabulary.lookup(numbers, "x").tolist()
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again.lookup(calls[3], "x").tolist() == found[3].tolist()
    assert len(made) == 2


def test_counts_of_one_column_are_added_up():
    """Over chunks, and over values that are one key."""
    counts = Counts(
        pa.chunked_array([["1", "1.0"], ["2", "1"]]), pa.chunked_array([[2, 3, 4, 5]]), "x"
    )
    other = Counts(pa.chunked_array([[1, 7]]), pa.chunked_array([[1, 1]]), "y")
    vocabulary = Vocabulary.of([other, counts], VocabularyEncoding())
    assert vocabulary.kind == "text"
    assert vocabulary.keys.to_pylist() == ["1", "2", "1.0", "7"]
    assert vocabulary.counts.tolist() == [8, 4, 3, 1]
    frame = pd.DataFrame({"n": np.repeat(NUMBERS, 3)})
    numbers = _vocabulary(pa.chunked_array([frame["n"][:600], frame["n"][600:]]), min_count=3)
    assert numbers.keys.to_pylist() == sorted(NUMBERS.tolist())
    assert set(numbers.counts) == {3}


def test_hashes_are_the_same_for_ever():
    # First outputs of SplitMix64 seeded with 0, 1 and 1234567 (Vigna's reference C code)
    expected = [16294208416658607535, 10451216379200822465, 6457827717110365317]
    assert mix64(np.array([0, 1, 1234567], np.uint64)).tolist() == expected
    assert mix64(np.array([-1])) == mix64(np.array([2**64 - 1], np.uint64))
    assert mix64(np.array([5]), 1) != mix64(np.array([5]), 2)
    words = ["", "a", "b", "ab", "ba", "item_42", "日本語", "x" * 1000]
    digest = hashlib.sha256(hash_text(pa.array(words)).astype("<u8").tobytes()).hexdigest()
    assert digest == "1c941c871ce26b4a7e16b888e1a1194fd297f522738be48e48734eb6270ca8bd"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=20))
def test_text_hash_depends_on_the_text_alone(words):
    hashes = hash_text(pa.array(words, pa.string()))
    alone = [int(hash_text(pa.array([word], pa.string()))[0]) for word in words]
    assert hashes.tolist() == alone
    shifted = pa.array(["zz", *words], pa.large_string()).slice(1)
    assert hash_text(shifted).tolist() == alone
    distinct = {word or "" for word in words}
    assert len(set(alone)) == len(distinct)


def test_hashes_spread_evenly():
    words = pa.array([f"user_{i}" for i in range(64_000)])
    for hashes in (mix64(np.arange(64_000)), hash_text(words)):
        counts = np.bincount((hashes % np.uint64(64)).astype(int), minlength=64)
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert 25 < chi_square < 125  # 63 degrees of freedom, far beyond both 0.01 % tails

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.values.keys import key_kind, to_keys

DAY = datetime.datetime(2025, 1, 1)
MOMENTS = [DAY + datetime.timedelta(seconds=s) for s in (0, 32, 60, 32.5, 3600.000001)]


def encoder_of(encoding, column):
    feature = {"kind": "categorical", "name": "id", "encoding": encoding}
    task = {"name": "click", "label": "click"}
    config = config_from_dict({"features": [feature], "tasks": [task]})
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
@pytest.mark.parametrize(
    "kind", [pa.decimal128(9, 2), pa.decimal128(38, 18), pa.decimal256(50, 8), pa.decimal64(9, 2)]
)
def test_whole_decimals_are_integers(encoding, kind):
    numbers = [1, 0, -20, 100]
    decimals = pa.array([decimal.Decimal(n) for n in numbers], kind)
    others = [pa.array(numbers), pa.array(numbers, pa.float64()), pa.array(map(str, numbers))]
    assert_all_agree(encoding, [decimals, *others])
    with_word = encoder_of(encoding, pa.array([*map(str, numbers), "x"]))
    assert ids(with_word, decimals) == ids(with_word, others[0]) == ids(with_word, others[2])


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
@pytest.mark.parametrize("kind", [pa.decimal128(9, 2), pa.decimal128(38, 18), pa.decimal64(9, 2)])
def test_decimals_with_fractions_are_floats(encoding, kind):
    texts = ["1.5", "0.1", "-0.25", "3", "1234567.89"]
    decimals = pa.array([decimal.Decimal(t) for t in texts], kind)
    assert_all_agree(encoding, [decimals, pa.array(np.array(texts, float))])
    encoder = encoder_of(encoding, decimals)
    assert ids(encoder, pa.array(["1.50", "0.10", "-.25", "3.00", "1234567.890"])) == ids(
        encoder, decimals
    )


def test_decimals_that_float64_cannot_hold_apart_stay_apart():
    values = [decimal.Decimal(f"0.{'1' * 17}{n}") for n in (1, 2)]
    column = pa.chunked_array([pa.array(values, pa.decimal128(20, 18))])
    assert key_kind(column, "x") == "text"
    assert ids(encoder_of("vocabulary", column), column) == [2, 3]
    large = [decimal.Decimal(10) ** 25, decimal.Decimal(10) ** 25 + 1]
    column = pa.chunked_array([pa.array(large, pa.decimal128(38, 2))])
    assert ids(encoder_of("vocabulary", column), column) == [2, 3]
    assert ids(encoder_of("vocabulary", column), pa.array([str(n) for n in large])) == [2, 3]

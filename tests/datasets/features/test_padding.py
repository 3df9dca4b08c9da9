"""Padded lists: the same ids, weights and times as ragged ones, however the padding is said."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import ListFeature
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.list import list_ids
from tests.small_configs import click_config

ROWS, LONGEST = 60, 6
FEATURES = {
    "list": {"kind": "list", "name": "h", "column": "items"},
    "cut": {"kind": "list", "name": "h", "column": "items", "max_length": 2, "keep": "last"},
    "weights": {"kind": "list", "name": "h", "column": "items", "weights": "scores"},
    "sum": {"kind": "list", "name": "h", "column": "items", "weights": "scores", "pooling": "sum"},
    "sequence": {"kind": "sequence", "name": "h", "columns": ["items", "kinds"], "times": "at"},
    "target": {
        "kind": "sequence", "name": "h", "columns": ["items"], "target": ["item"],
        "times": "at", "now": "now", "max_length": 2, "encoder": "din",
    },
}  # fmt: skip
SIDES = ("left", "right")


def _ragged():
    """0 is padding here, and an item inside lists, though none at an end."""
    rng = np.random.default_rng(3)
    items = [rng.integers(0, 9, n).tolist() for n in rng.integers(0, LONGEST + 1, ROWS)]
    items = [[one or 9 if n in (0, len(row) - 1) else one for n, one in enumerate(row)]
             for row in items]  # fmt: skip
    assert any(0 in row for row in items) and any(not row for row in items)
    return {
        "items": items,
        "kinds": [[f"k{n % 3}" for n in row] for row in items],
        "scores": [rng.random(len(row)).round(3).tolist() for row in items],
        "at": [sorted(rng.integers(1, 10**6, len(row)).tolist()) for row in items],
    }


def _padded(rows, side, filler):
    fill = [[filler] * (LONGEST - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    return [row + pad if side == "right" else pad + row for row, pad in pairs]


def _table(lists, write=lambda rows: rows):
    written = {name: write(rows) for name, rows in lists.items()}
    row = {"item": np.arange(ROWS) % 10, "now": np.full(ROWS, 10**6), "click": np.arange(ROWS) % 2}
    return pa.table(row | written)


def _both(lists, side):
    """The ragged log, and the padded one with a length and a mask."""
    fillers = {"items": 0, "kinds": "", "scores": -1.0, "at": 0}
    padded = {name: _padded(rows, side, fillers[name]) for name, rows in lists.items()}
    padded["mask"] = _padded([[1] * len(row) for row in lists["items"]], side, 0)
    return padded, [len(row) for row in lists["items"]]


def _encoded(feature, table, **keys):
    config = click_config({"kind": "categorical", "name": "item"}, {**feature, **keys})
    encoder = FeatureEncoder.fit(config, table, "log")
    rows = encoder.encode(table, "log")
    weights = [one for one in rows.list_weights if one is not None]
    parts = [rows.ids_NC, *(part for both in rows.lists for part in both), *weights]
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("said", ["value", "either side", "several", "length", "mask"])
@pytest.mark.parametrize("side", SIDES)
def test_padded_lists_are_encoded_as_ragged_ones(side, said):
    ragged = _ragged()
    padded, lengths = _both(ragged, side)
    keys = {
        "value": {"padding": 0, "padding_side": side},
        "either side": {"padding": 0},
        "several": {"padding": ["<pad>", 0], "padding_side": side},
        "length": {"length": "length", "padding_side": side},
        "mask": {"mask": "mask"},
    }[said]
    table = _table(padded).append_column("length", [lengths])
    for feature in FEATURES.values():
        assert _encoded(feature, table, **keys) == _encoded(feature, _table(ragged)), feature


@pytest.mark.parametrize("filler", [0, "", "<pad>"])
@pytest.mark.parametrize("form", ["text", "json", "lists"])
def test_in_text_too(form, filler):
    ragged = {name: [list(map(str, row)) for row in rows] for name, rows in _ragged().items()}
    # A blank cell would be one missing event where all lists are text
    ragged = {name: [row or ["7"] for row in rows] for name, rows in ragged.items()}
    padded = {name: _padded(rows, "right", str(filler)) for name, rows in ragged.items()}
    write = {
        "text": lambda rows: ["|".join(map(str, row)) for row in rows],
        "json": lambda rows: [json.dumps(row) for row in rows],
        "lists": lambda rows: rows,
    }[form]
    keys = {"format": "json"} if form == "json" else {}
    for kind in ("list", "weights", "sequence"):
        got = _encoded(FEATURES[kind], _table(padded, write), padding=filler, **keys)
        assert got == _encoded(FEATURES[kind], _table(ragged, write), **keys)


def test_of_every_type_of_list():
    rows = _ragged()["items"]
    for write in (
        lambda rows: list(np.array(rows, np.int32)),
        lambda rows: list(np.array(rows, np.float64)),
        lambda rows: pa.array(rows, pa.list_(pa.int64(), LONGEST)),
        lambda rows: pa.array(rows, pa.large_list(pa.decimal128(5, 0))),
        lambda rows: pa.array(rows, pa.list_view(pa.int16())),
        lambda rows: pa.array(rows, pa.list_(pa.dictionary(pa.int8(), pa.int64()))),
    ):
        for filler in (0, -1):
            feature = ListFeature(name="items", padding=filler)
            table = pa.table({"items": write(_padded(rows, "right", filler))})
            got = list_ids(table, feature, "log")
            assert [int(one) for one in got.values.to_pylist()] == [
                one for row in rows for one in row
            ]
            assert np.diff(got.offsets).tolist() == list(map(len, rows))


def test_numbers_in_text_are_padding_as_they_are_written():
    feature = ListFeature(name="items", padding=[0, "-"])
    table = pa.table({"items": ["5|0|7|0|0.0", "00|0", "0|0", "8|-|-", None]})
    got = list_ids(table, feature, "log")
    assert got.values.to_pylist() == ["5", "0", "7", "00", "8"]
    assert got.offsets.tolist() == [0, 3, 4, 4, 5, 5]


def test_padding_behind_a_weight_separator():
    feature = ListFeature(name="items", padding=0, weight_separator=":", pooling="sum")
    for items in (["a:1|b:2|0:0|0:0", "0:0|0:0"], ["a:1|b:2|0|0", "0"]):
        got = list_ids(pa.table({"items": items}), feature, "log")
        assert got.values.to_pylist() == ["a", "b"] and got.weights is not None
        assert got.weights.tolist() == [1, 2] and got.offsets.tolist() == [0, 2, 2]


def test_numbers_and_nulls_may_be_padding():
    got = list_ids(pa.table({"items": [3, 0, None]}), ListFeature(name="items", padding=0), "log")
    assert got.values.to_pylist() == [3] and got.offsets.tolist() == [0, 1, 1, 1]
    # Of a list feature nulls are dropped anyway; of a sequence a missing item is an event
    rows = [[4, None, 5, None, None], [None, None], [6]]
    table = pa.table({"item": [4, 5, 6], "seen": rows, "click": [0, 1, 0]})
    feature = {"kind": "sequence", "name": "s", "columns": ["seen"]}
    _, _, offsets = _encoded(feature, table, padding="")
    assert offsets == [0, 3, 3, 4]


def test_weights_of_padding_are_not_looked_at():
    feature = ListFeature(name="items", padding=0, weights="w", pooling="sum")
    for weight in (None, float("nan"), -1.0, "x"):
        weights = [[0.5, weight], [0.25, 1]]
        if weight == "x":
            weights = [["0.5", "x"], ["0.25", "1"]]
        table = pa.table({"items": [[7, 0], [8, 9]], "w": weights})
        got = list_ids(table, feature, "log")
        assert got.weights is not None and got.weights.tolist() == [0.5, 0.25, 1]


SAID = {"padding": 0}


@pytest.mark.parametrize(
    ("keys", "columns", "said"),
    [
        (SAID, {"items": [[1, 0], [0, 1, 0]]},
         "row 2: column 'items' (of feature 'items') begins and ends with padding, expected it at "
         "one end; say padding_side: left or right"),
        ({"length": "n"}, {"n": [2, 4]}, "row 2: column 'n' (of feature 'items') is 4, but column "
         "'items' has 3 items"),
        ({"length": "n"}, {"n": [2, None]}, "row 2: column 'n' (of feature 'items') is empty"),
        ({"length": "n"}, {"n": [2, 1.5]}, "is 1.5"),
        ({"length": "n"}, {"n": [2, -1]}, "is -1"),
        ({"length": "n"}, {"n": [2, 1]}, "row 2: column 'items' (of feature 'items') has different "
         "items (5, 6) where 'n' says padding"),
        ({"length": "m"}, {}, "column 'm'"),
        ({"mask": "m"}, {"m": [[1, 1], [1, 0]]}, "row 2: column 'm' (of feature 'items') has 2 "
         "items, but column 'items' has 3"),
        ({"mask": "m"}, {"m": [[1, 1], [1, 0, 1]]}, "row 2: column 'm' (of feature 'items') has "
         "zeros elsewhere than at one end"),
        ({"mask": "m", "padding_side": "left"}, {"m": [[1, 1], [1, 1, 0]]},
         "zeros elsewhere than at the left"),
        ({"mask": "m"}, {"m": [[1, 1], [1, 2, 0]]}, "row 2: column 'm' (of feature 'items') holds "
         "2, expected 1"),
        ({"mask": "m"}, {"m": [[1, 1], [1, 0, 0]]}, "different items (5, 6) where 'm' says"),
    ],
)  # fmt: skip
def test_what_is_refused(keys, columns, said):
    table = pa.table({"items": [[1, 2], [4, 5, 6]]} | columns)
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        list_ids(table, ListFeature(name="items", **keys), "log.csv")
    assert str(refused.value).startswith("log.csv: ")


def test_the_side_is_the_way_out():
    """Of both ends padding is one, and items behind a length may differ where the side is said."""
    table = pa.table({"items": [[0, 1, 0, 0]], "n": [2]})
    for side, expected in (("left", [1, 0, 0]), ("right", [0, 1])):
        feature = ListFeature(name="items", padding=0, padding_side=side)
        assert list_ids(table, feature, "log").values.to_pylist() == expected
    feature = ListFeature(name="items", length="n", padding_side="left")
    assert list_ids(table, feature, "log").values.to_pylist() == [0, 0]


@pytest.mark.parametrize(("keys", "said"), [
    ({"padding": 0, "length": "n"}, "padding and length each say which items are padding"),
    ({"mask": "m", "length": "n"}, "length and mask each say which items are padding"),
    ({"padding_side": "left"}, "padding_side has no effect without padding, length or mask"),
    ({"padding": []}, "padding names no value"),
    ({"padding": float("nan")}, "padding"),
])  # fmt: skip
def test_keys_that_do_not_go_together(keys, said):
    for kind in ("list", "sequence"):
        with pytest.raises(ValueError, match=said):
            _encoded(FEATURES[kind], _table(_ragged()), **keys)


FEATURE = ListFeature(name="tags")


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
@pytest.mark.parametrize("start", [0, 2])
def test_the_values_of_a_list_column_are_not_copied(kind, start):
    lists = pa.array([[n, n + 1] for n in range(100)], kind)
    ragged = list_ids(pa.table({"tags": lists.slice(start)}), FEATURE, "log")
    (values,) = ragged.values.chunks
    own = lists.values.buffers()[1]
    assert own.address <= values.buffers()[1].address < own.address + own.size
    assert values.to_pylist() == [m for n in range(start, 100) for m in (n, n + 1)]
    np.testing.assert_array_equal(ragged.offsets, np.arange(0, 201 - 2 * start, 2))


def test_the_first_or_the_last_items_are_kept_and_nulls_dropped():
    lists = pa.chunked_array([[[1, 2, None, 4, 5], None, [6], []]])
    for keep, expected in (("first", [1, 2, 6]), ("last", [4, 5, 6])):
        feature = ListFeature(name="seen", max_length=2, keep=keep)
        ragged = list_ids(pa.table({"seen": lists}), feature, "log")
        assert ragged.values.to_pylist() == expected
        assert ragged.offsets.tolist() == [0, 2, 2, 3, 3]
    for lists in (
        [[1, None, 2], None, [], [None], [3]],
        [[1.0, float("nan"), 2.0], None, [], [float("nan")], [3.0]],
        ["1||2", None, "", "|", "3"],
        pa.array([[1, 2], None, [None, None], None, [3, None]], pa.list_(pa.int64(), 2)),
    ):
        ragged = list_ids(pa.table({"tags": lists}), FEATURE, "log")
        values = [str(value).removesuffix(".0") for value in ragged.values.to_pylist()]
        assert values == list("123")
        assert ragged.offsets.tolist() == [0, 2, 2, 2, 2, 3]

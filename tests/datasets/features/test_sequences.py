"""Sequences: which events rows have and how long ago they were, against a naive reading."""

import math

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets.features.encoder import FeatureEncoder, codecs_of
from tests.small_configs import click_config

SEQUENCE = {
    "kind": "sequence", "name": "seen", "columns": ["items"], "target": ["item"], "times": "at",
}  # fmt: skip


def _encoded(table, other=None, **keys):
    config = click_config({"kind": "categorical", "name": "item"}, {**SEQUENCE, **keys})
    encoder = FeatureEncoder.fit(config, table, "log")
    found = encoder.encode(table if other is None else other, "log").lists
    return [[part.tolist() for part in np.split(ids, ends[1:-1])] for ids, ends in found]


def _table(at, items=((1, 2), (), (3, 1)), **more):
    columns = {"item": [1, 2, 3], "items": [list(of_row) for of_row in items], "at": at}
    return pa.table({**columns, "click": [0, 1, 0], **more})


@pytest.mark.parametrize(("newest", "max_length", "kind"), [
    ("last", 1, pa.list_),
    ("first", 1, pa.list_view),
    ("last", 3, pa.list_view),
    ("first", 3, pa.large_list),
    ("last", 50, pa.large_list),
    ("first", 50, pa.list_),
])  # fmt: skip
def test_events_and_times_are_those_of_a_naive_reading(newest, max_length, kind):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 7, 60)]
    times = [sorted(rng.integers(0, 10**7, len(row)).tolist()) for row in rows]
    if newest == "first":
        times = [of_row[::-1] for of_row in times]
    table = pa.table(
        {
            "item": np.resize(np.arange(9), 60),
            "items": pa.array(rows, kind(pa.int64())),
            "at": pa.array(times, kind(pa.int64())),
            "now": np.full(60, 10**7),
            "click": np.zeros(60, np.int64),
        }
    )
    keys = {"newest": newest, "max_length": max_length, "now": "now"}
    ids, gaps = _encoded(table, **keys)
    alone = table.slice(0, 9).set_column(1, "items", pa.array([[n] for n in range(9)]))
    alone = alone.set_column(2, "at", pa.array([[1]] * 9))
    id_of = [of_row[0] for of_row in _encoded(table, alone, **keys)[0]]
    assert len(set(id_of)) == 9
    for n, (row, of_row) in enumerate(zip(rows, times, strict=True)):
        turn = -1 if newest == "first" else 1
        oldest_first, at = row[::turn][-max_length:], of_row[::turn][-max_length:]
        assert ids[n] == [id_of[event] for event in oldest_first]
        assert gaps[n] == [2 + math.floor(2 * math.log2(1 + 10**7 - t)) for t in at]


@pytest.mark.parametrize(("at", "wrong"), [
    (["10|20", "", "5|garbage"], r"row 3: column 'at' .* has the time 'garbage', but '10'"),
    (["2024-01-01|2024-01-02", "", "5|7"], r"row 3: .* has the time '5', but '2024-01-01'"),
    (["10|20", "", "2024-01-01|7"], "numbers and datetimes in one column"),
    ([[1.0, 2.0], [], [5.0, math.inf]], r"row 3: column 'at' .* has the time '?inf'?, expected"),
    (["1|2", "", "5|inf"], r"row 3: column 'at' .* has the time '?inf'?, expected a"),
])  # fmt: skip
def test_times_in_two_ways_and_infinite_ones_are_refused(at, wrong):
    with pytest.raises(ValueError, match=wrong):
        _encoded(_table(at))


def test_words_for_missing_are_missing_times():
    _, gaps = _encoded(_table(["nan|20", "", " | 7"]))
    assert gaps == [[0, 2], [], [0, 2]]


def _datetimes(numbers, unit="ms"):
    return pa.array(numbers, pa.timestamp(unit))


@pytest.mark.parametrize(
    ("unit", "per_second", "as_text"),
    [("ms", 10**3, True), ("us", 10**6, False), ("ns", 10**9, True)],
)
def test_a_moment_is_the_same_as_number_and_as_datetime(unit, per_second, as_text):
    moments = 1_699_312_853 * per_second + np.arange(3000) * 7919 * per_second // 1000
    written = [f" {n}" for n in moments] if as_text else [[int(n)] for n in moments]
    table = pa.table({"items": [[1]] * 3000, "at": written, "now": _datetimes(moments, unit)})
    table = table.append_column("item", pa.array(np.zeros(3000, np.int64)))
    _, gaps = _encoded(table, now="now", unit=unit)
    assert gaps == [[2]] * 3000


@pytest.mark.parametrize(("at", "now", "keys"), [
    (_datetimes([1_699_312_853_000]), 1_699_312_854_000, {}),
    ([1_699_312_853], 1_699_312_854_000, {}),
    (_datetimes([1_699_312_853_000]), 1_699_312_854_000_000, {"unit": "ms"}),
    ([1_699_312_853, 1_699_312_854_000], None, {}),
])  # fmt: skip
def test_times_in_two_units_are_refused(at, now, keys):
    column = pa.array([None, at.to_pylist() if isinstance(at, pa.Array) else at])
    if isinstance(at, pa.Array):
        column = column.cast(pa.list_(at.type))
    items = [[], [1] * len(at)]
    table = pa.table({"item": [1, 1], "items": items, "at": column, "now": [0, now]})
    keys = {**keys, **({} if now is None else {"now": "now"})}
    with pytest.raises(ValueError, match=r"row 2: column 'at' .* other units\? .* same unit"):
        _encoded(table, **keys)
    usual = table.set_column(2, "at", pa.array([None, [0] * len(at)]))
    usual = usual.set_column(3, "now", pa.array([0, 2**31]))
    assert _encoded(usual, **{**keys, "unit": None})[1][0] == []


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_one_event_in_text_may_miss_what_it_is(kind):
    """A blank cell beside one item or time is one that is missing, else it is none."""
    items, shops, at = ["", "1", "", " ", "1|2"], ["", "", "7", None, "|"], ["", "5", "5", "5", ""]
    if kind == "numbers":
        items, at = [None, 1, None, None, None], [None, 5, 5, 5, None]
        shops[-1] = ""
    table = pa.table({"item": [1, 2, 1, 2, 1], "shop": ["7"] * 5, "items": items, "shops": shops})
    config = click_config(
        {"kind": "categorical", "name": "item"},
        {"kind": "categorical", "name": "shop"},
        {**SEQUENCE, "columns": ["items", "shops"], "target": ["item", "shop"]},
    )
    four = table[:4].append_column("at", pa.array(at[:4]))
    encoder = FeatureEncoder.fit(config, four, "log")
    ids, shop_ids, gaps = (
        [part.tolist() for part in np.split(found, ends[1:-1])]
        for found, ends in encoder.encode(four, "log").lists
    )
    assert [list(map(bool, row)) for row in ids] == [[], [True], [False], [False]]
    assert [list(map(bool, row)) for row in shop_ids] == [[], [False], [True], [False]]
    assert gaps == [[], [2], [2], [2]]
    if kind == "text":
        with pytest.raises(ValueError, match=r"row 5: column 'at' .* 0 items, but .* has 2"):
            encoder.encode(table.append_column("at", pa.array(at)), "log")


def _meanings(**keys):
    feature = {"kind": "sequence", "name": "seen", "encoder": "gru", **keys}
    ids = [{"kind": "categorical", "name": name} for name in ("item", "shop")]
    return [codec.meaning() for codec in codecs_of(click_config(*ids, feature))]


def test_a_kept_encoder_reads_the_columns_that_it_was_trained_on():
    # Without targets columns name the tables, and their order is that of an event's numbers
    assert _meanings(columns=["a", "b"]) != _meanings(columns=["b", "a"])
    assert _meanings(columns=["a", "b"]) != _meanings(columns=["a", "c"])
    targets = {"target": ["item", "shop"]}
    assert _meanings(columns=["a", "b"], **targets) == _meanings(columns=["a", "c"], **targets)
    with pytest.raises(ValueError, match="unit is that of `times`; add times, or remove unit"):
        _meanings(columns=["a"], unit="ms")


def test_an_empty_list_in_text_has_no_events():
    for empty in ("[]", "[ ]", "()", "", None):
        table = _table(["[10, 20]", empty, "[5, 7]"], [(), (), ()])
        items = pa.array(["[1, 2]", empty, "[3, null]"])
        ids, gaps = _encoded(table.set_column(1, "items", items), format="json")
        assert list(map(len, ids)) == list(map(len, gaps)) == [2, 0, 2]
        assert ids[2][1] == 0

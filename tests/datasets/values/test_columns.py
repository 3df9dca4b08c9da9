import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.datasets.values.columns import to_numbers, to_times
from mmoe.datasets.values.text import settle, to_integers, to_reals


def numbers(values, kind=None):
    return to_numbers(pa.table({"x": pa.array(values, kind)}), "x", "log.csv", "feature 'x'")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None], pa.int8(), [1, np.nan]),
        ([2**63], pa.uint64(), [2.0**63]),
        ([1.5, float("nan"), None], pa.float32(), [1.5, np.nan, np.nan]),
        ([True, False, None], pa.bool_(), [1, 0, np.nan]),
        ([decimal.Decimal("1.25"), None], pa.decimal128(5, 2), [1.25, np.nan]),
        # The floats that text gives; Arrow's cast makes 0.35000000000000003 of the first
        ([decimal.Decimal(x) for x in ("0.35", "0.41", "0.47")], pa.decimal128(20, 2),
         [0.35, 0.41, 0.47]),
        ([None, None], pa.null(), [np.nan, np.nan]),
        (["1", " 2.5 ", "NA", "", None, "1e3", ".5", "+7", "true"], None,
         [1, 2.5, np.nan, np.nan, np.nan, 1000, 0.5, 7, 1]),
        ([datetime.datetime(1970, 1, 2)], pa.timestamp("ms"), [86400]),
        ([datetime.date(1970, 1, 2)], pa.date32(), [86400]),
        ([datetime.timedelta(minutes=1)], pa.duration("s"), [60]),
    ],
)  # fmt: skip
def test_what_counts_as_a_number(values, kind, expected):
    np.testing.assert_array_equal(numbers(values, kind), np.array(expected, float))


def test_a_word_is_named_with_its_row():
    with pytest.raises(ValueError, match="expected a number") as caught:
        numbers(["1", "", "NA", "cheap", "x"])
    assert str(caught.value) == (
        "log.csv: row 4: column 'x' (of feature 'x') is 'cheap', expected a number; mend the cell, "
        "leave it empty, or make the feature categorical"
    )


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), "inf", "-Infinity"])
def test_infinity_is_named_with_its_row(value):
    with pytest.raises(ValueError, match="expected a finite number; clip it") as caught:
        numbers(["1", value] if isinstance(value, str) else [1.0, value])
    assert "log.csv: row 2: column 'x' (of feature 'x') is " in str(caught.value)


def test_a_column_of_another_kind():
    with pytest.raises(ValueError, match=r"column 'x' .* holds list<.*>, expected numbers"):
        numbers([[1], [2]])


def column(values):
    return pa.chunked_array([values], pa.large_string())


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_integers_survive_text(values):
    texts = [None if value is None else str(value) for value in values]
    assert settle(column(texts)).to_pylist() == values
    # One word among them sends every value down the careful road.
    assert to_integers(column([*texts, "word"])).to_pylist() == [*values, None]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_reals_survive_text(values):
    texts = [repr(value) for value in values]
    assert to_reals(column(texts)).to_pylist() == values
    assert to_reals(column([*texts, "word"])).to_pylist() == [*values, None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], pa.int64()),
        (["1", "NA", ""], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["nan", "2"], pa.float64()),
        (["true", "FALSE", ""], pa.bool_()),
        (["true", "1"], pa.large_string()),
        (["007", "8"], pa.large_string()),
        (["0x1F"], pa.large_string()),
        (["-0"], pa.large_string()),
        (["0", "-1"], pa.int64()),
        (["NA", "b"], pa.large_string()),
        (["99999999999999999999"], pa.large_string()),
        (["1"] * 300 + ["x"], pa.large_string()),
    ],
)
def test_settle_keeps_what_it_cannot_give_back(values, kind):
    settled = settle(column(values))
    assert settled.type == kind
    if kind == pa.large_string():
        assert settled.to_pylist() == values


@pytest.mark.parametrize(
    ("times", "row", "word"),
    [
        (["17", "18", "time", "19"], 3, "time"),
        (["never", "2024-01-31"], 1, "never"),
        ([*["2024-01-31"] * 9, "31.1.2024"], 10, "31.1.2024"),
        (["2024-01-31", "17"], 2, "17"),
    ],
)
def test_a_word_among_times_is_named_with_its_row(times, row, word):
    says = rf"^log.csv: row {row}: column 'at' .* cannot be ordered in time \(such as '{word}'\)"
    with pytest.raises(ValueError, match=says):
        to_times(pa.table({"at": times}), "at", "log.csv")

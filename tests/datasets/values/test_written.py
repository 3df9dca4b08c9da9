"""Numbers, datetimes and lists as people write them, read as the feature's keys say."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from mmoe.config import DatetimeFeature, NumericFeature, SplitConfig, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.locations import number_rows
from mmoe.datasets.rows.splits import days_of, split_table
from mmoe.datasets.values.columns import feature_numbers, parse_written, to_times
from mmoe.datasets.values.datetimes import local_datetimes
from mmoe.datasets.values.text import parse_lists

NAN = np.nan


def cells(values):
    return pa.chunked_array([pa.array(values, pa.large_string())])


@pytest.mark.parametrize(
    ("keys", "texts", "expected"),
    [
        ((".", ",", "$"), ["$1,234.00", "-$5", "$-5", "($5.5)", "7 $", "12-", "1234567", "$.5"],
         [1234, -5, -5, -5.5, 7, -12, 1234567, 0.5]),
        ((".", ",", None), ["1,234,567.25", "999", "5.", "1e3"], [1234567.25, 999, 5, 1000]),
        ((",", ".", "€"), ["1.234,50 €", "€ 12", "EUR 12", "0,5"], [1234.5, 12, None, 0.5]),
        ((",", " ", None), ["1 234,50", "1\u00a0234", "12\u202f345,5", "\u22123"],
         [1234.5, 1234, 12345.5, -3]),
        ((".", "'", None), ["1'234.50", "1\u2019234\u2019567"], [1234.5, 1234567]),
        ((".", None, "%"), ["12.3%", "12 %", "%5", "0.5", "-1%"], [12.3, 12, 5, None, -1]),
        # Groups of three, one sign, both parentheses, nothing else
        ((".", ",", "$"), ["1,23", "12,34.5", "0,123", "-(5)", "(5", "--5", "$", "", "5 USD", None],
         [None] * 10),
        ((".", None, None), ["1,234", "1 234", "0x1F", "inf"], [None] * 4),
    ],
)  # fmt: skip
def test_numbers_in_text(keys, texts, expected):
    assert parse_written(cells(texts), *keys).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.234,5", " ? ", "-999", "", "NA", "-999,0"], [1234.5, NAN, NAN, NAN, NAN, NAN]),
        ([1.5, -999, None], [1.5, NAN, NAN]),  # numbers are what they are
        (pa.array([-999, 4]), [NAN, 4]),
    ],
)
def test_missing_values(values, expected):
    feature = NumericFeature(name="x", decimal=",", thousands=".", missing_values=[-999, "?"])
    np.testing.assert_array_equal(feature_numbers(pa.table({"x": values}), feature, "l"), expected)


def test_words_among_plain_numbers_are_missing_where_they_are_named():
    table = number_rows(pa.table({"x": ["1", "unknown", "12,5"]}), [("a.csv", 2), ("b.csv", 1)])
    feature = NumericFeature(name="x", missing_values=["unknown"])
    message = r"b\.csv: row 1: column 'x' \(of feature 'x'\) is '12,5', expected a number; mend"
    with pytest.raises(ValueError, match=message):
        feature_numbers(table, feature, "log")
    assert feature_numbers(table.slice(0, 2), feature, "log").tolist()[0] == 1


def test_what_is_not_written_so_is_refused_by_row():
    table = number_rows(pa.table({"p": ["€ 1.000", "free"]}), [("a.csv", 2)])
    feature = NumericFeature(name="price", column="p", decimal=",", thousands=".", unit="€")
    message = (
        r"a\.csv: row 2: column 'p' \(of feature 'price'\) is 'free', expected a number such as "
        r"'1\.234,5 €', as the feature says; mend the cell, leave it empty, name it in missing_val"
    )
    with pytest.raises(ValueError, match=message):
        feature_numbers(table, feature, "log")


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"decimal": ",", "thousands": ","}, "decimal and thousands are both ','"),
        ({"unit": "5"}, "expected what is no number"),
        ({"thousands": "x"}, "Input should be"),
    ],
)
def test_marks_that_say_nothing(keys, complaint):
    with pytest.raises(ValidationError, match=complaint):
        NumericFeature(name="x", **keys)


@pytest.mark.parametrize(
    ("cell", "items"),
    [
        ('["a", "b c"]', ["a", "b c"]),
        ("['a','b c',]", ["a", "b c"]),
        ('["a, b", "c\\"d", null]', ["a, b", 'c"d', None]),
        ("""['it', "isn't"]""", ["it", "isn't"]),
        ("[1, 2.5, None]", ["1", "2.5", None]),
        ("[1 2\n 3]", ["1", "2", "3"]),
        ("['a' 'b c']", ["a", "b c"]),
        ("[Action, New York]", ["Action", "New York"]),
        ("(1, 2)", ["1", "2"]),
        ("{'a', 'b'}", ["a", "b"]),
        (" [true] ", ["true"]),
        ("[]", []),
    ],
)
def test_lists_in_brackets(cell, items):
    lists, wrong = parse_lists(cells([cell, None, "NULL"]))
    assert lists.to_pylist() == [items, None, None]
    assert wrong.to_pylist() == [False] * 3


@pytest.mark.parametrize("cell", ["a|b", "[1, [2]]", '{"a": 1}', '["a"', "[1}2]", "['a' b]", "7"])
def test_what_is_no_list_in_brackets(cell):
    assert parse_lists(cells([cell]))[1].to_pylist() == [True]


def test_lists_in_brackets_are_encoded_and_refused_by_row():
    config = config_from_dict(
        {
            "features": [{"kind": "list", "name": "tags", "format": "json", "max_length": 2}],
            "tasks": [{"name": "click", "label": "click"}],
        }
    )
    encoder = FeatureEncoder.fit(config, pa.table({"tags": ['["a", "b"]', "['b']"]}), "log")
    rows = pa.table({"tags": ["['x', 'b', 'b', 'a']", "", "[]"]})
    [(ids_V, offsets)] = encoder.encode(rows, "new").lists
    assert (ids_V.tolist(), offsets.tolist()) == ([1, 2, 0, 0], [0, 2, 3, 4])
    arrow = pa.table({"tags": [["x", "b"], None, []]})  # as good as text
    assert encoder.encode(arrow, "new").lists[0][0].tolist() == [1, 2, 0, 0]
    message = r"new: row 2: column 'tags' \(of feature 'tags'\) is 'a\|b', expected a list of plain"
    with pytest.raises(ValueError, match=message):
        encoder.encode(pa.table({"tags": ["[1]", "a|b"]}), "new")


def test_weights_may_be_lists_in_text_as_well():
    feature = {"kind": "list", "name": "tags", "weights": "w", "format": "json", "pooling": "sum"}
    tasks = [{"name": "click", "label": "click"}]
    config = config_from_dict({"features": [feature], "tasks": tasks})
    table = pa.table({"tags": ['["a", "b"]', "[]"], "w": ["[0.5, 2]", "[]"]})
    encoder = FeatureEncoder.fit(config, table, "log")
    assert encoder.encode(table, "log").list_weights[0].tolist() == [0.5, 2, 1]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%d/%m/%Y", "24/11/2023"),
        ("%d/%m/%Y", " 24/11/2023 "),
        ("%m/%d/%Y %I:%M %p", "11/24/2023 12:00 AM"),
        ("%d.%m.%Y %H:%M", "24.11.2023 00:00"),
        ("%d %b %Y", "24 Nov 2023"),
        ("%b %d, %Y", "Nov 24, 2023"),
        ("%Y%m%d", 20231124),
        ("%Y%m%d", 20231124.0),
        ("%d/%b/%Y:%H:%M:%S %z", "24/Nov/2023:01:00:00 +0100"),
        ("%d/%m/%Y", dt.date(2023, 11, 24)),  # says itself what it is
    ],
)
def test_datetimes_of_a_format(form, text):
    feature = DatetimeFeature(name="at", parts=["weekday"], format=form, missing_values=["-"])
    words = [text, "-", ""] if isinstance(text, str) else [text, None, None]
    local = local_datetimes(pa.table({"at": words}), feature, "log").to_pylist()
    assert local == [dt.datetime(2023, 11, 24), None, None]
    split = to_times(pa.table({"at": [text]}), "at", "log", form)
    assert split.tolist() == [int(dt.datetime(2023, 11, 24, tzinfo=dt.UTC).timestamp() * 1e6)]
    assert days_of(pa.table({"at": [text]}), "at", "log", form)[1] is True


@pytest.mark.parametrize("text", ["31/02/2023", "2023-11-24", "24/11/2023 10:00", "24/11/23"])
def test_another_datetime_is_refused_by_row(text):
    table = number_rows(pa.table({"at": ["24/11/2023", text]}), [("a.csv", 2)])
    feature = DatetimeFeature(name="at", parts=["weekday"], format="%d/%m/%Y")
    message = rf"a\.csv: row 2: column 'at' .*is '{text}', expected a datetime such as '31/01/2024'"
    with pytest.raises(ValueError, match=message):
        local_datetimes(table, feature, "log")
    message = rf"a\.csv: row 2: column 'at' .*is '{text}', which is no datetime of the format '%d/"
    with pytest.raises(ValueError, match=message):
        to_times(table, "at", "log", "%d/%m/%Y")


@pytest.mark.parametrize(
    ("form", "complaint"),
    [("%d/%m", "leaves year, month or day open"), ("%c", "holds %c"), ("%Y-%m-%d%", "holds %,")],
)
def test_formats_that_say_no_day(form, complaint):
    with pytest.raises(ValidationError, match=complaint):
        DatetimeFeature(name="at", parts=["hour"], format=form)
    with pytest.raises(ValidationError, match=complaint):
        SplitConfig(by="time", column="at", format=form)


def test_days_have_no_hour_and_one_way_is_enough():
    feature = DatetimeFeature(name="at", parts=["hour"], format="%d/%m/%Y")
    with pytest.raises(ValueError, match="has the format '%d/%m/%Y', which has no time of day"):
        local_datetimes(pa.table({"at": ["24/11/2023"]}), feature, "log")
    with pytest.raises(ValidationError, match=r"unit .* and format .* remove one of them"):
        DatetimeFeature(name="at", parts=["day"], format="%d/%m/%Y", unit="s")
    with pytest.raises(ValidationError, match="split by random takes no `format`; remove it"):
        SplitConfig(format="%d/%m/%Y")


@pytest.mark.parametrize("by", ["time", "day"])
def test_splits_by_written_days(by):
    days = [f"{1 + day % 10:02d}/{1 + day // 10:02d}/2023" for day in range(30)]
    order = np.random.default_rng(0).permutation(30)
    table = pa.table({"at": [days[n] for n in order]})
    only = {"train_days": ["2023-01-01"], "test_days": ["2023-02-01"]} if by == "day" else {}
    if by == "day":
        table = pa.table({"at": [days[0]] * 40 + [days[10]] * 3})
    split = SplitConfig(by=by, column="at", format="%d/%m/%Y", **only)
    train, _, test = split_table(table, split, 1, "log")
    if by == "time":
        assert test["at"].to_pylist() == sorted(days[-3:], key=table["at"].to_pylist().index)
    else:
        assert set(train["at"].to_pylist()) == {days[0]} and test.num_rows == 3

"""Datetime features: every kind of column, its time zone, and what is no datetime."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from mmoe.config import DatetimeFeature, NumericFeature, SplitConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.locations import number_rows
from mmoe.datasets.rows.splits import days_of, split_table
from mmoe.datasets.values.columns import feature_numbers, parse_written, to_times
from mmoe.datasets.values.datetimes import local_datetimes
from mmoe.datasets.values.text import parse_lists
from tests.small_configs import click_config

PARTS = [
    "minute", "hour", "weekday", "hour_of_week", "day", "day_of_year", "week", "month", "quarter",
]  # fmt: skip
# A Wednesday in a leap year
MOMENT = dt.datetime(2024, 7, 31, 23, 59, 58)
VALUES = [59, 23, 2, 2 * 24 + 23, 30, 212, 30, 6, 2]
SECONDS = int(MOMENT.replace(tzinfo=dt.UTC).timestamp())


def local(values, origin="log.csv", **settings):
    feature = DatetimeFeature(name="at", **{"parts": ["hour"], **settings})
    return local_datetimes(pa.table({"at": values}), feature, origin).to_pylist()


def encoder(**settings):
    config = click_config({"kind": "datetime", "name": "at", **settings})
    hours = [dt.datetime(2020, 1, 1) + dt.timedelta(hours=25 * n) for n in range(366 * 6)]
    return FeatureEncoder.fit(config, pa.table({"at": [MOMENT, None, *hours]}), "log.csv")


def test_every_part():
    fitted = encoder(parts=PARTS)
    encoded = fitted.encode(pa.table({"at": [MOMENT, None]}), "x")
    assert encoded.ids_NC.tolist() == [[2 + value for value in VALUES], [0] * 9]
    assert [spec.name for spec in fitted.categorical] == [f"at__{part}" for part in PARTS]
    sizes = [table.num_rows - 2 for table in fitted.tables]
    assert sizes == [60, 24, 7, 168, 31, 366, 53, 12, 4]
    assert fitted.dense_names == []


@pytest.mark.parametrize("year", [2024, 2025])
def test_parts_are_those_of_python_for_every_day(year):
    days = [dt.datetime(year, 1, 1, 7) + dt.timedelta(days=n) for n in range(366)]
    fitted = encoder(parts=["weekday", "day", "day_of_year", "week", "month"])
    ids_NC = fitted.encode(pa.table({"at": days}), "x").ids_NC
    expected = [
        (d.weekday(), d.day - 1, d.timetuple().tm_yday - 1, d.isocalendar().week - 1, d.month - 1)
        for d in days
    ]
    np.testing.assert_array_equal(ids_NC - 2, expected)
    rows = np.array([table.num_rows for table in fitted.tables])
    assert (ids_NC >= 2).all() and (ids_NC < rows).all()


def test_the_circle_closes():
    fitted = encoder(parts=["hour", "quarter"], cyclic=True, dim=8)
    hours = [dt.datetime(2024, 1, 1, hour) for hour in (0, 6, 12)]
    encoded = fitted.encode(pa.table({"at": [*hours, None]}), "x")
    assert fitted.dense_names == [
        "at__hour_sin", "at__hour_cos", "at__quarter_sin", "at__quarter_cos",
    ]  # fmt: skip
    expected = [[0, 1], [1, 0], [0, -1], [0, 0]]
    np.testing.assert_allclose(encoded.dense_NF[:, :2], expected, atol=1e-7)
    assert encoded.ids_NC[:, 0].tolist() == [2, 8, 14, 0], "and is looked up as well"
    assert {table.dim for table in fitted.tables} == {8}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_and_numbers_of_any_unit(unit):
    number = SECONDS * 1000 ** ["s", "ms", "us", "ns"].index(unit)
    assert local(pa.array([number, None], pa.timestamp(unit))) == [MOMENT, None]
    for numbers in (
        pa.array([number, None]),
        pa.array([number, None], pa.uint64()),
        pa.array([float(number), None]),
        [str(number), "NA"],
        [f"{number}.0", ""],
    ):
        assert local(numbers, unit=unit) == [MOMENT, None]


def test_fractions_and_the_years_before_1970_are_rounded_down():
    assert local([1.5, -0.25], unit="s") == [
        dt.datetime(1970, 1, 1, 0, 0, 1, 500_000), dt.datetime(1969, 12, 31, 23, 59, 59, 750_000),
    ]  # fmt: skip
    before = pa.array([-1], pa.timestamp("ns"))
    assert local(before) == [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]


def test_iso_text_in_whatever_company():
    company = [[], ["2024-01-01 10:00:00"], ["2024-01-01T10:00Z"], ["2024-01-01 10:00", "NaT"]]
    for text in (
        "2024-07-31T23:59:58",
        " 2024-07-31 23:59:58 ",
        "2024-07-31 23:59:58Z",
        "2024-07-31T23:59:58.0000009+00:00",
        "2024-08-01T01:59:58,0 +02:00",
        "2024-07-31 13:59:58-1000",
        "2024-07-31 21:59:58-02",
        "2024-07-31T23:59:58  Z",
    ):
        for others in company:
            assert local([text, *others])[0] == MOMENT
    for others in ([], ["2024-01-01T10:00:00.000Z"]):  # a blank before the zone
        assert local(["2024-07-31 23:59 Z", *others])[0] == MOMENT.replace(second=0)
        assert local(["2024-07-31 23 -02", *others])[0] == dt.datetime(2024, 8, 1, 1)
    ends = ["0001-01-01T12:00:00", "9999-12-31T12:00:00"]
    assert [datetime.hour for datetime in local(ends, timezone="Asia/Kolkata")] == [17, 17]


def test_no_value_needs_no_unit():
    assert local(pa.nulls(2)) == local(pa.array([None, None], pa.int64())) == [None, None]
    assert local(["", "NA"]) == [None, None]
    assert local(pa.array([], pa.string())) == []


@pytest.mark.parametrize("zone", [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca",
])  # fmt: skip
def test_clocks_are_those_of_python_in_every_year(zone):
    """From 2038 on there is a rule for summer time, but no list of its changes any more."""
    info, rng = ZoneInfo(zone), np.random.default_rng(0)
    seconds = rng.integers(-2_200_000_000, 7_000_000_000, 500)
    berlin = [1711846800, 1729990800, 2531955600, 2550704400]  # to summer time and back
    for change in berlin:
        seconds = np.append(seconds, change + np.arange(-2, 3))
    found = local(pa.array(seconds), unit="s", timezone=zone)
    expected = [
        dt.datetime.fromtimestamp(int(second), dt.UTC).astimezone(info).replace(tzinfo=None)
        for second in seconds
    ]
    assert found == expected


def test_time_zones_shift_datetimes_but_not_days():
    winter, summer = dt.datetime(2024, 1, 31, 23, 30), dt.datetime(2024, 7, 31, 23, 30)
    expected = [dt.datetime(2024, 2, 1, 0, 30), dt.datetime(2024, 8, 1, 1, 30)]
    zone = {"timezone": "Europe/Berlin", "parts": ["day"]}
    assert local([winter, summer], **zone) == expected
    assert local([str(winter), f"{summer}Z"], **zone) == expected
    assert local(pa.array([winter, summer], pa.timestamp("s", "UTC")), **zone) == expected
    assert local(pa.array([winter, summer], pa.timestamp("s", "Asia/Tokyo")), **zone) == expected
    days = pa.array([dt.date(2024, 1, 31), None])
    for values in (days, days.cast(pa.date64()), ["2024-01-31", ""]):
        assert local(values, **zone) == [dt.datetime(2024, 1, 31), None]


@pytest.mark.parametrize(("values", "settings", "says"), [
    ([5], {}, "column 'at' .* holds int64, but the feature has no unit; .*unit: s, ms"),
    ([MOMENT], {"unit": "s"}, r"holds timestamp\[us\], which says its unit itself, .*remove"),
    ([dt.date(2024, 1, 1)], {"unit": "s", "parts": ["day"]}, "date32.*says its unit itself"),
    ([dt.date(2024, 1, 1)], {"parts": ["hour_of_week"]}, "date32.*parts has hour_of_week"),
    (["2024-01-01 10:00", "2024-01-02"], {}, "row 2: .*'2024-01-02', which has no time of day"),
    (["", "noon"], {}, "log.csv: row 2: column 'at' .* is 'noon', expected ISO 8601"),
    (["2024-02-30 10:00"], {}, "row 1: .*'2024-02-30 10:00', expected ISO 8601"),
    (["1722470398"], {}, "row 1: .* is '1722470398', .*unit: s, ms, us or ns where"),
    (["2024-07-31"], {"unit": "s"}, "row 1: .* is '2024-07-31', expected a number"),
    ([SECONDS, SECONDS * 1000], {"unit": "s"}, "row 2: .* s since 1970, which is not in the"),
    ([0.5, SECONDS * 1e3], {"unit": "s"}, "row 2: .* not in the years 1900 to 2199"),
    ([SECONDS * 1000, SECONDS], {"unit": "ms"}, "row 2: .*which in ms is in the first weeks"),
    ([SECONDS * 1000, None], {"unit": "ns"}, "row 1: .* in ms between 2000 and 2099"),
    (pa.array([2**64 - 1], pa.uint64()), {"unit": "us"}, "row 1: .* not in the years"),
    (pa.array([2**60], pa.timestamp("s")), {}, "row 1: .* not in the years 1 to 9999"),
    ([1e305], {"unit": "s"}, r"row 1: .* is 1e\+305 s since 1970, which is not in the years"),
    (pa.array([0, 2**31 - 1], pa.date32()), {"parts": ["day"]}, "row 2: .*years 1 to 9999"),
    (pa.array([None, 2**62], pa.date64()), {"parts": ["day"]}, "row 2: .*years 1 to 9999"),
    ([True], {}, "holds bool, expected timestamps, dates, ISO 8601"),
    ([[MOMENT]], {}, "holds list<.*convert the column"),
])  # fmt: skip
def test_what_is_no_datetime_is_named(values, settings, says):
    with pytest.raises(ValueError, match=says):
        local(values, **settings)


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


@pytest.mark.parametrize(("values", "expected"), [
    (["1.234,5", " ? ", "-999", "", "NA", "-999,0"], [1234.5, NAN, NAN, NAN, NAN, NAN]),
    ([1.5, -999, None], [1.5, NAN, NAN]),  # numbers are what they are
    (pa.array([-999, 4]), [NAN, 4]),
])  # fmt: skip
def test_missing_values(values, expected):
    feature = NumericFeature(name="x", decimal=",", thousands=".", missing_values=[-999, "?"])
    np.testing.assert_array_equal(feature_numbers(pa.table({"x": values}), feature, "l"), expected)


def test_what_is_not_written_so_is_refused_by_row():
    table = number_rows(pa.table({"x": ["1", "unknown", "12,5"]}), [("a.csv", 2), ("b.csv", 1)])
    feature = NumericFeature(name="x", missing_values=["unknown"])
    message = r"b\.csv: row 1: column 'x' \(of feature 'x'\) is '12,5', expected a number; mend"
    with pytest.raises(ValueError, match=message):
        feature_numbers(table, feature, "log")
    assert feature_numbers(table.slice(0, 2), feature, "log").tolist()[0] == 1
    table = number_rows(pa.table({"p": ["€ 1.000", "free"]}), [("a.csv", 2)])
    feature = NumericFeature(name="price", column="p", decimal=",", thousands=".", unit="€")
    message = (
        r"a\.csv: row 2: column 'p' \(of feature 'price'\) is 'free', expected a number such as "
        r"'1\.234,5 €', as the feature says; mend the cell, leave it empty, name it in missing_val"
    )
    with pytest.raises(ValueError, match=message):
        feature_numbers(table, feature, "log")


def test_keys_that_say_nothing():
    for keys, complaint in (
        ({"decimal": ",", "thousands": ","}, "decimal and thousands are both ','"),
        ({"unit": "5"}, "expected what is no number"),
        ({"thousands": "x"}, "Input should be"),
    ):
        with pytest.raises(ValidationError, match=complaint):
            NumericFeature(name="x", **keys)
    for form, complaint in (
        ("%d/%m", "leaves year, month or day open"),
        ("%c", "holds %c"),
        ("%Y-%m-%d%", "holds %,"),
    ):
        with pytest.raises(ValidationError, match=complaint):
            DatetimeFeature(name="at", parts=["hour"], format=form)
        with pytest.raises(ValidationError, match=complaint):
            SplitConfig(by="time", column="at", format=form)
    feature = DatetimeFeature(name="at", parts=["hour"], format="%d/%m/%Y")
    with pytest.raises(ValueError, match="has the format '%d/%m/%Y', which has no time of day"):
        local_datetimes(pa.table({"at": ["24/11/2023"]}), feature, "log")
    with pytest.raises(ValidationError, match=r"unit .* and format .* remove one of them"):
        DatetimeFeature(name="at", parts=["day"], format="%d/%m/%Y", unit="s")
    with pytest.raises(ValidationError, match="split by random takes no `format`; remove it"):
        SplitConfig(format="%d/%m/%Y")


def test_lists_in_brackets():
    for cell, items in (
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
    ):
        lists, wrong = parse_lists(cells([cell, None, "NULL"]))
        assert lists.to_pylist() == [items, None, None]
        assert wrong.to_pylist() == [False] * 3
    for cell in ("a|b", "[1, [2]]", '{"a": 1}', '["a"', "[1}2]", "['a' b]", "7"):
        assert parse_lists(cells([cell]))[1].to_pylist() == [True]


def test_lists_in_brackets_are_encoded_and_refused_by_row():
    def fitted(feature, **columns):
        config = click_config({"kind": "list", "name": "tags", "format": "json", **feature})
        return FeatureEncoder.fit(config, pa.table(columns), "log")

    encoder = fitted({"max_length": 2}, tags=['["a", "b"]', "['b']"])
    rows = pa.table({"tags": ["['x', 'b', 'b', 'a']", "", "[]"]})
    [(ids_V, offsets)] = encoder.encode(rows, "new").lists
    assert (ids_V.tolist(), offsets.tolist()) == ([1, 2, 0, 0], [0, 2, 3, 4])
    arrow = pa.table({"tags": [["x", "b"], None, []]})  # as good as text
    assert encoder.encode(arrow, "new").lists[0][0].tolist() == [1, 2, 0, 0]
    message = r"new: row 2: column 'tags' \(of feature 'tags'\) is 'a\|b', expected a list of plain"
    with pytest.raises(ValueError, match=message):
        encoder.encode(pa.table({"tags": ["[1]", "a|b"]}), "new")
    columns = {"tags": ['["a", "b"]', "[]"], "w": ["[0.5, 2]", "[]"]}
    encoder = fitted({"weights": "w", "pooling": "sum"}, **columns)
    assert encoder.encode(pa.table(columns), "log").list_weights[0].tolist() == [0.5, 2, 1]


@pytest.mark.parametrize(("form", "text"), [
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
])  # fmt: skip
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


def test_days_that_passed_are_a_number_that_goes_on():
    """Scaled as numbers are, and held a quarter of training beyond its end."""
    days = [dt.datetime(2024, 1, 1) + dt.timedelta(days=n) for n in range(101)]
    config = click_config({"kind": "datetime", "name": "at", "elapsed": True})
    fitted = FeatureEncoder.fit(config, pa.table({"at": days}), "log.csv")
    assert (fitted.dense_names, fitted.tables) == (["at__elapsed"], [])
    asked = [days[0], days[100], days[100] + dt.timedelta(days=50), dt.datetime(2030, 1, 1), None]
    encoded = fitted.encode(pa.table({"at": pa.array(asked, pa.timestamp("us"))}), "new")
    deviation = np.std(np.arange(101))
    expected = np.array([-50, 50, 75, 75, 0]) / deviation
    assert encoded.dense_NF[:, 0] == pytest.approx(expected, abs=1e-5)
    assert not encoded.outside
    single = fitted.encode(pa.table({"at": [days[0].isoformat()]}), "row", to_score=True)
    assert single.dense_NF.tolist() == encoded.dense_NF[:1].tolist()


def test_days_that_passed_may_be_any():
    """Such as 9999-12-31, by which databases say never."""
    days = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)]
    both = encoder(parts=["hour"], elapsed=True).encode(pa.table({"at": days}), "x")
    assert np.isfinite(both.dense_NF).all()


def test_another_feature_of_the_name_of_days_that_passed_is_refused():
    moment = {"kind": "datetime", "name": "at", "elapsed": True}
    with pytest.raises(ValueError, match="passed of feature 'at' are called at__elapsed; give"):
        click_config(moment, {"kind": "numeric", "name": "at__elapsed"})


def test_parts_and_days_that_passed_of_one_column():
    both = encoder(parts=["hour"], elapsed=True)
    alone = encoder(parts=["hour"])
    rows = pa.table({"at": [MOMENT, None]})
    assert both.encode(rows, "x").ids_NC.tolist() == alone.encode(rows, "x").ids_NC.tolist()
    assert both.encode(rows, "x").dense_NF.shape == (2, 1)
    with pytest.raises(ValidationError, match="parts is empty; name one, such as hour, or set el"):
        DatetimeFeature(name="at")

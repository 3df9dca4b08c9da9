"""Datetime features: every kind of column, its time zone, and what is no datetime."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import DatetimeFeature, config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.values.datetimes import local_datetimes

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
    feature = {"kind": "datetime", "name": "at", **settings}
    tasks = [{"name": "click", "label": "click"}]
    config = config_from_dict({"features": [feature], "tasks": tasks})
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


@pytest.mark.parametrize("year", [2020, 2024, 2025])
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


@pytest.mark.parametrize(
    "text",
    [
        "2024-07-31T23:59:58",
        " 2024-07-31 23:59:58 ",
        "2024-07-31 23:59:58Z",
        "2024-07-31T23:59:58.0000009+00:00",
        "2024-08-01T01:59:58,0 +02:00",
        "2024-07-31 13:59:58-1000",
        "2024-07-31 21:59:58-02",
        "2024-07-31T23:59:58  Z",
    ],
)
def test_iso_text_in_whatever_company(text):
    for others in ([], ["2024-01-01 10:00:00"], ["2024-01-01T10:00Z"], ["2024-01-01 10:00", "NaT"]):
        assert local([text, *others])[0] == MOMENT


def test_a_blank_before_the_zone_needs_no_longer_cell_beside_it():
    for others in ([], ["2024-01-01T10:00:00.000Z"]):
        assert local(["2024-07-31 23:59 Z", *others])[0] == MOMENT.replace(second=0)
        assert local(["2024-07-31 23 -02", *others])[0] == dt.datetime(2024, 8, 1, 1)


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Gaza",
     "Asia/Kathmandu", "Pacific/Apia", "Europe/Dublin", "America/Sao_Paulo"],
)  # fmt: skip
def test_clocks_are_those_of_python_in_every_year(zone):
    """From 2038 on there is a rule for summer time, but no list of its changes any more."""
    info, rng = ZoneInfo(zone), np.random.default_rng(0)
    seconds = rng.integers(-2_200_000_000, 7_000_000_000, 2000)
    berlin = [1711846800, 1729990800, 2531955600, 2550704400]  # to summer time and back
    for change in berlin:
        seconds = np.append(seconds, change + np.arange(-2, 3))
    found = local(pa.array(seconds), unit="s", timezone=zone)
    expected = [
        dt.datetime.fromtimestamp(int(second), dt.UTC).astimezone(info).replace(tzinfo=None)
        for second in seconds
    ]
    assert found == expected


def test_the_ends_of_time_have_a_clock_as_well():
    ends = ["0001-01-01T12:00:00", "9999-12-31T12:00:00"]
    assert [datetime.hour for datetime in local(ends, timezone="Asia/Kolkata")] == [17, 17]


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


def test_no_value_needs_no_unit():
    assert local(pa.nulls(2)) == local(pa.array([None, None], pa.int64())) == [None, None]
    assert local(["", "NA"]) == [None, None]
    assert local(pa.array([], pa.string())) == []


@pytest.mark.parametrize(
    ("values", "settings", "says"),
    [
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
    ],
)
def test_what_is_no_datetime_is_named(values, settings, says):
    with pytest.raises(ValueError, match=says):
        local(values, **settings)

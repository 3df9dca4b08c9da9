"""By which time `init` splits a log, and when it does not: years, months, parts too thin."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import DatetimeFeature
from mmoe.datasets.values.columns import to_times
from mmoe.datasets.values.datetimes import local_datetimes
from tests.datasets.infer.ordinary_log import ROWS, infer, log

DAYS = np.arange("2023-01-01", "2026-01-01", dtype="M8[D]")
OF_ROWS = DAYS[np.arange(ROWS) * len(DAYS) // ROWS]
YEARS = OF_ROWS.astype("M8[Y]").astype(int) + 1970


def with_late_clicks(days, clicks):
    """A log whose last rows, the tested ones, have so many clicks."""
    table, last = log(at=days), np.arange(ROWS) >= ROWS - ROWS // 10
    click = table["click"].to_numpy().copy()
    click[last] = np.arange(last.sum()) < clicks
    place = table.column_names.index("click")
    return table.set_column(place, "click", pa.array(click)).drop_columns(["buy"])


def test_a_date_goes_before_a_year():
    config, reasons, _ = infer(log(arrival_year=YEARS, arrived=OF_ROWS.astype(str)))
    assert (config.data.split.by, config.data.split.column) == ("time", "arrived")
    assert "holds dates" in reasons.split


def test_a_year_alone_leaves_too_few_rows_in_a_part():
    late = np.where(np.arange(ROWS) < ROWS - 8, 2023 + (np.arange(ROWS) > ROWS / 2), 2025)
    config, reasons, _ = infer(log(year_month=late))
    assert config.data.split.by == "random"
    assert "not by time ('year_month' holds a time by its name, and it rises down the file): " in (
        reasons.split
    )
    assert f"test would have 8 of {ROWS:,} rows" in reasons.split
    assert "year_month" in {feature.name for feature in config.features}, "it comes again in tests"


def test_a_time_that_no_split_is_made_by_is_no_number():
    """Seconds rise to values that no training row has, however the rows are drawn."""
    found = with_late_clicks(1_700_000_000 + np.arange(ROWS), 3)
    config, reasons, _ = infer(found)
    assert config.data.split.by == "random" and "at" in dict(reasons.left_out)


@pytest.mark.parametrize(("clicks", "by"), [(3, "random"), (30, "time")])
def test_a_test_part_has_enough_rows_of_each_class(clicks, by):
    config, reasons, _ = infer(with_late_clicks(OF_ROWS.astype(str), clicks))
    assert config.data.split.by == by
    complaint = f"test would have {clicks} row(s) of the rarer outcome of 'click'"
    assert (complaint in reasons.split) == (by == "random")


def test_months_are_times():
    months = ["2015-07", "2015-08", None]
    table = pa.table({"at": months})
    found = local_datetimes(table, DatetimeFeature(name="at", parts=["month"]), "log.csv")
    assert [str(at) for at in found] == ["2015-07-01 00:00:00", "2015-08-01 00:00:00", "None"]
    with pytest.raises(ValueError, match="is '2015-07', which has no time of day, but parts has h"):
        local_datetimes(table, DatetimeFeature(name="at", parts=["hour"]), "log.csv")
    times_N = to_times(table.slice(0, 2), "at", "log.csv")
    assert times_N.view("M8[us]").astype("M8[M]").astype(str).tolist() == months[:2]
    with pytest.raises(ValueError, match=r"cannot be ordered in time \(such as '2015-13'\)"):
        to_times(pa.table({"at": ["2015-07", "2015-13"]}), "at", "log.csv")


def test_codes_that_look_like_months_are_no_times():
    rng = np.random.default_rng(0)
    codes = [f"{rng.integers(1000, 4000)}-{rng.integers(1, 13):02}" for _ in range(ROWS)]
    config, _, _ = infer(log(sku=codes))
    assert config.data.split.by == "random"


def test_a_part_without_any_label_is_not_made():
    rating = np.where(np.arange(ROWS) < ROWS * 0.7, np.arange(ROWS) % 50 / 10, np.nan)
    config, reasons, _ = infer(log(at=OF_ROWS.astype(str), rating=rating), "click", "rating")
    assert config.data.split.by == "random"
    assert "validation would have no label of 'rating'" in reasons.split

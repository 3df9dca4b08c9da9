"""Choices under a split by time: what the future has not, or does not follow from the past."""

import time

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.infer.evidence import known
from mmoe.datasets.infer.told import Told

ROWS, DAYS = 12_000, 360


def year_of_shocks(seed=0):
    """A year in which each day has a shock of its own, and what lasts is the shop and the heat."""
    rng = np.random.default_rng(seed)
    day = np.arange(ROWS) * DAYS // ROWS
    shock = 1.5 * rng.normal(size=DAYS)
    shop, lasting = rng.integers(0, 40, ROWS), rng.normal(size=40)
    heat = rng.permutation(DAYS)  # each day's own, and no later day's, on one scale
    logit = shock[day] + lasting[shop] + 4.0 * (heat[day] / DAYS - 0.5) - 1
    columns = {
        "at": np.arange("2023-01-01", "2023-12-27", dtype="M8[D]")[day].astype(str),
        "month": [f"m{month}" for month in day // 30],
        "batch": day // 2 + 7,
        "day": day % 30 + 1,
        "shop": shop,
        "heat": heat[day] * 10,
        "y": (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(int),
    }
    return pa.table(columns)


def kinds(config):
    return {feature.name: feature.kind for feature in config.features}


def test_what_the_future_does_not_have_is_left_out_with_its_reason():
    config, reasons = infer_config(year_of_shocks(), ["y"])
    assert config.data.split.column == "at"
    left_out = dict(reasons.left_out)
    unknown = "100 % of the test rows have a value that training does not know"
    assert left_out["month"] == unknown
    assert left_out["batch"].startswith("100 % of the test rows have a value ")
    assert "not later ones" in left_out["day"]
    assert kinds(config) == {"shop": "categorical", "heat": "numeric", "at": "datetime"}
    assert not config.features[-1].parts


def test_at_random_the_same_columns_are_inputs():
    config, _ = infer_config(year_of_shocks().drop_columns(["at"]), ["y"])
    found = kinds(config)
    assert found["month"] == found["day"] == found["heat"] == "categorical"


def test_the_day_itself_is_an_input_where_rows_of_it_are_scored():
    table = year_of_shocks().drop_columns(["batch", "heat"])
    drawn, reasons = infer_config(table, ["y"], told=Told(split="random"))
    assert drawn.data.split.by == "random"
    assert reasons.split == "--split random: rows drawn at random"
    assert "day_of_year" in {feature.name: feature for feature in drawn.features}["at"].parts
    by_time, _ = infer_config(table, ["y"])
    assert not by_time.features[-1].parts, "no part of it outlasts the day"


def test_hours_of_the_week_are_an_input_where_they_differ_by_weekday():
    rng, hour = np.random.default_rng(3), np.arange(ROWS)
    at = np.datetime64("2023-01-02T00", "h") + hour
    open_at = np.random.default_rng(4).random(168) < 0.5  # neither hours nor weekdays are alike
    logit = np.where(open_at[hour % 168], 1.0, -1.0)
    table = pa.table({"at": at.astype("M8[s]"), "x": rng.normal(size=ROWS)})
    for pattern, has in ((logit, True), (np.where(hour % 24 < 9, 1.0, -1.0), False)):
        y = (rng.random(ROWS) < 1 / (1 + np.exp(-pattern))).astype(int)
        config, _ = infer_config(table.append_column("y", pa.array(y)), ["y"])
        parts = {feature.name: feature for feature in config.features}["at"].parts
        assert ("hour_of_week" in parts) == has
        assert "day_of_year" not in parts


def test_a_column_that_somebody_names_stays():
    config, _ = infer_config(year_of_shocks(), ["y"], told=Told(categorical=["month"]))
    assert kinds(config)["month"] == "categorical"


def test_new_ids_among_known_ones_stay():
    rng, table = np.random.default_rng(1), year_of_shocks()
    user = np.where(rng.random(ROWS) < 0.4, rng.integers(0, 20, ROWS), 20 + np.arange(ROWS) // 9)
    effect = np.where(user < 20, np.random.default_rng(2).normal(size=20)[user % 20] * 2, 0)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-effect))).astype(int)
    table = table.set_column(table.column_names.index("y"), "y", pa.array(y))
    config, reasons = infer_config(table.append_column("user", pa.array(user)), ["y"])
    assert kinds(config)["user"] == "categorical", reasons.left_out


def test_where_nothing_else_is_left_all_stays():
    table = year_of_shocks().select(["at", "month", "batch", "y"])
    assert set(kinds(infer_config(table, ["y"])[0])) == {"month", "batch"}


def test_ids_that_are_rare_at_any_time_are_not_left_behind():
    table, rng = year_of_shocks(), np.random.default_rng(5)
    user = pa.array(rng.integers(0, ROWS, ROWS).astype(str))
    _, reasons = infer_config(table.append_column("user", user), ["y"])
    assert "test rows" not in dict(reasons.left_out).get("user", "")


@pytest.mark.parametrize(("forward", "second"), [(True, 2.0), (False, 10.0)])
def test_a_block_is_predicted_by_earlier_ones_alone(forward, second):
    assert known(np.array([[2.0, 3.0, 8.0]]), forward)[0, 1] == second


def drifting(season, seed=0):
    """Two years, in which a shop's rate moves; with a `season` all rates do, and end where it is
    high."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, 640, ROWS))
    shop = rng.integers(0, 20, ROWS)
    move = rng.normal(size=20)[shop] * (day / 640 - 0.5)
    logit = move + season * np.sin(2 * np.pi * (day - 460) / 365)
    return pa.table({
        "at": (np.datetime64("2023-01-01") + day).astype(str),
        "shop": [f"s{n}" for n in shop],
        "y": (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(int),
    })  # fmt: skip


def test_days_that_passed_are_read_where_lines_go_on():
    config, reasons = infer_config(drifting(0.0), ["y"])
    (moment,) = (one for one in config.features if one.kind == "datetime")
    assert moment.elapsed and "at" not in dict(reasons.left_out)
    assert reasons.features["at"].endswith(
        "so that a trend goes on in later rows; elapsed: false if not"
    )
    drawn, _ = infer_config(drifting(0.0), ["y"], told=Told(split="random"))
    assert not any(one.kind == "datetime" and one.elapsed for one in drawn.features)


def test_a_season_is_no_line():
    config, _ = infer_config(drifting(4.0), ["y"])
    assert not any(one.kind == "datetime" and one.elapsed for one in config.features)


def test_a_time_is_what_the_user_says_it_is():
    config, _ = infer_config(drifting(0.0), ["y"], told=Told(categorical=("at",)))
    assert config.data.split.column == "at"
    assert kinds(config)["at"] == "categorical"


def test_many_columns_of_many_values_cost_little():
    """A system of all pairs of ten thousand levels takes minutes."""
    rng, rows = np.random.default_rng(0), 2000
    columns = {f"c{n}": rng.integers(0, 250, rows) for n in range(40)}
    days = (np.datetime64("2023-01-01") + np.arange(rows) // 4).astype(str)
    start = time.perf_counter()
    infer_config(pa.table({**columns, "at": days, "y": rng.integers(0, 2, rows)}), ["y"])
    assert time.perf_counter() - start < 30


def test_months_that_come_again_are_judged_by_rows_drawn_at_random():
    """20 months: forward blocks hold other months each, and tested ones are known."""
    rng = np.random.default_rng(0)
    day = np.sort(rng.integers(0, 610, ROWS))
    logit = 1.5 * np.sin(2 * np.pi * day / 365) + day / 610
    at = np.datetime64("2023-01-01") + day
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(int)
    table = pa.table({"at": at, "x": rng.normal(size=ROWS), "y": y})
    for rows, found in ((table, True), (table.slice(0, ROWS // 2), False)):
        config, _ = infer_config(rows, ["y"])
        parts = [part for one in config.features if one.kind == "datetime" for part in one.parts]
        assert ("month" in parts) == found

"""Windows after which labels are final, and keys that need each other."""

import pytest

from mmoe.config import config_from_dict, load_config
from mmoe.config.data import microseconds, moment_of

SECOND = 1_000_000


def config(data=None, **task):
    return config_from_dict(
        {
            "data": {"time": {"column": "at"}} if data is None else data,
            "features": [{"kind": "numeric", "name": "x"}],
            "tasks": [{"name": "buy", "label": "buy", **task}],
        }
    )


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("90s", 90), ("5m", 300), ("36h", 129_600), ("7d", 604_800), ("2w", 1_209_600),
     ("1.5 h", 5400)],
)  # fmt: skip
def test_windows_are_numbers_with_a_unit(window, seconds):
    assert microseconds(config(matures_after=window).tasks[0].matures_after) == seconds * SECOND


def test_a_window_without_a_unit_or_a_length_is_refused():
    for window in (7, "7", "d7", "7 days", "-7d", "", "7M", True, "1e3s"):
        with pytest.raises(ValueError, match=r"matures_after: .*with a unit \(s, m, h, d or w"):
            config(matures_after=window)
    for window in ("0d", "0.0s", "99999d"):
        with pytest.raises(ValueError, match="more than 0s and at most 36500d"):
            config(matures_after=window)


def test_moments_are_read_as_iso_by_yaml_and_in_text(tmp_path):
    assert moment_of("2024-01-31T01:00+01:00") == moment_of("2024-01-31")
    path = tmp_path / "config.yaml"
    for written in ("2024-01-31", "2024-01-31T00:00", "2024-01-31T00:00:00"):
        path.write_text(
            f"data: {{time: {{column: at, as_of: {written}}}}}\n"
            "features: [{kind: numeric, name: x}]\n"
            "tasks: [{name: buy, label: buy, matures_after: 7d}]\n"
        )
        assert moment_of(load_config(path).data.time.as_of) == moment_of("2024-01-31")


@pytest.mark.parametrize(("data", "task", "told"), [
    ({}, {"matures_after": "7d"}, "'buy': matures_after needs each row's time; set data.time"),
    (None, {}, "data.time is read for tasks with matures_after alone"),
    (None, {"immature": "weight"}, "nothing says how long a label can change; set matures"),
    (None, {"matures_after": "7d", "immature": "weight"}, "set happened_at, the column of the"),
    (None, {"matures_after": "7d", "happened_at": "t"}, "read for immature: weight alone"),
    (None, {"matures_after": "7d", "immature": "weight", "happened_at": "t", "kind": "regression"},
     "which is for events"),
    (None, {"matures_after": "7d", "immature": "weight", "happened_at": "t",
            "negative_sampling_rate": 0.5}, "sampled negatives"),
    ({"time": {"column": "at", "as_of": "yesterday"}}, {"matures_after": "7d"}, "as_of"),
    ({"time": {"column": "at", "as_of": 7}}, {"matures_after": "7d"}, "as_of"),
    ({"time": {"column": "at", "unit": "s", "format": "%Y%m%d"}}, {"matures_after": "7d"},
     "both say how the column is read"),
])  # fmt: skip
def test_keys_that_need_each_other(data, task, told):
    with pytest.raises(ValueError, match=told):
        config(data, **task)


def test_the_event_of_an_entire_space_is_not_weighted():
    weighted = {"matures_after": "1h", "immature": "weight", "happened_at": "t"}
    click = {"name": "click", "label": "click", **weighted}
    buy = {"name": "buy", "label": "buy", "kind": "entire_space", "observed_when": "click"}
    raw = {
        "data": {"time": {"column": "at"}},
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [click, buy],
    }
    with pytest.raises(ValueError, match="'click': immature is weight, but it is the event of"):
        config_from_dict(raw)
    config_from_dict({**raw, "tasks": [{"name": "click", "label": "click"}, buy | weighted]})


@pytest.mark.parametrize("by", ["time", "day"])
def test_the_column_of_a_split_by_time_is_the_rows_time(by):
    days = {"train_days": [1], "test_days": [2]} if by == "day" else {}
    split = {"by": by, "column": "day", "format": "%Y%m%d", **days}
    data = config({"split": split}, matures_after="1d").data
    assert (data.row_time.column, data.row_time.format) == ("day", "%Y%m%d")
    assert data.unsplit().row_time == data.row_time

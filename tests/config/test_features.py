"""What the config refuses in features, and says about it."""

import pytest

from mmoe.config import config_from_dict

TASKS = [{"name": "click", "label": "click"}]
CROSS = {"kind": "cross", "name": "x", "columns": ["a", "b"]}
MOMENT = {"kind": "datetime", "name": "at", "parts": ["hour"]}
TAGS = {"kind": "list", "name": "tags"}
SEEN = {"kind": "sequence", "name": "seen", "encoder": "mean"}


@pytest.mark.parametrize(("features", "says"), [
    ([{**CROSS, "columns": ["a"]}], "columns: .*at least 2"),
    ([{**CROSS, "columns": ["a", "a"]}], "columns names 'a' twice"),
    ([{**CROSS, "column": "a"}], "column"),
    ([{**CROSS, "table": "t", "dim": 8}], "'x' uses the shared table 't', so dim must be set"),
    ([{**CROSS, "table": "t"}, {"kind": "categorical", "name": "a", "table": "t"}],
     "'x' and 'a' share the table 't', but their ids are made of 2 and 1 columns"),
    ([{**CROSS, "table": "t"}, {**CROSS, "name": "y", "table": "t", "columns": list("abc")}],
     "'x' and 'y' share the table 't', but their ids are made of 2 and 3 columns"),
    ([{**MOMENT, "parts": []}], "parts is empty; name one"),
    ([{**MOMENT, "parts": ["hour", "hour"]}], "parts names 'hour' twice"),
    ([{**MOMENT, "parts": ["year"]}], "parts.0: .*'hour'.*got 'year'"),
    ([{**MOMENT, "unit": "min"}], "unit: .*'ms'.*got 'min'"),
    ([{**MOMENT, "timezone": "Europe/Berln"}], r"no time zone .*did you mean 'Europe/Berlin'"),
    ([{**MOMENT, "timezone": "../etc"}], "there is no time zone '../etc'"),
    ([{**MOMENT, "timezone": "localtime"}], "there is no time zone 'localtime'"),
    ([{**MOMENT, "timezone": "right/UTC"}], "there is no time zone 'right/UTC'"),
    ([{**TAGS, "max_length": 2**70}], "max_length: .*less than or equal to 2147483647"),
    ([{**TAGS, "encoding": "managed", "rows": 9, "admit_after": 2**70}],
     "admit_after: .*less than or equal to 4611686018427387904"),
    ([MOMENT, {"kind": "categorical", "name": "at__hour"}],
     "the parts of feature 'at' are called at__hour; give"),
    ([{**TAGS, "keep": "last"}], "keep is last, but no list is cut without max_length"),
    ([{**TAGS, "weights": "tags"}], "weights names the column of the ids, 'tags'"),
    ([{**TAGS, "weights": "w", "weight_separator": ":"}], "both say where the weights are"),
    ([{**TAGS, "weight_separator": "||"}], r"weight_separator '\|\|' holds the separator"),
    ([{**TAGS, "weight": "w"}], "did you mean 'weights'"),
    ([{**SEEN, "columns": ["商品", "商品"]}], "columns names '商品' twice; an event has each"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(features, says):
    raw = {"features": features, "tasks": TASKS, "tables": [{"name": "t"}]}
    with pytest.raises(ValueError, match=says):
        config_from_dict(raw)


@pytest.mark.parametrize(("columns", "names"), [
    (["item", "hist cat"], ["item", "hist_cat"]),
    (["历史商品", "历史类目"], ["_____1", "_____2"]),
    (["商", "目", "__2", "a"], ["__1", "__2_", "__2", "a"]),
    (["a b", "a_b"], ["a_b_1", "a_b_2"]),
])  # fmt: skip
def test_columns_of_any_letters_have_names_of_their_own(columns, names):
    raw = {"features": [{**SEEN, "columns": columns}], "tasks": TASKS}
    [feature] = config_from_dict(raw).features
    assert feature.event_names == feature.table_names == [f"seen__{name}" for name in names]


def test_columns_that_features_read():
    raw = [CROSS, MOMENT, {**TAGS, "column": "t", "weights": "w"}]
    features = config_from_dict({"features": raw, "tasks": TASKS}).features
    assert [feature.source_columns for feature in features] == [["a", "b"], ["at"], ["t", "w"]]

"""Lists with weights: beside the ids or behind them, cut, pooled, and what does not fit."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import ListFeature
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.list import list_ids
from mmoe.datasets.rows.encoded import EncodedData, in_chunks, join
from tests.small_configs import click_config

BESIDE = {"weights": "w", "pooling": "sum"}
BEHIND = {"weight_separator": ":", "pooling": "sum"}


def lists(table, **settings):
    """Every row as (id, weight) pairs."""
    ragged = list_ids(pa.table(table), ListFeature(name="tags", **settings), "log.csv")
    values, weights = ragged.values.to_pylist(), ragged.weights
    assert weights.dtype == np.float32
    pairs = list(zip(values, weights.astype(np.float64).round(4).tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


@pytest.mark.parametrize("table", [
    {"tags": [["a", "b"], None, [], ["c"]], "w": [[2, 0.5], None, [], [4]]},
    {"tags": [["a", "b", None], None, [], ["c"]], "w": [[2, 0.5, None], [], None, [4]]},
    {"tags": ["a|b", "", None, " c "], "w": ["2|0.5", None, "", "4"]},
    {"tags": ["a||b", "", None, "c"], "w": [[2, 9, 0.5], None, [], [4]]},
    {"tags": [["a", "b"], [], [], ["c", ""]], "w": ["2| 0.5", "", None, "4|"]},
    {"tags": ["a:2|b:0.5", "", None, "c:4"]},
    {"tags": [["a:2", "b:0.5"], [], None, ["c:4", None]]},
    {"tags": ["a:2||b: 0.5", "|", None, " c :4"]},
    {"tags": ["a:2|:7|b:.5", None, None, "c:4e0"]},
])  # fmt: skip
def test_weights_in_a_column_or_behind_their_ids(table):
    found = lists(table, **(BESIDE if "w" in table else BEHIND))
    assert found == [[("a", 2.0), ("b", 0.5)], [], [], [("c", 4.0)]]


def test_the_last_separator_counts_and_one_id_has_one_weight():
    assert lists({"tags": ["a:b:2|http://x:1"]}, **BEHIND) == [[("a:b", 2.0), ("http://x", 1.0)]]
    one = {"tags": [7, None, 8], "w": [0.5, None, 2]}
    assert lists(one, **BESIDE) == [[(7, 0.5)], [], [(8, 2.0)]]


def test_a_mean_has_shares_of_what_is_kept():
    table = {"tags": [[1, None, 2, 3], [4], [5, 6]], "w": [[9, 9, 1, 3], [2], [0, 0]]}
    last = lists(table, weights="w", max_length=2, keep="last")
    assert last == [[(2, 0.25), (3, 0.75)], [(4, 1.0)], [(5, 0.0), (6, 0.0)]]
    first = lists(table, weights="w", max_length=2)
    assert first[0] == [(1, 0.9), (2, 0.1)]


def test_shares_do_not_overflow_and_depend_on_their_row_alone():
    table = {"tags": [[1, 2, 3], [1, 2, 3]], "w": [[1e9, 1e9, 1e9], [1e-300, 2e-300, 1e-300]]}
    one, two = lists(table, weights="w")
    assert [w for _, w in one] == [0.3333] * 3
    assert [w for _, w in two] == [0.25, 0.5, 0.25]
    assert lists({name: column[1:] for name, column in table.items()}, weights="w") == [two]


@pytest.mark.parametrize(("table", "settings", "says"), [
    ({"tags": [[1], [2, 3]], "w": [[1], [1]]}, BESIDE,
     r"log.csv: row 2: column 'w' \(of feature 'tags'\) has 1 weights, but column 'tags' has"
     " 2 ids"),
    ({"tags": [[1], [2]], "w": [[1], None]}, BESIDE, "row 2: .* has 0 weights, .* 1 ids"),
    ({"tags": [[], [2]], "w": [[], [None]]}, BESIDE, "row 2: .* a weight that is missing"),
    ({"tags": [[1, 2]], "w": [[1, -0.5]]}, BESIDE, "row 1: .* is -0.5, expected a number from"),
    ({"tags": [[1, 2]], "w": [[1, np.nan]]}, BESIDE, "row 1: .* a weight that is missing"),
    ({"tags": [[1], [2]], "w": [[1], [np.inf]]}, BESIDE, "row 2: .* that is inf, expected"),
    ({"tags": ["a|b", "c"], "w": ["1|1", "x"]}, BESIDE, "row 2: .* has the weight 'x'"),
    ({"tags": [[1]], "w": [[True]]}, BESIDE, "holds bool, expected lists of numbers"),
    ({"tags": [[[1]]], "w": [[1]]}, BESIDE, "column 'tags' .* one list of plain values a row"),
    ({"tags": [[1]], "w": [[[1]]]}, BESIDE, "column 'w' .* holds list<.*; flatten it"),
    ({"tags": [[1]]}, BESIDE, "there is no column 'w', which feature 'tags' needs"),
    ({"tags": ["a:1", "b:1|c"]}, BEHIND, "row 2: .* has the item 'c', expected an id and its"),
    ({"tags": ["", "b:1|c:much"]}, BEHIND, "row 2: .* has the weight 'much', expected a"),
    ({"tags": ["a:"]}, BEHIND, "row 1: .* a weight that is missing"),
    ({"tags": [[1]]}, BEHIND, "holds items of int64, expected text such as 'sports:0.7'"),
])  # fmt: skip
def test_what_does_not_fit_is_named(table, settings, says):
    with pytest.raises(ValueError, match=says):
        list_ids(pa.table(table), ListFeature(name="tags", **settings), "log.csv")


FEATURES = [
    {"kind": "categorical", "name": "item"},
    {"kind": "list", "name": "plain", "column": "tags"},
    {"kind": "list", "name": "tags", "weights": "w"},
]
LOG = {
    "item": ["i", "j", "i"],
    "tags": [["a", "b"], None, ["b", "c", "d"]],
    "w": [[1.0, 3.0], None, [1.0, 1.0, 2.0]],
}


def encoded(features):
    config = click_config(*features)
    table = pa.table(LOG)
    encoder = FeatureEncoder.fit(config, table, "log.csv")
    return encoder, EncodedData(features=encoder.encode(table, "log.csv"))


def test_a_batch_has_weights_where_a_feature_has():
    encoder, data = encoded(FEATURES)
    assert [(spec.pooling, spec.weighted) for spec in encoder.lists] == [
        ("mean", False), ("sum", True),
    ]  # fmt: skip
    batch = data.batch(np.array([2, 1]), pad_to=3)
    assert batch.lengths_CB.tolist() == [1, 1, 1, 3, 1, 1, 3, 1, 1]
    assert batch.id_weights.tolist() == [*[1.0] * 8, 0.25, 0.25, 0.5, 1.0, 1.0]
    assert len(batch.values) == len(batch.id_weights)
    assert encoded(FEATURES[:2])[1].batch(slice(0, 3)).id_weights is None
    assert encoded(FEATURES[:1])[1].batch(slice(0, 3)).id_weights is None


@pytest.mark.parametrize("features", [FEATURES, FEATURES[:2], FEATURES[2:]])
def test_cut_and_joined_again_rows_keep_their_weights(features):
    data = encoded(features)[1]
    parts = list(in_chunks([data.rows(0, 1), data.rows(1, 3)], 2))
    assert [len(part) for part in parts] == [2, 1]
    one, other = data.batch(slice(0, 3)), join(parts).batch(slice(0, 3))
    assert one.values.tolist() == other.values.tolist()
    weights = [None if b.id_weights is None else b.id_weights.tolist() for b in (one, other)]
    assert weights[0] == weights[1] and (weights[0] is None) == (features == FEATURES[:2])

"""What training never had: columns that come alive, numbers far outside, parts of other days."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from tests.small_configs import click_config

KINDS = [
    {"kind": "numeric", "name": "flat"},
    {"kind": "numeric", "name": "flat_log", "log": True, "buckets": 4, "pieces": 4},
    {"kind": "numeric", "name": "flat_raw", "standardise": False, "outside": "keep"},
    {"kind": "numeric", "name": "empty", "buckets": 4, "pieces": 4},
    {"kind": "numeric", "name": "gaps"},
    {"kind": "categorical", "name": "market"},
    {"kind": "categorical", "name": "hashed", "encoding": "hash", "hash_size": 100},
    {"kind": "categorical", "name": "no_id"},
    {"kind": "list", "name": "tags"},
    {"kind": "list", "name": "weighted", "weights": "weight", "pooling": "sum"},
    {"kind": "cross", "name": "crossed", "columns": ["market", "no_id"]},
    {"kind": "cross", "name": "by_shop", "columns": ["market", "shop"]},
    {"kind": "vector", "name": "title"},
    {"kind": "datetime", "name": "at", "parts": ["month", "hour"], "cyclic": True},
    {"kind": "sequence", "name": "seen", "columns": ["history"], "times": "history_at"},
]
SMALL, LARGE = datetime(2024, 2, 1, tzinfo=UTC), datetime(2025, 7, 9, 5, tzinfo=UTC)


def config_of(features=KINDS):
    return click_config(*features)


def rows_of(rows, alive=None):
    """A log in which only the hour of `at` and an id in `weighted` vary; and what comes alive."""
    hours = [SMALL + timedelta(hours=int(n) % 3) for n in range(rows)]
    columns = {
        "flat": [7.0] * rows,
        "flat_log": [250.0] * rows,
        "flat_raw": [3.0] * rows,
        "empty": pa.nulls(rows, pa.float64()),
        "gaps": [None if n % 2 else 5.0 for n in range(rows)],
        "market": ["de"] * rows,
        "shop": [n % 4 for n in range(rows)],
        "hashed": ["x"] * rows,
        "no_id": pa.nulls(rows, pa.string()),
        "tags": [["a", "b"]] * rows,
        "weighted": [["a", "b"] if n % 2 else ["a"] for n in range(rows)],
        "weight": [[2.0] * (1 + n % 2) for n in range(rows)],
        "title": [[1.0, 0.0, float(n % 5)] for n in range(rows)],
        "at": hours,
        "history": [[7, 8]] * rows,
        "history_at": [[0, 5]] * rows,
    }
    for name, cells in (alive or {}).items():
        columns[name] = cells * rows
    return pa.table(columns)


ALIVE = {
    "flat": [1e6],
    "flat_log": [-1e6],
    "flat_raw": [1e6],
    "empty": [-3.0],
    "market": ["fr"],
    "hashed": ["other"],
    "no_id": ["new"],
    "tags": [["c"]],
    "weight": None,
    "title": None,
    "history": [[9, 9, 9]],
}


def encoded(encoder, table):
    features = encoder.encode(table, "new")
    lists = [
        (*pair, weights)
        for pair, weights in zip(features.lists, features.list_weights, strict=True)
    ]
    return features, [features.dense_NF, features.ids_NC, *(a for one in lists for a in one)]


@pytest.fixture(name="known", scope="module")
def _known(tmp_path_factory):
    """The encoder of 12 rows, stored and read."""
    folder = tmp_path_factory.mktemp("encoder")
    fitted = FeatureEncoder.fit(config_of(), rows_of(12), "log")
    fitted.save(folder)
    loaded = FeatureEncoder.load(folder)
    assert loaded.fingerprint() == fitted.fingerprint()
    return loaded


def come_alive(name, table, rows):
    """The table with other cells in one of its columns."""
    if name in ("weight", "title", "at"):
        cells = {
            "weight": lambda: [[1e6] * len(one) for one in table["weight"].to_pylist()],
            "title": lambda: [[1e6, -1e6, float(n % 5)] for n in range(rows)],
            "at": lambda: [at.replace(month=3) for at in table["at"].to_pylist()],
        }[name]()
        return table.set_column(table.column_names.index(name), name, pa.array(cells))
    more = {"history_at": [[0, 100, 2000]]} if name == "history" else {}
    return rows_of(rows, {name: ALIVE[name], **more})


@pytest.mark.parametrize("name", [*ALIVE, "at"])
def test_what_never_varied_changes_no_input_when_it_comes_alive(known, name):
    rows = 12
    table = come_alive(name, rows_of(rows), rows)
    _, before = encoded(known, rows_of(rows))
    features, now = encoded(known, table)
    for one, other in zip(before, now, strict=True):
        np.testing.assert_array_equal(one, other)
    if name != "at":
        feature = {"weight": "weighted", "history": "seen"}.get(name, name)
        assert int(features.outside[feature].sum()) == rows
        assert ("by_shop" in features.outside) == (name == "market")


def test_it_is_named_in_training_and_known_to_the_guard(known):
    encoder = known
    assert encoder.never_varied == [
        "flat", "flat_log", "flat_raw", "empty", "gaps", "market", "hashed", "no_id", "tags",
        "crossed", "seen", "at__month", "2 of the 3 numbers of title",
    ]  # fmt: skip
    assert {"flat", "empty", "market", "weighted", "title"} <= {*encoder.ranged}
    assert encoder.encode(rows_of(3), "same").outside == {}


@pytest.mark.parametrize(("outside", "log"), [("clip", False), ("clip", True), ("keep", False)])
def test_numbers_far_outside_are_taken_as_the_end_of_the_margin(outside, log):
    config = config_of([{"kind": "numeric", "name": "x", "outside": outside, "log": log}])
    encoder = FeatureEncoder.fit(config, pa.table({"x": [0.0, 10.0, 20.0]}), "log")
    high = 20.0 if not log else float(np.log1p(20.0))
    ends = [-high, 2 * high] if not log else [-np.expm1(high), np.expm1(2 * high)]
    x = [*ends, 1e6, -1e6, None]
    features = encoder.encode(pa.table({"x": x}), "new")
    found = features.dense_NF[:, 0]
    assert features.outside["x"].tolist() == [False, False, True, True, False]
    clipped = np.isclose(found[[1, 0]], found[[2, 3]]).tolist()
    assert clipped == [outside == "clip"] * 2
    assert found[4] == 0


@pytest.mark.parametrize(
    ("outside", "keep"), [("clip", "first"), ("clip", "last"), ("keep", "last")]
)
def test_lists_that_are_summed_are_no_longer_than_training_knows(outside, keep):
    feature = {"kind": "list", "name": "x", "pooling": "sum", "outside": outside}
    feature |= {"keep": keep, "max_length": 50} if keep == "last" else {}
    encoder = FeatureEncoder.fit(config_of([feature]), pa.table({"x": [["a"], list("abcd")]}), "l")
    rows = pa.table({"x": [list("aaaabbb"), list("ab"), list("aaaabbbbcc"), []]})
    features = encoder.encode(rows, "new")
    [(ids_V, offsets)] = features.lists
    assert features.outside["x"].tolist() == [False, False, True, False]
    assert np.diff(offsets).tolist() == [7, 2, 7 if outside == "clip" else 10, 1]
    if outside == "clip":
        kept = list("aaaabbbbcc")[-7 if keep == "last" else 0 :][:7]
        wide = encoder.encode(pa.table({"x": [kept]}), "x")
        assert ids_V[9:16].tolist() == wide.lists[0][0].tolist()
    mean = FeatureEncoder.fit(config_of([{"kind": "list", "name": "x"}]), rows, "log")
    assert len(mean.encode(pa.table({"x": [["a"] * 99]}), "new").lists[0][0]) == 99


def test_values_of_parts_that_training_never_had_share_the_row_of_unseen_ids():
    config = config_of([{"kind": "datetime", "name": "at", "parts": ["hour"], "cyclic": True}])
    encoder = FeatureEncoder.fit(config, pa.table({"at": [SMALL, SMALL + timedelta(hours=6)]}), "x")
    features = encoder.encode(pa.table({"at": [SMALL, LARGE, None]}), "new")
    assert features.ids_NC[:, 0].tolist() == [2, 1, 0]
    angle = 2 * np.pi * 5 / 24
    np.testing.assert_allclose(features.dense_NF[1], [np.sin(angle), np.cos(angle)], rtol=1e-6)


def test_a_run_that_goes_on_learns_of_what_has_come_alive():
    config = config_of()
    monday = FeatureEncoder.fit(config, rows_of(12), "log")
    again = extend_encoder(FeatureEncoder.fit(config, rows_of(20), "log"), monday, "log")
    for section in ("numeric", "vectors", "constants", "seen_ids", "seen_weights"):
        assert again.rules[section] == monday.rules[section], "nothing is new"
    table = rows_of(12)
    for name, cells in {"flat": np.arange(12.0), "market": ["de", "fr"] * 6}.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(cells))
    tuesday = FeatureEncoder.fit(config, table, "log")
    extended = extend_encoder(tuesday, monday, "log")
    assert extended.numeric["flat"] == replace(tuesday.numeric["flat"], seen=(0.0, 11.0))
    assert extended.numeric["empty"] == monday.numeric["empty"]
    assert set(monday.constants) - set(extended.constants) == {"market", "crossed"}
    assert extended.rules["held_columns"]["crossed"] == {"no_id": None}
    # What varied once has weights that have learnt: it stays as it was
    back = extend_encoder(FeatureEncoder.fit(config, rows_of(12), "log"), tuesday, "log")
    assert back.numeric["flat"] == tuesday.numeric["flat"]
    assert "market" not in back.constants

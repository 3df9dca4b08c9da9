"""An encoder fitted chunk by chunk is the encoder fitted on the whole table, to the bit."""

import datetime
import decimal
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import NumericFeature, config_from_dict
from mmoe.datasets.features.encoder import EncoderFit, FeatureEncoder, extend_encoder
from mmoe.datasets.features.fit_numbers import Moments, Quantiles, bucket_edges
from mmoe.datasets.features.id_map import CountFit
from mmoe.datasets.features.numeric import NumberFit, NumericRule
from mmoe.datasets.values import text
from mmoe.datasets.values.text import TextKind, as_settled
from tests.small_configs import click_config


def assert_chunks_do_not_matter(config, table, sizes):
    whole = FeatureEncoder.fit(config, table, "x")
    for size in sizes:
        fit = EncoderFit(config, "x")
        for start in range(0, table.num_rows, size):
            fit.add(table.slice(start, size))
        chunked = FeatureEncoder.of(fit)
        assert chunked.numeric == whole.numeric
        assert chunked.ids.keys() == whole.ids.keys()
        for name, one in chunked.ids.items():
            other = whole.ids[name]
            assert one.kind == other.kind
            assert one.num_rows == other.num_rows
            if hasattr(one, "keys"):
                assert one.keys.equals(other.keys)
                np.testing.assert_array_equal(one.counts, other.counts)


IDS = {
    "whole": [7, 3, 7, None, 2**40, 3, 3],
    "big": pa.array([2**63 + 1, 3, 3, None, 5, 3, 1], pa.uint64()),
    "floats": [1.0, 2.0, 1.0, 2.0, float("nan"), None, 2.5],
    "words": ["a", "7", "07", "", None, "a", "7"],
    "flags": [True, None, False, True, True, True, None],
    "days": [datetime.date(2024, 1, d) for d in (1, 2, 1, 3, 3, 3, 1)],
    "money": [decimal.Decimal(x) for x in ("1.00", "1.50", "1.00", "2.00", "7.25", "1.00", "0.50")],
    "moments": pa.array([0, 1, 0, 1, 5, 5, 5], pa.timestamp("ms")),
    "bytes": [b"a", b"\xff", b"a", None, b"b", b"b", b"b"],
}


@pytest.mark.parametrize("encoding", ["vocabulary", "hash"])
def test_ids_of_every_type(encoding):
    for name, values in IDS.items():
        config = click_config({"kind": "categorical", "name": name, "encoding": encoding})
        assert_chunks_do_not_matter(config, pa.table({name: values}), (1, 3))


def test_lists_and_shared_tables():
    config = click_config(
        {"kind": "list", "name": "tags", "table": "t"},
        {"kind": "list", "name": "codes", "encoding": "hash"},
        {"kind": "categorical", "name": "tag", "table": "t"},
        tables=[{"name": "t", "min_count": 2}],
    )
    table = pa.table(
        {
            "tags": [["1", "2"], None, ["2", None], [], ["3"]],
            "codes": ["1|2", "1.0", "", None, "3"],
            "tag": ["1", "2", "9", "9", None],
        }
    )
    assert_chunks_do_not_matter(config, table, (1, 2, 4))


def test_numbers_over_many_blocks():
    rng = np.random.default_rng(0)
    numbers = rng.lognormal(3, 2, 30_000)
    numbers[rng.random(30_000) < 0.1] = np.nan
    features = [
        {"kind": "numeric", "name": name, "column": "x", "log": log, "buckets": 20, "pieces": 16}
        for name, log in (("plain", False), ("logged", True))
    ]
    config, table = click_config(*features), pa.table({"x": numbers})
    assert_chunks_do_not_matter(config, table, (999, 8192, 20_000))
    rule = NumericRule.fit(NumericFeature(name="x"), numbers)
    assert rule.mean == pytest.approx(np.nanmean(numbers), rel=1e-13)
    assert rule.deviation == pytest.approx(np.nanstd(numbers), rel=1e-13)
    fits = [NumberFit(NumericFeature(name="x", pieces=16), sample=1024) for _ in range(2)]
    fits[0].add(numbers)
    for chunk in np.split(numbers, 40):
        fits[1].add(chunk)
    assert fits[0].finish() == fits[1].finish()


def test_moments_of_extreme_numbers():
    values = np.random.default_rng(0).uniform(-1, 1, 20_000)
    for scale in (1e308, 1e-300, 1.0):
        moments = Moments()
        moments.add(values * scale)
        mean, deviation = moments.finish()
        assert mean / scale == pytest.approx(values.mean(), rel=1e-9)
        assert deviation / scale == pytest.approx(values.std(), rel=1e-9)
    values = 1e9 + np.tile([0.0, 1e-3], 20_000)
    moments = Moments()
    moments.add(values)
    assert moments.finish()[1] == pytest.approx(values.std(), rel=1e-4)


def test_a_sample_of_quantiles_is_uniform_and_independent_of_chunks():
    values = np.arange(100_000.0)
    edges = []
    for size in (100_000, 7_777, 1_000):
        quantiles = Quantiles(size=4096, distinct=10)
        for start in range(0, len(values), size):
            quantiles.add(values[start : start + size])
        edges.append(quantiles.edges(10))
    assert edges[0] == edges[1] == edges[2]
    np.testing.assert_allclose(edges[0], np.arange(1, 10) * 10_000, atol=3_000)


def edges_of(values, buckets, chunk=10**6):
    quantiles = Quantiles(size=1 << 14, distinct=buckets)
    for start in range(0, len(values), chunk):
        quantiles.add(values[start : start + chunk])
    return quantiles.edges(buckets)


def test_a_value_of_most_rows_leaves_the_buckets_to_the_others():
    gains = np.where(np.arange(1000) < 920, 0.0, np.arange(1000) - 900.0)  # 0, and 20 to 99
    edges = edges_of(np.random.default_rng(0).permutation(gains), 9)
    assert edges == (0.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0)
    values = np.concatenate([np.arange(-50.0, 0), np.full(900, 7.0), np.arange(8.0, 58)])
    assert edges_of(values, 5) == (-25.0, -1.0, 7.0, 33.0)
    # Too few buckets for both sides: the smaller one goes with the value
    assert edges_of(values, 2) == (-1.0,)
    assert edges_of(-values, 2) == (-8.0,)
    for rows in ([0, 5, 0, 0, 5, 5, 0], [0] * 7):  # values without rows, as of a rare label
        values, counts = np.arange(7.0), np.array(rows)
        bucket = np.searchsorted(bucket_edges(values, counts, 6), values)
        assert bucket.max() < 6
        assert all((bucket == bucket[i]).sum() == 1 for i in np.flatnonzero(counts))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_buckets_are_never_more_than_asked_and_heavy_values_have_their_own(data):
    seed, buckets = data.draw(st.integers(0, 10**6)), data.draw(st.integers(2, 30))
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(60, rng.uniform(0.02, 1)))
    values = rng.choice(60, 4000, p=share) * 1.5
    edges = edges_of(values, buckets)
    assert edges == edges_of(values, buckets, chunk=777)
    distinct, counts = np.unique(values, return_counts=True)
    bucket = np.searchsorted(edges, distinct)
    assert bucket.max() < buckets
    heavy = counts * buckets > len(values)
    runs = np.count_nonzero(np.diff(heavy, prepend=True) & ~heavy)
    if heavy.sum() + runs <= buckets:  # enough for what lies between them
        assert all((bucket == bucket[i]).sum() == 1 for i in np.flatnonzero(heavy))


def test_rare_values_of_a_sampled_column_still_have_a_bucket():
    numbers = np.zeros(50_000)
    numbers[17] = 3.0
    fit = NumberFit(NumericFeature(name="x", buckets=4), sample=64)
    fit.add(numbers)
    assert fit.finish().edges == (0.0,)


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(
        st.sampled_from(
            ["1", "007", "1.5", "1e3", "NA", "", None, "true", "False", "x", "-0", "nan", "2.0",
             "9007199254740993", "92233720368547758070", "0x1F", "inf", "1e20"]
        ),
        max_size=6,
    ),
    cut=st.integers(0, 6),
)  # fmt: skip
def test_text_settles_alike_in_chunks(values, cut):
    column = pa.chunked_array([pa.array(values, pa.large_string())])
    whole = text.settle(column)
    kind = TextKind()
    kind.add(column[:cut])
    kind.add(column[cut:])
    mine = as_settled(column, kind.type)
    if "nan" in values:
        return  # Arrow itself reads nan, and so may settle before missing words are looked for
    assert mine.type == whole.type
    assert mine.equals(whole)


def test_counts_are_added_up_while_they_grow(monkeypatch):
    monkeypatch.setattr("mmoe.datasets.features.id_map._PENDING", 10)
    fit = CountFit("ids")
    for start in range(0, 100, 5):
        fit.add(pa.chunked_array([pa.array(np.arange(start, start + 20) % 40)]))
        assert len(fit.rows.tables) <= 9
    counts = fit.finish()
    assert sum(counts.counts.to_pylist()) == 400
    assert sorted(counts.values.to_pylist()) == list(range(40))


def _encoder(raw, **columns) -> FeatureEncoder:
    config = config_from_dict(raw)
    return FeatureEncoder.fit(config, pa.table(columns), "log")


def _item(**settings: Any) -> dict[str, Any]:
    return {
        "features": [{"kind": "categorical", "name": "item", **settings}],
        "tasks": [{"name": "click", "label": "click"}],
    }


def test_ids_of_earlier_days_keep_their_rows():
    old, new = _encoder(_item(), item=[7, 7, 8]), _encoder(_item(), item=["9", "x", "7", "x"])
    both = extend_encoder(new, old, "log").ids["item"]
    assert both.keys.to_pylist() == ["7", "8", "x", "9"], "they become text"
    assert both.counts.tolist() == [3, 1, 2, 1]
    back = extend_encoder(old, new, "log").ids["item"]
    assert back.keys.to_pylist() == ["x", "7", "9", "8"]
    old = _encoder(_item(), item=["a"])
    new = _encoder(_item(min_count=2), item=["a", "b", "c", "c"])
    assert extend_encoder(new, old, "log").ids["item"].keys.to_pylist() == ["a", "c"]


def test_scaling_and_buckets_are_kept_and_new_numbers_fitted():
    raw = {**_item(), "features": [{"kind": "numeric", "name": "age", "buckets": 2}]}
    more = {**raw, "features": [*raw["features"], {"kind": "numeric", "name": "price"}]}
    old = _encoder(raw, age=[1.0, 2.0, 3.0])
    new = _encoder(more, age=[10.0, 20.0, 30.0], price=[5.0, 6.0, 7.0])
    both = extend_encoder(new, old, "log")
    assert both.numeric["age"] == replace(old.numeric["age"], seen=(1.0, 30.0))
    assert both.numeric["price"] == new.numeric["price"]


def test_hashed_ids_of_another_kind_are_refused():
    raw = _item(encoding="hash", hash_size=10)
    old, new = _encoder(raw, item=[7, 8]), _encoder(raw, item=["x", "y"])
    with pytest.raises(ValueError, match=r"log: column 'item' \(of feature 'item'\) holds text ids,"
                       r" but int ids in the run .* they hash differently"):  # fmt: skip
        extend_encoder(new, old, "log")


def test_a_vocabulary_beyond_max_rows_is_refused():
    with pytest.raises(ValueError, match=r"column 'item' \(of feature 'item'\) has 3 ids that were "
                       r"seen at least 1 time\(s\), but max_rows is 2; set max_rows: 3 or more, "
                       r"min_count: 3 \(keeps 1 ids\), or encoding: hash"):  # fmt: skip
        _encoder(_item(max_rows=2), item=["a", "a", "a", "b", "b", "c", "c"])
    old = _encoder(_item(max_rows=3), item=["a", "b"])
    new = _encoder(_item(max_rows=3), item=["c", "d"])
    with pytest.raises(ValueError, match=r"with the ids of earlier days, has 4 ids, but max_rows "
                       r"is 3; set max_rows: 4 or more, or a higher min_count"):  # fmt: skip
        extend_encoder(new, old, "log")
    assert len(_encoder(_item(max_rows=2), item=["a", "b"]).ids["item"].keys) == 2

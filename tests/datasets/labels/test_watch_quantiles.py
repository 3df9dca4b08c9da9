"""Quantiles of watch time within durations: there and back, in chunks, stored, continued."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from mmoe.datasets.labels import targets
from mmoe.datasets.labels.maturity import maturity_of
from mmoe.datasets.labels.targets import WATCH_QUANTILES, WatchQuantiles, WatchQuantilesFit
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.projection import required_columns

RNG = np.random.default_rng(0)
DURATION = RNG.choice([10.0, 20.0, 40.0, 80.0, 160.0], 2000)
WATCH = np.round(DURATION * RNG.random(2000), 1)
CONFIG = config_from_dict({
    "features": [{"kind": "numeric", "name": "x"}],
    "tasks": [
        {"name": "seen", "label": "watch", "kind": "d2q", "duration": "seconds", "groups": 4},
        {"name": "long", "label": "watch > 30"},
    ],
    "training": {"monitor": "long.auc"},
})  # fmt: skip
LOG = pa.table({"x": RNG.normal(size=2000), "watch": WATCH, "seconds": DURATION})


def test_a_quantile_is_the_mean_rank_within_the_group():
    table = WatchQuantiles.fit(WATCH, DURATION, groups=5)
    assert table.edges.tolist() == [10, 20, 40, 80]
    found = table.quantiles(WATCH, DURATION)
    for seconds in np.unique(DURATION):
        mine = seconds == DURATION
        ranks = stats.rankdata(WATCH[mine])  # ties share their mean
        np.testing.assert_allclose(found[mine], (ranks - 0.5) / mine.sum())


def test_there_and_back():
    table = WatchQuantiles.fit(WATCH, DURATION, groups=5)
    again = table.watch(table.quantiles(WATCH, DURATION), DURATION)
    np.testing.assert_allclose(again, WATCH, atol=0.2)  # ties, within a step
    assert table.watch(np.array([0.0, 1.0]), np.array([10.0, 1e9])).tolist() == [
        WATCH[DURATION == 10].min(),
        WATCH[DURATION == 160].max(),
    ]


def test_groups_have_about_as_many_rows_each():
    watch, duration = RNG.exponential(9, (2, 30_000))
    table = WatchQuantiles.fit(watch, duration, groups=30)
    counts = np.bincount(np.searchsorted(table.edges, duration, side="left"))
    assert len(counts) == 30
    assert counts.min() > 990
    assert all(len(knots) <= targets.KNOTS for knots in table.knots)
    assert len(WatchQuantiles.fit(WATCH, np.full(2000, 7.0), groups=30).knots) == 1
    often = np.where(RNG.random(2000) < 0.3, 7.0, RNG.exponential(9, 2000))
    table = WatchQuantiles.fit(WATCH, often, groups=10)
    assert 7.0 in table.edges
    assert max(map(len, table.knots)) == (often == 7).sum()


@pytest.mark.parametrize("most", [100, 10_000])
def test_chunks_play_no_part(monkeypatch, most):
    monkeypatch.setattr(targets, "SAMPLE", most)
    found = []
    for size in (2000, 300, 7):
        fit = WatchQuantilesFit(CONFIG, "log")
        for start in range(0, 2000, size):
            fit.add(LOG.slice(start, size))
        found.append(fit.finish()["seen"])
    for other in found[1:]:
        assert np.array_equal(found[0].edges, other.edges)
        assert all(map(np.array_equal, found[0].knots, other.knots))
    assert sum(map(len, found[0].knots)) == min(most, 2000)


def test_labels_stay_seconds_and_targets_are_quantiles():
    encoder = FeatureEncoder.fit(CONFIG, LOG, "log")
    data = BatchSource.of_table(LOG, encoder, "log", CONFIG).held
    expected = encoder.rules[WATCH_QUANTILES]["seen"].quantiles(
        WATCH.astype(np.float32).astype(np.float64), DURATION
    )
    assert np.array_equal(data.labels.labels_NT[:, 0], WATCH.astype(np.float32))
    assert np.array_equal(data.labels.targets_NT[:, 0], expected.astype(np.float32))
    assert np.array_equal(data.labels.targets_NT[:, 1], data.labels.labels_NT[:, 1])
    batch = data.rows(100, 400).batch(np.array([5, 2]), pad_to=4)
    assert np.array_equal(batch.labels_BT[:2].numpy(), data.labels.targets_NT[[105, 102]])


def test_stored_and_read(tmp_path):
    encoder = FeatureEncoder.fit(CONFIG, LOG, "log")
    encoder.save(tmp_path)
    read = FeatureEncoder.load(tmp_path)
    one, two = (each.rules[WATCH_QUANTILES]["seen"] for each in (encoder, read))
    assert np.array_equal(one.edges, two.edges)
    assert all(map(np.array_equal, one.knots, two.knots))
    assert encoder.fingerprint() == read.fingerprint()
    assert required_columns(read.config, labels=False) == ["x", "seconds"]


def test_a_continued_run_keeps_them():
    monday, tuesday = (
        FeatureEncoder.fit(CONFIG, LOG[a:b], "log") for a, b in ((0, 900), (900, 2000))
    )
    kept = extend_encoder(tuesday, monday, "log").rules[WATCH_QUANTILES]["seen"]
    assert kept is monday.rules[WATCH_QUANTILES]["seen"]


@pytest.mark.parametrize(("value", "came"), [(0.0, "0"), (-1.0, "-1"), (None, "empty")])
def test_a_duration_that_is_none_is_refused_by_its_row(value, came):
    durations = DURATION.tolist()
    durations[41] = value
    table = LOG.set_column(2, "seconds", pa.array(durations))
    encoder = FeatureEncoder.fit(CONFIG, LOG, "log")
    message = rf"log: row 42: column 'seconds' \(duration of task 'seen'\) is {came}, expected"
    for read in (encoder.encode, lambda t, o: FeatureEncoder.fit(CONFIG, t, o)):
        with pytest.raises(ValueError, match=message):
            read(table, "log")


@pytest.mark.parametrize("chunks", [1, 3])
def test_young_rows_teach_nothing_wherever_chunks_are_cut(chunks):
    raw = CONFIG.model_dump()
    raw["tasks"][0]["matures_after"] = "7d"
    raw["data"]["time"] = {"column": "at"}
    config = config_from_dict(raw)
    day = np.arange(2000) // 100
    log = LOG.append_column("at", pa.array(np.datetime64("2024-01-01", "s") + day * 86_400))
    maturity = maturity_of(config, [(log, "log")])
    fit = WatchQuantilesFit(config, "log", maturity)
    for first in range(0, 2000, 2000 // chunks + 1):
        fit.add(log.slice(first, 2000 // chunks + 1))
    old = day <= 19 - 7
    expected = WatchQuantiles.fit(WATCH[old].astype(np.float32), DURATION[old], groups=4)
    for mine, theirs in zip(fit.finish()["seen"].knots, expected.knots, strict=True):
        np.testing.assert_allclose(mine, theirs)

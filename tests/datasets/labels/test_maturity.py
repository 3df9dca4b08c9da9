"""Labels of young rows: masked exactly at the boundary, or weighted so that nothing is biased."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats

from mmoe.config import config_from_dict
from mmoe.datasets import encode_labels
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from mmoe.datasets.labels import watch_quantiles
from mmoe.datasets.labels.encode import with_curves
from mmoe.datasets.labels.maturity import (
    LEAST_SHARE,
    DelayCurve,
    DelayFit,
    Maturity,
    maturity_of,
    moment_text,
    row_times,
)
from mmoe.datasets.labels.watch_quantiles import WATCH_QUANTILES, WatchQuantiles, WatchQuantilesFit
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.projection import required_columns
from mmoe.tasks import multi_task_loss

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
START = np.datetime64("2024-01-01", "us")


def config(*tasks, time=None, **data):
    return config_from_dict(
        {
            "data": {"time": {"column": "at", **(time or {})}, **data},
            "features": [{"kind": "numeric", "name": "x"}],
            "tasks": [{"name": "buy", "label": "buy", "matures_after": "1d"}]
            if not tasks
            else list(tasks),
        }
    )


def moments(*hours):
    return START + (np.array(hours) * HOUR).astype(np.int64)


def test_a_row_as_old_as_the_window_counts_and_a_younger_one_does_not():
    at = np.array([START, START + HOUR, START + HOUR + np.timedelta64(1, "us"), START + 25 * HOUR])
    log = pa.table({"at": at, "buy": [1, 0, 1, 0]})
    labels = encode_labels(config(), log, "log")
    assert labels.observed_NT[:, 0].tolist() == [True, True, False, False]
    assert labels.labels_NT[:, 0].tolist() == [1, 0, 0, 0]  # an early purchase is masked as well
    assert labels.young_NT[:, 0].tolist() == [False, False, True, True]


def test_labels_are_as_of_the_moment_that_is_given():
    log = pa.table({"at": moments(0, 12, 24), "buy": [1, 0, 1]})
    for as_of, observed in (
        ("2024-01-02", [True, False, False]),
        ("2024-01-03", [True, True, True]),
        ("2024-01-02T12:00", [True, True, False]),
        ("2024-01-02T13:00+01:00", [True, True, False]),
    ):
        labels = encode_labels(config(time={"as_of": as_of}), log, "log")
        assert labels.observed_NT[:, 0].tolist() == observed
    log = pa.table({"at": moments(0, 30, 30), "buy": [1, None, 0]})
    young_N = encode_labels(config(), log, "log").young_NT[:, 0]
    assert young_N.tolist() == [False, False, True], "a missing label is not masked"


def test_tasks_have_windows_of_their_own_and_conditions_go_with_them():
    tasks = [
        {"name": "click", "label": "click", "matures_after": "1h"},
        {"name": "buy", "label": "buy", "observed_when": "click", "matures_after": "10h"},
        {"name": "stars", "label": "stars", "kind": "regression", "matures_after": "20h"},
        {"name": "like", "label": "like"},
    ]
    log = pa.table(
        {
            "at": moments(0, 10, 15, 19.5, 20),
            "click": [1, 1, 1, 1, 0],
            "buy": [1, 1, 1, 1, 0],
            "stars": [5, 4, 3, 2, 1],
            "like": [1, 0, 1, 0, 1],
        }
    )
    labels = encode_labels(config(*tasks), log, "log")
    assert labels.observed_NT.T.tolist() == [
        [True, True, True, False, False],
        [True, True, False, False, False],
        [True, False, False, False, False],
        [True] * 5,
    ]
    # A purchase is masked where a click is known: the click's own window hides the rest
    assert labels.young_NT.sum(0).tolist() == [2, 1, 4, 0]


def test_times_of_every_kind_are_one():
    for column, time in (
        (moments(0, 30), {}),
        (pa.array(["2024-01-01T00:00:00", "2024-01-02T06:00:00Z"]), {}),
        (pa.array([1704067200, 1704175200]), {}),
        (pa.array([1704067200.0, 1704175200.0]), {}),
        (pa.array([1704067200_000, 1704175200_000]), {}),
        (pa.array(["1704067200", "1704175200"]), {"unit": "s"}),
        (pa.array(["1704067200", "1704175200"]), {}),
        (pa.array(["01.01.2024 00:00", "02.01.2024 06:00"]), {"format": "%d.%m.%Y %H:%M"}),
    ):
        made = config(time=time).data.row_time
        found = row_times(pa.table({"at": column}), made, "log")
        assert found.tolist() == [START.astype(int), START.astype(int) + 30 * HOUR]


@pytest.mark.parametrize(("column", "time", "told"), [
    (None, {}, r"log: .*no column 'at'.*data.time"),
    (["2024-01-01", None], {}, r"log: row 2: column 'at' \(of data.time\) is empty"),
    (["2024-01-01", "soon"], {}, r"log: row 2: column 'at' \(of data.time\) is 'soon'"),
    ([True, False], {}, r"column 'at' \(of data.time\) holds bool, expected timestamps"),
    ([1, 2], {}, r"holds 1 to 2, .*set data.time.unit"),
    ([20240101, 20240105], {}, r"or data.time.format, such as %Y%m%d"),
    (["2024-01-01", "2024-01-02"], {"unit": "s"}, "as data.time has unit: s"),
])  # fmt: skip
def test_what_is_no_time_is_named(column, time, told):
    rows = {"buy": [0, 1]} | ({} if column is None else {"at": column})
    with pytest.raises(ValueError, match=told) as error:
        encode_labels(config(time=time), pa.table(rows), "log")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("hours", "buy", "time", "told"), [
    ((0, 23), [1, 0], {}, r"no row is as old as 1d \(matures_after of task 'buy'\)"),
    ((0, 20, 30), [None, 1, 0], {}, "no label left to train on: all 2 are of rows younger"),
    ((0, 1, 30), [0, 0, 1], {}, "without the 1 of rows younger than 1d"),
    ((0, 48), [1, 0], {"as_of": "2023-12-31"},
     r"begins with 2024-01-01T00:00:00, after as_of \(2023-1"),
])  # fmt: skip
def test_windows_that_leave_nothing_to_train_on_are_refused(hours, buy, time, told):
    log = pa.table({"at": moments(*hours), "buy": buy})
    with pytest.raises(ValueError, match=told):
        encode_labels(config(time=time), log, "log", training=True)
    if hours == (0, 23):  # to evaluate: none counts
        assert not encode_labels(config(), log, "log").observed_NT.any()


def test_the_newest_time_is_that_of_all_tables():
    one, two = (pa.table({"at": moments(*hours)}) for hours in ((0, 30), (50, 40)))
    found = maturity_of(config(), [(one, "a"), (two, "b")])
    assert moment_text(found.as_of) == "2024-01-03T02:00:00"
    assert maturity_of(config(), [(one, "a")], newest=found.as_of) == found


def test_a_task_without_an_old_label_is_left_where_another_has_some():
    """As on the last days of a log that a walk goes through."""
    log = pa.table({"at": moments(0, 20), "buy": [1, 0], "click": [1, 0]})
    buy = {"name": "buy", "label": "buy", "matures_after": "1d"}
    both = config({"name": "click", "label": "click"}, buy)
    (moment,) = [maturity_of(both, [(log, "log")]).as_of]
    young = Maturity(as_of=moment, leaves_young=True)
    labels = encode_labels(both, log, "log", training=True, maturity=young)
    assert labels.observed_NT.sum(axis=0).tolist() == [2, 0]
    with pytest.raises(ValueError, match="no label left to train on"):
        encode_labels(config(), log, "log", training=True, maturity=young)


# ---- young rows that count

WINDOW = 7 * DAY
WEIGHTED = {
    "name": "buy", "label": "buy", "matures_after": "7d", "immature": "weight",
    "happened_at": "bought_at",
}  # fmt: skip


def drawn(rng, rows, scale=2.0):
    """A log of 30 days as it is at their end; final labels, and the rows' ages in days."""
    x = rng.normal(size=rows)
    truth = 1 / (1 + np.exp(1 - 1.5 * x))
    day = rng.random(rows) * 30
    final = rng.random(rows) < truth
    # Exponential, within the window: its distribution function turned round
    delay = -scale * np.log1p(-rng.random(rows) * -np.expm1(-7 / scale))
    known = final & (day + delay <= 30)
    at = START + (day * DAY).astype(np.int64)
    log = pa.table(
        {
            "at": at,
            "x": x,
            "buy": known.astype(int),
            "bought_at": pa.array(at + (delay * DAY).astype(np.int64), mask=~known),
        }
    )
    return log, final, 30 - day


def exponential(days, scale=2.0):
    return np.expm1(-days / scale) / np.expm1(-7 / scale)


@pytest.fixture(name="late", scope="module")
def _late():
    made = config(WEIGHTED, time={"as_of": "2024-01-31"})
    return made, Maturity(as_of=int((START + 30 * DAY).astype(int)))


def test_the_share_of_events_by_an_age_is_found_though_young_rows_show_short_delays_alone(late):
    made, maturity = late
    log, _, _ = drawn(np.random.default_rng(0), 60_000)
    whole = with_curves(made, maturity, [log], "log").curves["buy"]
    days = np.array([0.5, 1, 2, 3, 5, 6.5])
    found = whole.at((days * DAY).astype(np.int64))
    assert found == pytest.approx(exponential(days), abs=0.012)
    # The delays that are there, without their rows' ages, say too much comes soon
    known = log.filter(log["bought_at"].is_valid())
    delays = (known["bought_at"].to_numpy() - known["at"].to_numpy()) / np.timedelta64(1, "D")
    assert (delays < 1).mean() > exponential(1.0) + 0.01
    parts = with_curves(made, maturity, [log[:5], log[5:900], log[900:]], "log").curves["buy"]
    assert np.array_equal(whole.shares_J, parts.shares_J)
    # Days of ten times as many clicks change the events of young rows, not their delays
    day = (log["at"].to_numpy() - START) / np.timedelta64(1, "D")
    rush = pa.concat_tables([log] + [log.filter(pa.array(day > 25))] * 9)
    again = with_curves(made, maturity, [rush], "log").curves["buy"]
    assert np.abs(again.shares_J - whole.shares_J).max() < 0.03


def test_ends_of_a_curve_and_events_behind_them(late):
    made, _ = late
    curve = DelayCurve(WINDOW, np.linspace(0.1, 1, 2048))
    ages = np.array([-1, 0, WINDOW - 1, WINDOW, 10 * WINDOW])
    assert curve.at(ages).tolist() == [0.0, pytest.approx(0.1), 1.0, 1.0, 1.0]
    fit = DelayFit(WINDOW)
    fit.add(np.full(30, DAY), np.full(30, 9 * DAY))
    fit.add(np.full(30, 8 * DAY), np.full(30, 9 * DAY))  # late: not of the window
    assert fit.finish("log", "buy").at(np.array([DAY]))[0] == 1.0
    # An event after the moment has not come yet
    at, bought = moments(0, 24 * 26), moments(1, 24 * 29)
    log = pa.table({"at": at, "buy": [1, 1], "bought_at": bought})
    curve = {"buy": DelayCurve(WINDOW, np.full(2048, 0.5))}
    now = Maturity(as_of=int(moments(24 * 28)[0].astype(int)), curves=curve, weighs=True)
    assert encode_labels(made, log, "log", maturity=now).labels_NT[:, 0].tolist() == [1, 0]


def test_the_weighted_loss_is_that_of_final_labels_in_expectation(late):
    """Over many logs, for a model that is wrong in some way; weights of the curve that is found."""
    made, maturity = late
    rng = np.random.default_rng(2)
    off = {"weighted": [], "as logged": [], "negatives weighted": []}
    for _ in range(40):
        log, final, age = drawn(rng, 4_000)
        fitted = with_curves(made, maturity, [log], "log").weighing()
        labels = encode_labels(made, log, "log", maturity=fitted)
        mine = labels.observed_NT[:, 0]
        assert np.array_equal(mine, exponential_share(fitted, age) >= LEAST_SHARE)
        logit = 0.7 * log["x"].to_numpy() + 0.3
        share = np.minimum(exponential(age), 1.0)
        now = log["buy"].to_numpy()
        truth = 1 / (1 + np.exp(1 - 1.5 * log["x"].to_numpy()))
        stays = np.where(now == 1, 1.0, (1 - truth) / (1 - truth * share))
        expected = loss(made, logit, final, mine)
        found = loss(made, logit, labels.labels_NT[:, 0], mine, labels.weights_NT[:, 0])
        off["weighted"].append(found - expected)
        off["as logged"].append(loss(made, logit, now, mine) - expected)
        off["negatives weighted"].append(loss(made, logit, now, mine, stays) - expected)
    errors = {name: np.mean(x) / (np.std(x) / np.sqrt(len(x))) for name, x in off.items()}
    assert abs(errors["weighted"]) < 3.5
    assert abs(errors["as logged"]) > 15
    # Full weight for young events and P(final) for the others leaves out events to come
    assert abs(errors["negatives weighted"]) > 8


def exponential_share(maturity, age):
    return np.where(age < 7, maturity.curves["buy"].at((age * DAY).astype(np.int64)), 1.0)


def loss(made, logit, label, mine, weight=None):
    """Its sum, as training adds it up."""

    def column(values):
        return torch.tensor(np.asarray(values, np.float64)[:, None])

    weight = np.ones(len(logit)) if weight is None else weight
    total, _ = multi_task_loss(
        column(logit), column(label), column(mine).bool(), column(weight), made.tasks,
        out_of_T=torch.ones(1, dtype=torch.float64),
    )  # fmt: skip
    return float(total)


def test_young_rows_count_in_training_alone_and_by_their_age_alone(late):
    made, maturity = late
    log, _, age = drawn(np.random.default_rng(3), 5_000)
    fitted = with_curves(made, maturity, [log], "log")
    judged = encode_labels(made, log, "log", maturity=fitted)
    assert np.array_equal(judged.observed_NT[:, 0], age >= 7)
    assert set(np.unique(judged.labels_NT)) == {0, 1}
    trained = encode_labels(made, log, "log", maturity=fitted.weighing())
    young = trained.observed_NT[:, 0] & (age < 7)
    share = exponential_share(fitted, age)
    now = log["buy"].to_numpy()
    assert trained.labels_NT[young, 0] == pytest.approx((now / share)[young], rel=1e-6)
    assert trained.labels_NT.max() <= 1 / LEAST_SHARE
    mature = trained.mature()
    assert np.array_equal(mature.observed_NT, judged.observed_NT)
    assert np.array_equal(mature.labels_NT, judged.labels_NT)


@pytest.mark.parametrize(("bought", "told"), [
    ([None, None], r"log: row 2: column 'bought_at' \(happened_at of task 'buy'\) is empty"),
    ([None, "2023-01-01"], r"log: row 2: .* is before the row's time"),
    ([None, "2024-01-02"], "only 1 training rows that are older than matures_after"),
    ([None, "then"], r"row 2: column 'bought_at' \(of happened_at of task 'buy'\) is 'then'"),
])  # fmt: skip
def test_events_whose_time_is_wrong_are_named(late, bought, told):
    made, maturity = late
    bought_at = pa.array(bought, pa.string())
    log = pa.table({"at": moments(0, 1), "buy": [0, 1], "bought_at": bought_at})
    with pytest.raises(ValueError, match=told):
        with_curves(made, maturity, [log], "log")


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


def test_a_quantile_is_the_mean_rank_within_the_group_and_leads_back():
    table = WatchQuantiles.fit(WATCH, DURATION, groups=5)
    assert table.edges.tolist() == [10, 20, 40, 80]
    found = table.quantiles(WATCH, DURATION)
    for seconds in np.unique(DURATION):
        mine = seconds == DURATION
        ranks = stats.rankdata(WATCH[mine])  # ties share their mean
        np.testing.assert_allclose(found[mine], (ranks - 0.5) / mine.sum())
    np.testing.assert_allclose(table.watch(found, DURATION), WATCH, atol=0.2)  # ties, within a step
    ends = table.watch(np.array([0.0, 1.0]), np.array([10.0, 1e9])).tolist()
    assert ends == [WATCH[DURATION == 10].min(), WATCH[DURATION == 160].max()]


def test_groups_have_about_as_many_rows_each():
    watch, duration = RNG.exponential(9, (2, 30_000))
    table = WatchQuantiles.fit(watch, duration, groups=30)
    counts = np.bincount(np.searchsorted(table.edges, duration, side="left"))
    assert len(counts) == 30
    assert counts.min() > 990
    assert all(len(knots) <= watch_quantiles.KNOTS for knots in table.knots)
    assert len(WatchQuantiles.fit(WATCH, np.full(2000, 7.0), groups=30).knots) == 1
    often = np.where(RNG.random(2000) < 0.3, 7.0, RNG.exponential(9, 2000))
    table = WatchQuantiles.fit(WATCH, often, groups=10)
    assert 7.0 in table.edges
    assert max(map(len, table.knots)) == (often == 7).sum()


@pytest.mark.parametrize("most", [100, 10_000])
def test_chunks_play_no_part(monkeypatch, most):
    monkeypatch.setattr(watch_quantiles, "SAMPLE", most)
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


def test_quantiles_are_stored_and_kept_by_a_continued_run(tmp_path):
    encoder = FeatureEncoder.fit(CONFIG, LOG, "log")
    encoder.save(tmp_path)
    read = FeatureEncoder.load(tmp_path)
    one, two = (each.rules[WATCH_QUANTILES]["seen"] for each in (encoder, read))
    assert np.array_equal(one.edges, two.edges)
    assert all(map(np.array_equal, one.knots, two.knots))
    assert encoder.fingerprint() == read.fingerprint()
    assert required_columns(read.config, labels=False) == ["x", "seconds"]
    tuesday = FeatureEncoder.fit(CONFIG, LOG[900:], "log")
    kept = extend_encoder(tuesday, encoder, "log").rules[WATCH_QUANTILES]["seen"]
    assert kept is encoder.rules[WATCH_QUANTILES]["seen"]
    for value, came in ((0.0, "0"), (-1.0, "-1"), (None, "empty")):
        durations = DURATION.tolist()
        durations[41] = value
        table = LOG.set_column(2, "seconds", pa.array(durations))
        message = rf"log: row 42: column 'seconds' \(duration of task 'seen'\) is {came}, expected"
        for fit in (encoder.encode, lambda t, o: FeatureEncoder.fit(CONFIG, t, o)):
            with pytest.raises(ValueError, match=message):
                fit(table, "log")


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

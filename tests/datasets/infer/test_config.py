import datetime
import json
import string
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import TaskConfig, config_from_dict, load_config
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.readers import read_table
from mmoe.datasets.infer.config import commented_yaml, infer_config, with_requests
from mmoe.datasets.infer.decide import Verdict
from mmoe.datasets.infer.guess_features import InputColumn
from mmoe.datasets.infer.profile import ColumnProfile, VectorFacts
from mmoe.datasets.infer.sizes import Log, model_for, training_for
from mmoe.datasets.infer.told import Told
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.rows.sources import load_splits
from tests.datasets.infer.ordinary_log import NASTY, ROWS, infer, log
from tests.datasets.request_log import log_of_requests


def feature(config, name):
    return next(feature for feature in config.features if feature.name == name)


def test_an_ordinary_log():
    config, reasons, text = infer(log(), "click", "buy")
    assert {f.name: f.kind for f in config.features} == {
        "user_id": "categorical",
        "price": "numeric",
        "shop": "categorical",
    }
    assert feature(config, "price").log is True
    assert (feature(config, "price").buckets, feature(config, "price").pieces) == (0, 16)
    assert [task.label for task in config.tasks] == ["click", "buy"]
    assert config.data.split.by == "random"
    assert config.data.group_column == "user_id"
    assert reasons.consequences == {"buy": "click"}
    assert "# buy is 0 except where click is 1: with `observed_when: click` it is learned" in text
    assert config.data.path == "log.csv"


def test_labels_that_are_0_or_null_without_an_event():
    table = log()
    click, buy = (table[name].to_numpy() for name in ("click", "buy"))
    view = np.where(np.arange(ROWS) % 3 == 0, 1, click)
    seconds = np.where(click == 1, np.arange(ROWS) % 97 + 1.5, 0.0)
    table = table.append_column("view", pa.array(view))
    table = table.append_column("seconds", pa.array(seconds))
    _, reasons, text = infer(table, "view", "click", "buy", "seconds")
    assert reasons.consequences == {"click": "view", "buy": "click", "seconds": "click"}
    assert "# buy is 0 except where click is 1" in text, "of two events the nearer one"
    assert "# seconds is 0 except where click is 1: with `observed_when: click`" in text
    masked = pa.array(buy, mask=click == 0)
    table = log().set_column(log().column_names.index("buy"), "buy", masked)
    _, reasons, text = infer(table, "click", "buy")
    assert not reasons.consequences and "observed_when" not in text


@pytest.mark.parametrize("sampled", [False, True])
def test_keys_of_requests_which_hardly_come_back_are_left_out(sampled):
    rng = np.random.default_rng(3)
    rows = 12_000
    table = pa.table(
        {
            "request_id": [f"r{n}" for n in rng.integers(0, rows // 4, rows)],
            "x": rng.normal(size=rows),
            "click": rng.integers(0, 2, rows),
        }
    )
    config, reasons = infer_config(table, ["click"], rows=10 * rows if sampled else rows)
    left_out = dict(reasons.left_out).get("request_id", "")
    assert left_out.startswith("ids of which none comes 20 times (at most 1") != sampled
    assert ("request_id" in {feature.name for feature in config.features}) == sampled


def left_out(reasons):
    return dict(reasons.left_out)


def test_what_is_left_out_and_why():
    rng = np.random.default_rng(1)
    table = log()
    click = table["click"].to_numpy()
    extra = {
        "row": np.arange(ROWS)[::-1],
        "uuid": [f"{i:032x}" for i in range(ROWS)],
        "constant": ["same"] * ROWS,
        "empty": pa.array([None] * ROWS, pa.string()),
        "leak": click + rng.normal(0, 0.05, ROWS),
        "inverse": 1.0 - click + rng.normal(0, 0.05, ROWS),
        "word_leak": np.where(click == 1, "seen", "not"),
        "gap_leak": pa.array(np.where(click == 1, rng.normal(size=ROWS), np.nan), from_pandas=True),
        "later": click * (rng.random(ROWS) < 0.5),
        "endless": np.where(np.arange(ROWS) == 5, np.inf, 1.5 + np.arange(ROWS) % 7),
        "tenure": pa.array(np.arange(ROWS) % 1440 * 60).cast(pa.duration("s")),
        "birthday": [datetime.date(1990, 1, 1 + i % 31) for i in range(ROWS)],
        "nested": [{"a": 1}] * ROWS,
        "nested_list": [[{"a": 1}]] * ROWS,
        "list_of_lists": [[[1], [2]]] * ROWS,
        "deep": [[[[n % 3]]] for n in range(ROWS)],
    }  # fmt: skip
    config, reasons, text = infer(log(**extra))
    why = left_out(reasons)
    assert set(why) == {*extra, "buy"}
    assert why["row"] == why["uuid"] == "its value is different in every row"
    assert why["constant"] == "the same value in every row"
    assert why["empty"] == "empty in every row"
    for name in ("leak", "inverse", "word_leak", "gap_leak"):
        assert why[name].startswith("alone it predicts 'click' with AUC 0.99") or "1.0" in why[name]
    assert "seems to be known only afterwards" in why["later"]
    assert "it holds infinity" in why["endless"]
    assert "a moment in time" in why["birthday"]
    assert "kind: datetime takes its hour" in " ".join(why.values())
    assert "its seconds can be a column" in why["tenure"]
    assert reasons.split.startswith("no column holds each event's time (not 'birthday'); ")
    assert "no column holds times" not in text
    assert infer(log())[1].split.startswith("no column holds times; rows drawn at random")
    for name in ("nested", "nested_list", "list_of_lists", "deep"):
        assert why[name].startswith("neither numbers, text, dates nor lists of them")
    assert "can be columns of their own" in why["nested"]
    assert "#   row: its value is different in every row" in text
    assert config.data.split.by == "random"


@pytest.mark.parametrize("make", [
    lambda i: datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i),
    lambda i: (datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i)).isoformat(),
    lambda i: 1_700_000_000 + i,
    lambda i: (1_700_000_000 + i) * 1000,
    lambda i: 1_700_000_000.5 + i,
    lambda i: datetime.date(2024, 1, 1) + datetime.timedelta(days=i // 100),
    lambda i: int(f"{datetime.date(2024, 1, 1) + datetime.timedelta(days=i // 100):%Y%m%d}"),
    lambda i: i // 3,
], ids=["datetime", "iso", "seconds", "ms", "real", "date", "yyyymmdd", "rising"])  # fmt: skip
def test_a_time_column_gives_a_split_by_time(make):
    times = [make(i) for i in range(ROWS)]
    shuffled = [times[i] for i in np.random.default_rng(0).permutation(ROWS)]
    if times[0] == 0:  # such numbers are a time only where they rise down the file
        assert infer(log(event_time=shuffled))[0].data.split.by == "random"
        durations = np.random.default_rng(0).integers(0, 5000, ROWS)
        assert infer(log(watch_time=durations))[0].data.split.by == "random"
    else:
        times = shuffled
    config, reasons, _ = infer(log(event_time=times))
    assert (config.data.split.by, config.data.split.column) == ("time", "event_time")
    rises = times[0] == 0
    assert ("event_time" in left_out(reasons)) == rises
    assert rises or feature(config, "event_time").elapsed
    assert "train on the past, test on the future" in reasons.split


def test_a_time_split_that_leaves_one_class_is_not_made():
    table = log(ts=1_700_000_000 + np.arange(ROWS))
    late = np.where(np.arange(ROWS) > ROWS * 0.9, table["click"].to_numpy(), 0)
    table = table.set_column(table.column_names.index("click"), "click", pa.array(late))
    config, reasons, text = infer(table.drop_columns(["buy"]))
    assert config.data.split.by == "random"
    assert "not by time ('ts' holds times since 1970): 'click' would have one class only" in text
    assert "ts" in left_out(reasons)


def test_nothing_left_to_learn_from():
    table = pa.table({"row": list(range(50)), "click": [0, 1] * 25})
    with pytest.raises(ValueError, match=r"no column is left to learn from \(row: its value"):
        infer_config(table, ["click"], origin="log.csv")


def test_lists_and_integers_are_told_apart():
    rng = np.random.default_rng(0)
    letters = list(string.ascii_lowercase)
    tags = ["|".join(rng.choice(letters, rng.integers(1, 5))) for _ in range(ROWS)]
    seen = ["^".join(map(str, row)) for row in rng.integers(0, 300, (ROWS, 40))]
    assert len(set(seen)) == ROWS, "items come back, texts do not"
    kinds = {
        "list": {
            "tags": tags,
            "commas": [tag.replace("|", ",") for tag in tags],
            "real": [tag.split("|") for tag in tags],
            "seen": seen,
        },
        "categorical": {
            "prices": [f"{i}) $1 - 2, up" for i in rng.integers(0, 7, ROWS)],
            "grade": rng.integers(0, 5, ROWS),
            "item_id": rng.integers(0, 500, ROWS),
            "crc": rng.integers(0, 50, ROWS) * 10**10,
            "gaps": pa.array(rng.integers(0, 4, ROWS), pa.float64(), mask=rng.random(ROWS) < 0.2),
        },
        "numeric": {"num_views": rng.integers(0, 15, ROWS), "views": rng.integers(0, 500, ROWS)},
    }
    session = rng.integers(0, ROWS * 20, ROWS)  # many ids do not look like leaks
    columns = {**kinds["list"], **kinds["categorical"], **kinds["numeric"], "session": session}
    config, reasons, _ = infer(log(**columns))
    assert "ids of which none comes 20 times" in dict(reasons.left_out)["session"]
    found = {f.name: f.kind for f in config.features}
    for kind, columns in kinds.items():
        assert {found[name] for name in columns} == {kind}, kind
    assert feature(config, "commas").separator == ","


def test_any_column_name_works():
    rng = np.random.default_rng(0)
    names = [*NASTY, "Länge (s)", "Größe", "Künstler-Nr"]
    config, _, _ = infer(log(**{name: rng.normal(size=ROWS) for name in names}))
    assert set(names) <= {f.source_column for f in config.features}
    found = {f.name for f in config.features}
    assert len({name.lower() for name in found}) == len(config.features)
    assert {"Lange_s", "Grosse", "Kunstler_Nr"} <= found, "letters without their accents"


@settings(max_examples=8, deadline=None)
@given(
    names=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True),
    rows=st.integers(10, 60),
    seed=st.integers(0, 99),
)
def test_small_files_of_any_columns(names, rows, seed):
    rng = np.random.default_rng(seed)
    makers = [
        lambda: rng.normal(size=rows),
        lambda: rng.integers(0, 4, rows),
        lambda: [f"w{i}" for i in rng.integers(0, 4, rows)],
        lambda: pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.5),
        lambda: rng.integers(0, 2, rows).astype(bool),
    ]
    columns = {name: makers[int(rng.integers(5))]() for name in names}
    label = np.zeros(rows, int)
    label[rng.choice(rows, max(2, rows // 5), replace=False)] = 1
    columns |= {"safe real": rng.normal(size=rows), "y?": label}
    config, _, _ = infer(pa.table(columns), "y?")
    assert config.training.batch_size == 16


def test_fifty_rows_split_with_both_classes():
    rng = np.random.default_rng(0)
    label = np.zeros(50, int)
    label[[3, 40]] = 1
    columns = {"x": rng.normal(size=50), "z": [*"ab"] * 25, "y": label}
    config, reasons, _ = infer(pa.table(columns), "y")
    assert config.model.embedding_dim == 4
    assert "too few rows for both classes" in reasons.split


def test_writing(tmp_path):
    config, reasons = infer_config(log(), ["click"], path="log.csv")
    target = tmp_path / "config.yaml"
    target.write_text(commented_yaml(config, reasons), encoding="utf-8")
    assert load_config(target) == config


SAMPLES = [
    ("hillstrom/hillstrom.csv", ["visit", "spend"]),
    ("samples/ali-ccp/train.csv", ["click", "purchase"]),
    ("samples/aliexpress/train.csv", ["click", "conversion"]),
    ("samples/census-torch-rechub/train.csv", ["income", "marital status"]),
]


@pytest.mark.parametrize(("file", "labels"), SAMPLES)
def test_real_files_from_reading_to_batches(shared_data, tmp_path, file, labels):
    path = shared_data / file
    config, reasons = infer_config(
        read_table(path), labels, path=path, name=path.stem, origin=str(path)
    )
    (tmp_path / "c.yaml").write_text(commented_yaml(config, reasons), encoding="utf-8")
    config = load_config(tmp_path / "c.yaml")
    splits = load_splits(config)
    encoder = FeatureEncoder.fit(config, splits.train, splits.origin)
    for part in (splits.train, splits.validation, splits.test):
        features = encoder.encode(part, splits.origin)
        assert np.isfinite(features.dense_NF).all()
        for column, spec in enumerate(encoder.categorical):
            rows = next(table.num_rows for table in encoder.tables if table.name == spec.table)
            assert features.ids_NC[:, column].max() < rows
    encode_labels(config, splits.train, splits.origin, training=True)


def test_the_hour_of_the_day_is_a_feature_and_no_time():
    rows = 2400  # ten days of a sorted log: few steps back, but the hour starts over every day
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "hour": np.tile(np.repeat(np.arange(24), 10), 10),
            "day": np.repeat(np.arange(10), 240),
            "click": rng.integers(0, 2, rows),
        }
    )
    config, _ = infer_config(table, ["click"])
    assert [feature.name for feature in config.features] == ["hour"]
    assert (config.data.split.by, config.data.split.column) == ("time", "day")


@pytest.mark.parametrize("again", [4])
def test_rows_that_come_twice_are_said_and_counted_once(again, tmp_path, mmoe):
    rng, rows = np.random.default_rng(3), 2_500
    log = pa.table(
        {
            "row": np.arange(rows) * 7 + 3,
            "user": rng.integers(0, 600, rows),
            "price": rng.gamma(2, 5, rows),
            "click": rng.integers(0, 2, rows),
        }
    )
    once, _ = infer_config(log, ["click"])
    twice, reasons = infer_config(pa.concat_tables([log, log.slice(0, again)]), ["click"])
    assert [one.name for one in once.features] == [one.name for one in twice.features]
    assert dict(reasons.left_out)["row"] == "its value is different in every row"
    assert (once.data.repeated_rows, twice.data.repeated_rows) == ("keep", "together")
    pq.write_table(pa.concat_tables([log, log.slice(0, again)]), tmp_path / "log.parquet")
    out = tmp_path / "config.yaml"
    code, said, err = mmoe("init", tmp_path / "log.parquet", "--label", "click", "--out", out)
    assert code == 0, err
    first = (said + err).splitlines()[0]
    assert f"{again:,} of {rows + again:,} rows" in first
    assert "are copies of others; data.repeated_rows: together" in first
    assert load_config(out).data.repeated_rows == "together"
    assert load_splits(load_config(out)).train.num_rows > 0


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(300)


def inferred(log, column="request"):
    told = Told().without(column, log, "log")
    config, reasons = infer_config(log, ["click"], told=told)
    return with_requests(config, reasons, log, column, "log"), reasons


def test_what_is_the_same_inside_requests_is_of_them(log):
    config, reasons = inferred(log)
    levels = {feature.name: feature.asked_level for feature in config.features}
    assert {levels[name] for name in ("user", "age", "history", "seen")} == {"request"}
    assert {levels[name] for name in ("item", "price", "tags")} == {None}
    assert config.data.requests.column == "request" and "request" not in levels
    assert reasons.features["user"].endswith("the same inside each request")
    assert config_from_dict(yaml.safe_load(commented_yaml(config, reasons))) == config
    assert config.data.split.column == "at", "a time that keeps requests whole"
    config, _ = inferred(log.drop_columns(["at"]))
    assert (config.data.split.by, config.data.split.column) == ("random", None)


def test_requests_get_no_trees_which_read_single_rows():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 6000))
    y = (rng.random(6000) < 1 / (1 + np.exp(-2 * np.sign(a * b * c)))).astype(int)
    request, user = np.repeat(np.arange(1500), 4), np.repeat(rng.normal(size=1500), 4)
    log = pa.table({"request": request, "user": user, "a": a, "b": b, "c": c, "click": y})
    alone, _ = infer_config(log.drop_columns(["request"]), ["click"])
    config, reasons = inferred(log)
    assert {one.name for one in alone.features} - {one.name for one in config.features} == {"trees"}
    assert config_from_dict(yaml.safe_load(commented_yaml(config, reasons))) == config


@pytest.mark.parametrize(("column", "message"), [
    ("rquest", r"--request.*did you mean 'request'"),
    ("own", "--request own: never repeats among"),
    ("item", "no feature is the same for all rows of a request"),
])  # fmt: skip
def test_a_column_that_names_no_requests_is_refused(log, column, message):
    rows = log.append_column("own", pa.array(np.arange(len(log))))
    if column == "item":  # by which no other column is told
        rows = log.select(["item", "price", "tags", "click"])
    with pytest.raises(ValueError, match=message):
        inferred(rows, column)


@pytest.mark.parametrize("rows", [900, 14_000, 20_000])
def test_few_rows_get_no_buckets_and_the_loss_as_monitor(rows):
    rng = np.random.default_rng(3)
    table = pa.table({"x": rng.normal(size=rows), "y": rng.integers(0, 2, rows)})
    config, _ = infer_config(table, ["y"])
    few = rows < 15_000
    number = config.features[0]
    assert (number.buckets, number.pieces) == ((0, 16) if few else (20, 48))
    assert config.training.monitor == ("mean.logloss" if few else "mean.auc")
    assert config.training.optimizer.weight_decay == 1.0
    assert config.model.expert.dropout == 0.1
    assert config.training.epochs == (20 if few else 15)
    assert config.model.wide and config.model.interaction.kind == "none"


@pytest.mark.parametrize(("values", "fast"), [(50, False), (400, True)])
def test_many_ids_get_few_and_large_steps(values, fast):
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "item": [f"i{n}" for n in rng.integers(0, values, 20_000)],
            "x": rng.normal(size=20_000),
            "y": rng.integers(0, 2, 20_000),
        }
    )
    training = infer_config(table, ["y"])[0].training
    assert training.epochs == (6 if fast else 15)
    assert training.patience == (1 if fast else 3)
    assert training.optimizer.learning_rate == (0.003 if fast else 0.002)


def test_epochs_are_not_told_apart_by_the_auc_of_few_positives():
    rng = np.random.default_rng(3)
    for positives, monitor in ((800, "logloss"), (2_000, "auc")):
        rare = np.zeros(20_000, int)
        rare[rng.choice(20_000, positives, replace=False)] = 1
        often = rng.integers(0, 2, 20_000)
        table = pa.table({"x": rng.normal(size=20_000), "rare": rare, "often": often})
        training = infer_config(table, ["often", "rare"])[0].training
        assert training.monitor == f"mean.{monitor}"
    few = table.slice(0, 5_000)  # the rarest outcome of a sample is that of all rows
    assert infer_config(few, ["rare"], rows=50_000)[0].training.monitor == "mean.auc"


def test_products_get_more_epochs_and_slower_rows_beside_a_regression():
    """A squared error of fast products grows beyond all bounds in the first epoch."""
    jobs = Log(rows=50_000, ids=90, products=True)
    pay = TaskConfig(name="pay", label="pay", kind="regression")
    training = training_for(jobs, [TaskConfig(name="y", label="y"), pay])
    assert training.embedding_optimizer.learning_rate == 0.1
    training = training_for(jobs, [TaskConfig(name="y", label="y")])
    assert (training.epochs, training.patience) == (12, 6)
    assert training.embedding_optimizer.learning_rate == 0.5
    assert model_for(jobs).interaction.kind == "fm"


VECTOR_ROWS = 60
_RNG = np.random.default_rng(0)
VECTORS = _RNG.normal(size=(VECTOR_ROWS, 5)).round(3).tolist()
IDS = _RNG.integers(0, 9, (VECTOR_ROWS, 5)).tolist()
LABEL = [0, 1, 1] * 20


def _kind(values):
    table = pa.table({"age": _RNG.random(VECTOR_ROWS), "x": values, "click": LABEL})
    config, reasons = infer_config(table, ["click"])
    found = {feature.name: feature for feature in config.features}
    return found["x"].kind if "x" in found else dict(reasons.left_out)["x"]


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("vector", [VECTORS,
                    pa.array(VECTORS, pa.list_(pa.float32(), 5)),
                    [None if row % 9 == 0 else v for row, v in enumerate(VECTORS)],
                    [json.dumps(v) for v in VECTORS],
                    [str(np.array(v)) for v in VECTORS],
                    ["" if row % 9 == 0 else str(tuple(v)) for row, v in enumerate(VECTORS)]]),
        ("list", [IDS,
                  [[float(i) for i in row] for row in IDS],
                  [[f"t{i}" for i in row] for row in IDS],
                  [[0.25, 0.5][: row % 4 % 3] for row in range(VECTOR_ROWS)],
                  [[] for _ in range(VECTOR_ROWS)]]),
    ],
)  # fmt: skip
def test_vectors_and_lists_of_ids_are_told_apart(kind, cells):
    assert [_kind(values) for values in cells] == [kind] * len(cells)


def test_vectors_of_different_lengths_are_left_out_with_a_word():
    ragged = [v[: 2 + row % 3] for row, v in enumerate(VECTORS)]
    assert _kind(ragged) == (
        "lists of real numbers, 2 in row 1, 3 in row 2: vectors need one length; beside a list of "
        "ids they may be its `weights`"
    )
    assert "2 in row 1, 3 in row 2" in _kind([json.dumps(v) for v in ragged])


def test_long_ones_are_projected_where_there_are_rows_to_learn_it_from():
    guessed = []
    for length, rows in ((768, 50_000), (768, 5_000), (16, 50_000)):
        profile = ColumnProfile(name="x", nature="vector", rows=rows, missing=0, distinct=0)
        column = replace(profile, vector=VectorFacts(length))
        guessed.append(InputColumn(column, Verdict("ids"), None).guess("x", one_value=False))
    assert [one.feature.dim for one in guessed] == [32, None, None]
    assert guessed[0].reason == "vectors of 768 numbers; projected to 32"


def test_trees_read_what_no_sum_of_columns_says():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 6000))
    columns = {"a": a, "b": b, "c": c}
    for logit, found in ((2 * np.sign(a * b * c), True), (a + b + c, False)):
        y = (rng.random(6000) < 1 / (1 + np.exp(-logit))).astype(int)
        config, _, _ = infer(pa.table({**columns, "y": y}), "y")
        assert any(one.kind == "trees" for one in config.features) == found
    days = np.datetime64("2024-01-01") + np.arange(6000) // 20
    y = (rng.random(6000) < 1 / (1 + np.exp(-2 * np.sign(a * b * c)))).astype(int)
    config, _, _ = infer(pa.table({**columns, "at": days, "y": y}), "y")
    assert config.data.split.by == "time"
    assert not any(one.kind == "trees" for one in config.features)


def test_many_rows_get_trees_of_fewer_folds_where_these_tell_far_more():
    """Beside a strong sum of columns experts learn the rest; where there is none trees do."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 61_000))
    for strength, folds in ((0.0, [3]), (4.0, [])):
        logit = strength * (a + b) + np.sign(a * b * c)
        y = (rng.random(len(a)) < 1 / (1 + np.exp(-logit))).astype(int)
        config, _, _ = infer(pa.table({"a": a, "b": b, "c": c, "y": y}), "y")
        assert [one.folds for one in config.features if one.kind == "trees"] == folds

"""Scores that were written, measured by labels that came later."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.score import score_files
from mmoe.train import evaluate_run
from mmoe.train.scored import _numbers, evaluate_scored, join_by_key

KEY = ["user", "row"]


@pytest.fixture(scope="module", name="run")
def _run(funnel_config, train_funnel):
    return train_funnel(funnel_config)


@pytest.fixture(name="files")
def _files(run, funnel_table, tmp_path):
    """The night, its scores with their keys, and its labels in another order."""
    night, scores, labels = (tmp_path / name for name in ("night.parquet", "scores", "labels.csv"))
    pq.write_table(funnel_table[3000:], night)
    score_files(run, night, scores, keep=KEY, rows_per_file=512)
    order = np.random.default_rng(2).permutation(1000)
    later = funnel_table[3000:].select([*KEY, "click", "buy"]).take(order)
    pa_csv.write_csv(later, labels)
    return night, scores, labels


def test_metrics_are_those_of_the_rows_with_their_labels(run, files):
    night, scores, labels = files
    found = evaluate_scored(run, str(scores), str(labels), KEY)
    assert found["rows"] == {"joined": 1000, "scored": 1000, "labelled": 1000}
    expected = evaluate_run(run, night)["tasks"]
    assert found["tasks"].keys() == expected.keys()
    for task, metrics in expected.items():
        assert found["tasks"][task] == pytest.approx(metrics, rel=1e-12, nan_ok=True), task


def test_rows_of_one_side_are_left_out_and_counted(run, files, funnel_table, tmp_path):
    night, scores, _ = files
    later = tmp_path / "later.parquet"
    pq.write_table(funnel_table[2900:3600].select([*KEY, "click"]), later)
    found = evaluate_scored(run, str(scores), str(later), KEY)
    assert found["rows"] == {"joined": 600, "scored": 1000, "labelled": 700}
    assert list(found["tasks"]) == ["click"]  # there are no labels of the other
    pq.write_table(funnel_table[3000:3600], night)
    expected = evaluate_run(run, night)["tasks"]["click"]
    assert found["tasks"]["click"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (lambda t: t, ["rov"], r"no column 'rov', which --key needs \(did you mean 'row'\?\)"),
        (lambda t: t.drop_columns(["row"]), KEY, r"later\.parquet: there is no column 'row'"),
        (lambda t: t, ["user"], r"user \d+ is the key of \d+ rows"),
        (
            lambda t: pa.concat_tables([t, t[3:4]]),
            KEY,
            r"later\.parquet: user \d+, row 3003 is the key of 2 rows",
        ),
        (
            lambda t: t.set_column(1, "row", pa.array(range(1000))),
            KEY,
            r"--key user row: no row of .*scores is in .*later\.parquet; the first ones are user",
        ),
        (
            lambda t: t.drop_columns(["click", "buy"]),
            KEY,
            r"later\.parquet: lacks click, which task 'click' is measured by",
        ),
        (lambda t: t, [], "--labels needs --key"),
    ],
)
def test_what_cannot_be_joined(run, files, funnel_table, tmp_path, change, key, message):
    _, scores, _ = files
    path = tmp_path / "later.parquet"
    pq.write_table(change(funnel_table[3000:].select([*KEY, "click", "buy"])), path)
    with pytest.raises(ValueError, match=message):
        evaluate_scored(run, str(scores), str(path), key)


def test_what_holds_no_scores(run, files):
    night, _, labels = files
    with pytest.raises(ValueError, match=r"night\.parquet: has none of the run's predictions"):
        evaluate_scored(run, str(night), str(labels), KEY)


def test_classes_are_read_by_their_names(funnel_config, funnel_table, train_funnel, tmp_path):
    kinds = pa.array([("low", "mid", "high")[n % 3] for n in range(len(funnel_table))])
    table = funnel_table.append_column("kind", kinds)
    classes = ["low", "mid", "high"]
    task = {"name": "kind", "kind": "multiclass", "label": "kind", "classes": classes}
    training = {**funnel_config["training"], "monitor": "kind.accuracy"}
    raw = {**funnel_config, "tasks": [task], "training": training}
    run = train_funnel(raw, table)
    pq.write_table(table[3000:], tmp_path / "night.parquet")
    score_files(run, tmp_path / "night.parquet", tmp_path / "scores", keep=["row"])
    pq.write_table(table.select(["row", "kind"]), tmp_path / "later.parquet")
    files = str(tmp_path / "scores"), str(tmp_path / "later.parquet")
    found = evaluate_scored(run, *files, ["row"])["tasks"]["kind"]
    expected = evaluate_run(run, tmp_path / "night.parquet")["tasks"]["kind"]
    assert "gauc" not in expected or found.pop("gauc") is None
    expected.pop("gauc", None)
    assert found == pytest.approx(expected, rel=1e-6)
    summary = json.loads((tmp_path / "scores" / "_summary.json").read_text())
    assert sum(summary["classes"]["pred_kind"].values()) == pytest.approx(1)


def test_the_command(mmoe, run, files):
    _, scores, labels = files
    asked = ("evaluate", run.path, "--data", scores, "--labels", labels, "--key")
    code, out, err = mmoe(*asked, "user", "row")
    assert code == 0
    assert "1,000 rows have scores and labels" in err
    assert "click" in out
    code, out, _ = mmoe(*asked, "user", "row", "--json", "--quiet")
    assert json.loads(out)["rows"]["joined"] == 1000
    code, _, err = mmoe("evaluate", run.path, "--data", scores, "--key", "user")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.timestamp("s"), pa.string()),
        (pa.date32(), pa.timestamp("s")),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.decimal128(21, 2)),
        (pa.int32(), pa.string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)
def test_keys_of_nearly_the_same_type(ours, theirs):
    first = 1_704_067_200 if "timestamp" in f"{ours}" else 10**12 if "int64" in f"{ours}" else 1_000
    values = pa.array(np.arange(first, first + 500))
    if pa.types.is_date(ours):
        values = values.cast(pa.int32())
    left = pa.table({"k": values.cast(ours), "a": np.arange(500)})
    keys = left["k"].cast(theirs)
    back = np.arange(499, -1, -1)
    right = pa.table({"k": keys.take(pa.array(back)), "b": back})
    found = join_by_key(left, right, ["k"], "one", "other")
    assert found["a"].to_pylist() == found["b"].to_pylist() == list(range(500))


@pytest.mark.parametrize(
    ("values", "message"),
    [([[1], [2]], "holds list<item: int64>"), ([None, None], "holds no value")],
)
def test_keys_that_cannot_be_compared(values, message):
    table = pa.table({"k": values})
    with pytest.raises(ValueError, match=f"one: --key k {message}"):
        join_by_key(table, pa.table({"k": [1, 2]}), ["k"], "one", "other")


def test_classes_of_another_run_are_refused():
    task = config_from_dict(
        {
            "features": [{"kind": "numeric", "name": "x"}],
            "tasks": [{"name": "kind", "kind": "multiclass", "label": "k", "classes": ["a", "b"]}],
            "training": {"monitor": "kind.accuracy"},
        }
    ).tasks[0]
    with pytest.raises(ValueError, match="pred_kind holds 'c', which is no class of the run"):
        _numbers(pa.table({"pred_kind": ["a", "c"]}), "pred_kind", [task], "scores", {})

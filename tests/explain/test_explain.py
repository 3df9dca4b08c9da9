"""`mmoe explain`: numbers, intervals, verdicts, files, the estimator, what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe import MultiTaskRanker
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain import ExplainSettings, explain_run
from mmoe.explain.measures import TaskMetric, harm, verdicts_of, worst
from mmoe.explain.run import summary_lines
from mmoe.metrics import auc_difference_interval
from mmoe.predictor import Predictor, load_predictor
from mmoe.report import explanation_figure
from mmoe.train import train_run
from tests.explain.test_leave_out import _masked

AUC = TaskMetric(key="auc", heading="AUC", form="{:.4f}", higher_is_better=True, relative=False)
RMSE = TaskMetric(key="rmse", heading="RMSE", form="{:.4g}", higher_is_better=False, relative=True)


@pytest.fixture(scope="module")
def log(funnel_table, tmp_path_factory):
    """Most of the rows in a file."""
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    table = funnel_table.append_column("minutes", pa.array(np.arange(4000) % 7 + 1.5))
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def run(funnel_config, log, tmp_path_factory):
    """A sparse model of three tasks, one of them a regression."""
    raw = set_values(
        funnel_config,
        ["model.gate={kind: top_k, k: 2}", "model.num_experts=4", "training.epochs=1"],
    )
    raw["tasks"] = [*raw["tasks"], {"name": "minutes", "label": "minutes", "kind": "regression"}]
    return train_run(config_from_dict(raw), tmp_path_factory.mktemp("runs") / "run", data=log)


@pytest.fixture(scope="module")
def result(run):
    """What every pass found."""
    return explain_run(run.directory, settings=ExplainSettings(gradients=True, features=True))


def test_changes_are_those_of_a_model_that_does_without_with_delongs_interval(run, result, log):
    from mmoe.explain.experts import places_of
    from mmoe.train.run_data import held_out_rows

    predictor, encoder, config = load_predictor(run.directory)
    rows = held_out_rows(run.directory, config, encoder, None, None)[0]
    labels = rows.held.labels
    base_NT = predictor.predict(rows)
    for place, expert in zip(places_of(predictor.ranker.network), result["experts"], strict=True):
        assert (place.number, place.name) == (expert["number"], expert["name"])
        for refill, kind in ((False, "renormalised"), (True, "refilled")):
            masked = _masked(predictor.ranker, place, refill=refill)
            without_NT = Predictor(masked, config).predict(rows)
            for t, task in enumerate(("click", "buy")):
                found = expert["tasks"][task][kind]
                if found is None:
                    assert kind == "refilled"
                    continue
                seen = labels.observed_NT[:, t]
                expected = auc_difference_interval(
                    labels.labels_NT[seen, t], without_NT[seen, t], base_NT[seen, t]
                )
                assert found["auc"]["value"] == pytest.approx(expected.difference, abs=1e-9)
                assert found["auc"]["low"] == pytest.approx(expected.low, abs=1e-9)
                assert found["auc"]["high"] == pytest.approx(expected.high, abs=1e-9)
        assert set(expert["tasks"]["minutes"]["renormalised"]) == {"rmse"}
    # input: user 4, item 8, price 1 and its bucket 4, tags 4; layers 16 and 8
    weights = 4 * (21 * 16 + 16 + 16 * 8 + 8)
    assert {expert["bytes"] for expert in result["experts"]} == {weights}
    assert all(expert["milliseconds"] > 0 for expert in result["experts"])
    for t, task in enumerate(result["tasks"]):
        shares = [expert["tasks"][task["name"]]["share"] for expert in result["experts"]]
        assert sum(shares) == pytest.approx(1)
        assert task["values"]["auc" if t < 2 else "rmse"] == pytest.approx(
            run.metrics["tasks"][task["name"]]["auc" if t < 2 else "rmse"], abs=1e-6
        )


def test_verdicts_hold_the_interval_against_the_tolerance():
    def said(metric, low, value, high, base=0.8, tolerance=0.001):
        change = {metric.key: {"value": value, "low": low, "high": high}}
        return verdicts_of([metric], change, {metric.key: base}, tolerance)[metric.key]

    assert said(AUC, -0.03, -0.02, -0.01) == "needed"
    assert said(AUC, -0.02, -0.01, 0.01) == "unsure"
    assert said(AUC, -0.0009, 0.0, 0.01) == "unneeded"
    assert said(AUC, 0.01, 0.02, 0.03) == "unneeded"
    # An error with a unit counts as a share of itself, and is worse where it is more
    assert said(RMSE, 0.4, 0.5, 0.6, base=100.0, tolerance=0.01) == "unneeded"
    assert said(RMSE, 2.0, 3.0, 4.0, base=100.0, tolerance=0.01) == "needed"
    assert harm(AUC, {"value": -0.1, "low": None, "high": None}, 0.8) == (0.1, 0.1)
    assert worst(["unneeded", "needed", "unsure"]) == "needed"


def test_a_task_without_a_value_does_not_vote():
    """Of rows whose labels are all the same nobody knows what an expert is worth."""
    none, some = dict.fromkeys(("value", "low", "high")), {"value": 0.0, "low": 0.0, "high": 0.0}
    values = dict.fromkeys(("auc", "rmse"))
    unknown = verdicts_of([AUC, RMSE], {"auc": none, "rmse": none}, values, 0.1)
    assert set(unknown.values()) == {"unsure"}
    known = verdicts_of([AUC, RMSE], {"auc": none, "rmse": some}, values | {"rmse": 1.0}, 0.1)
    assert worst(known.values()) == "unneeded"


def test_what_to_say_next_can_be_pasted(result):
    lines = summary_lines({**result, "unneeded": [1]}, "runs/base one")
    assert lines[-1] == "next: mmoe prune 'runs/base one' --experts 1 --out RUN2"


def test_refilled_is_looked_at_only_where_the_next_pick_may_do(run, result):
    """A task that surely needs an expert is not asked again."""
    strict = explain_run(run.directory, settings=ExplainSettings(tolerance=0.0))
    none = explain_run(run.directory, settings=ExplainSettings(tolerance=0.9))
    for found, tolerance in ((strict, 0.0), (none, 0.9), (result, 0.0002)):
        for expert in found["experts"]:
            for name, one in expert["tasks"].items():
                task = next(task for task in found["tasks"] if task["name"] == name)
                metrics = [TaskMetric(**metric) for metric in task["metrics"]]
                first = verdicts_of(metrics, one["renormalised"], task["values"], tolerance)
                assert (one["refilled"] is None) == (worst(first.values()) == "needed")
    assert none["unneeded"] == [1, 2, 3, 4]


def test_a_feature_that_nothing_reads_is_unneeded_and_one_that_counts_is_needed(
    funnel_config, funnel_table, tmp_path
):
    noise = pa.array(np.random.default_rng(0).integers(0, 4000, 4000))
    table = funnel_table.append_column("noise", noise)
    raw = set_values(funnel_config, ["training.epochs=3"])
    raw["features"] = [
        *raw["features"], {"kind": "categorical", "name": "noise", "encoding": "hash",
                           "hash_size": 100000},
    ]  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    done = train_run(config_from_dict(raw), tmp_path / "run", data=tmp_path / "log.parquet")
    found = explain_run(
        done.directory, table, settings=ExplainSettings(tolerance=0.01, features=True)
    )["features"]
    click = {one["name"]: one["tasks"]["click"] for one in found}
    assert list(click) == ["user", "item", "price", "tags", "noise"]
    assert click["price"]["verdict"] == "needed"
    assert click["price"]["changes"]["auc"]["value"] < -0.02
    assert abs(click["price"]["changes"]["auc"]["value"]) > abs(
        click["noise"]["changes"]["auc"]["value"]
    )


def test_shuffling_moves_one_features_columns_and_no_others(run, log):
    from mmoe.explain.features import columns_of, with_shuffled

    _, encoder, config = load_predictor(run.directory)
    data = BatchSource.of_table(pq.read_table(log)[:200], encoder, "log", config).held
    order = np.random.default_rng(2).permutation(200)
    for name, columns in columns_of(encoder).items():
        moved = with_shuffled(data, columns, order)
        whole = data.batch(order)
        for start in (0, 77):  # as the batch of rows in that order, in this feature alone
            one, other = moved.batch(slice(start, 200)), data.batch(slice(start, 200))
            assert (one.dense_BF[:, columns.dense] == whole.dense_BF[start:, columns.dense]).all()
            rest = [i for i in range(one.dense_BF.shape[1]) if i not in columns.dense]
            assert (one.dense_BF[:, rest] == other.dense_BF[:, rest]).all()
        ids = data.features.ids_NC
        for c in range(ids.shape[1]):
            expected = ids[order, c] if c in columns.ids else ids[:, c]
            assert (moved.features.ids_NC[:, c] == expected).all(), name
        for place, (values, offsets) in enumerate(data.features.lists):
            rows = np.split(values, offsets[1:-1])
            expected = [rows[i] for i in order] if place in columns.lists else rows
            found_values, found_offsets = moved.features.lists[place]
            found = np.split(found_values, found_offsets[1:-1])
            assert [x.tolist() for x in found] == [x.tolist() for x in expected]


def test_the_command_writes_its_files_and_says_what_it_found(run, log, mmoe, tmp_path):
    code, out, err = mmoe("explain", run.directory.path, "--out", tmp_path / "found", "-q")
    assert (code, err) == (0, "")
    assert "click, 400 rows" in out and "expert 4" in out and "95 % interval" in out
    assert out.splitlines()[-1] == str(tmp_path / "found" / "explain.html")
    stored = json.loads((tmp_path / "found" / "explain.json").read_text())
    assert [task["name"] for task in stored["tasks"]] == ["click", "buy", "minutes"]
    page = (tmp_path / "found" / "explain.html").read_text()
    assert "<svg" in page and "click · change of AUC" in page and "src=" not in page
    # Into the run's folder by default, replaced there; elsewhere nothing is
    code, out, _ = mmoe("explain", run.directory.path, "--json", "-q", "--split", "validation")
    assert code == 0 and json.loads(out)["origin"] == "validation"
    assert (run.directory.path / "explain.html").exists()
    assert mmoe("explain", run.directory.path, "-q")[0] == 0
    code, _, err = mmoe("explain", run.directory.path, "--out", tmp_path / "found", "-q")
    assert code == 2 and "holds explain.json already" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--tolerance", "-1"], "--tolerance: expected a number of 0 or more"),
        (["--data", "{folder}/unlabelled.parquet"], "there is no column 'click'"),
        (["--data", "{folder}/nothing.parquet"], "nothing.parquet"),
        (["--data", "{folder}/empty.parquet"], ""),
        (["--data", "{log}", "--split", "validation"], "leave one out"),
    ],
)
def test_bad_input_is_one_line(run, log, asked, said, mmoe, tmp_path):
    table = pq.read_table(log)
    pq.write_table(table.drop_columns(["click"]), tmp_path / "unlabelled.parquet")
    pq.write_table(table[:0], tmp_path / "empty.parquet")
    asked = [one.format(folder=tmp_path, log=log) for one in asked]
    code, out, err = mmoe("explain", run.directory.path, "--out", tmp_path / "out", "-q", *asked)
    assert (code, out) == (2, "")
    assert err.startswith("mmoe: error: ") and err.count("\n") == 1 and said in err
    assert not (tmp_path / "out" / "explain.json").exists()


def test_the_estimator_explains_itself(funnel_table, tmp_path):
    log = funnel_table.to_pandas()
    y = log[["click", "buy"]].astype(float)
    y.loc[y.click == 0, "buy"] = None
    X = log[["user", "item", "price"]]
    ranker = MultiTaskRanker(
        num_experts=3, epochs=3, batch_size=32, learning_rate=0.001, seed=1
    ).fit(X, y)
    found = ranker.explain(X, y, tolerance=0.5, gradients=True, features=True)
    assert len(found.experts) == 6 and found.unneeded == [1, 2, 3]
    assert {"auc", "auc_low", "auc_high", "ne", "share", "verdict"} <= set(found.experts)
    assert found.cosines.shape == (2, 2)
    assert set(found.features.feature) == {"user", "item", "price"}
    assert found.save(tmp_path / "found").exists()
    with pytest.raises(ValueError, match="was not asked for"):
        _ = ranker.explain(X[:500], y[:500]).features
    assert len(explanation_figure(found.result).axes) == 4


def test_a_run_and_a_folder_at_an_address(run, mmoe, tmp_path):
    import fsspec

    store = fsspec.filesystem("memory")
    store.put(str(run.directory.path), "/runs/one", recursive=True)
    code, _, err = mmoe("explain", "memory://runs/one", "-q")
    assert code == 2 and "say --out FOLDER" in err
    code, _, err = mmoe("explain", "memory://runs/one", "--out", tmp_path / "here", "-q")
    assert (code, err) == (0, "")
    assert (tmp_path / "here" / "explain.html").exists()
    code, out, err = mmoe("explain", "memory://runs/one", "--out", "memory://found/it", "-q")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "memory://found/it/explain.html"
    assert store.exists("/found/it/explain.json")


def test_the_interval_of_ne_holds_what_a_bootstrap_finds(run):
    from mmoe.metrics.calibration import normalised_entropy
    from mmoe.metrics.intervals import of_predictions, row_terms

    rng = np.random.default_rng(1)
    p = rng.beta(1, 4, 4000)
    y = (rng.random(4000) < p).astype(float)
    q = np.clip(p * rng.lognormal(0, 0.4, 4000), 0.001, 0.99)
    terms = [row_terms("ne", of_predictions(y, each)) for each in (p, q)]
    error = float(((terms[0] - terms[1]) ** 2).sum() ** 0.5)
    drawn = []
    for _ in range(400):
        rows = rng.integers(0, 4000, 4000)
        one, two = (normalised_entropy(y[rows], each[rows]) for each in (p, q))
        drawn.append(one - two)
    assert error == pytest.approx(np.std(drawn), rel=0.12)


def test_a_run_without_experts_is_refused(train_funnel, funnel_config, mmoe):
    made = train_funnel(
        set_values(funnel_config, ["model.kind=shared_bottom", "training.epochs=1"])
    )
    code, _, err = mmoe("explain", made.path)
    assert code == 2 and "no gate of this run chooses between experts" in err

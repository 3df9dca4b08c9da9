"""Runs on a log of three domains, in one of which a task does not exist: from rows to a report."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.config import TaskConfig, config_from_dict, set_values
from mmoe.datasets.rows.splits import Splits
from mmoe.explain import ExplainSettings, explain_run, prune_run
from mmoe.report import write_report
from mmoe.run import RunDirectory
from mmoe.score import load_predictor, score_files
from mmoe.score.columns import arrow_columns, output_columns
from mmoe.train import evaluate_run, train_run
from mmoe.train.scored import evaluate_scored
from mmoe.train.warm_start import WarmStart
from tests.ranks import launch
from tests.runs import scores

SCENES = ("feed", "live", "shop")
OWN = "model.domains.towers=own"
STILL = [
    "training.optimizer.learning_rate=1e-12",
    "training.embedding_optimizer.learning_rate=1e-12",
]


@pytest.fixture(scope="module", name="log")
def _log(funnel_table):
    scenes = np.random.default_rng(1).choice(SCENES, len(funnel_table), p=[0.6, 0.1, 0.3])
    return funnel_table.append_column("scene", pa.array(scenes))


@pytest.fixture(scope="module", name="raw")
def _raw(funnel_config):
    raw = json.loads(json.dumps(funnel_config))
    raw["tasks"][1] |= {"observed_when": None, "domains": ["shop", "live"]}
    raw["model"] |= {"domains": {"column": "scene"}}
    raw["training"]["epochs"] = 1
    return raw


@pytest.fixture(
    scope="module",
    name="run",
    params=[
        (OWN, "model.gate={kind: sigmoid, k: 2}", "model.tower.hidden=[8, 6]"),
        ("model.kind=ple", "model.gate={kind: top_k, select: joint, shared_k: 1, private_k: 1}"),
        ("model.gate={kind: cosine, k: 2, projection_dim: 8}",),
        ("model.gate={kind: switch}", "model.capacity.factor=1.0"),
        ("model.kind=shared_bottom", OWN),
    ],
    ids=["own towers", "ple, joint", "cosine", "switch", "shared bottom"],
)
def _run(request, raw, log, train_funnel):
    return train_funnel(set_values(raw, request.param), log)


def _splits(log):
    return Splits(train=log[:3000], validation=log[3000:3300], test=log[3300:], origin="log")


def test_metrics_are_told_apart_by_domain(run, log):
    metrics = run.metrics()
    assert metrics["domains"]["column"] == "scene"
    each = {entry["domain"]: entry for entry in metrics["domains"]["each"]}
    assert list(each) == list(SCENES)
    assert [*each["feed"]["tasks"]] == ["click"]
    assert [*each["live"]["tasks"]] == ["click", "buy"]
    assert sum(entry["rows"] for entry in each.values()) == 700
    of_buy = [entry["tasks"]["buy"]["rows"] for entry in each.values() if "buy" in entry["tasks"]]
    assert sum(of_buy) == metrics["tasks"]["buy"]["rows"] < 350
    again = evaluate_run(run, log[3300:])
    assert again["domains"] == metrics["domains"]
    for entry in again["domains"]["each"]:
        assert {"auc", "ne", "calibration", "logloss"} <= entry["tasks"]["click"].keys()


def test_the_report_shows_them_and_the_gates_of_each(run):
    if run.config().model.kind == "shared_bottom":
        assert "<h2>Domains</h2>" in write_report(run.path).read_text()
        return
    level = json.loads((run.path / "curves.json").read_text())["gates"][-1]
    assert level["domains"]["names"] == list(SCENES)
    if level["gates"] != ["all tasks"]:
        assert level["domains"]["rows"][0][1] == 0  # nobody in the feed asks the gate of buy
    page = write_report(run.path).read_text()
    assert "<h2>Domains</h2>" in page
    assert "Mean gate weight of each task, domain and expert" in page


def test_predictions_are_null_where_a_task_does_not_exist(run, log, tmp_path):
    table = log[:400]
    pq.write_table(table, tmp_path / "log.parquet")
    score_files(run, tmp_path / "log.parquet", tmp_path / "scores.parquet")
    scored = pq.read_table(tmp_path / "scores.parquet")
    in_feed = pc.equal(table["scene"], "feed").to_pylist()
    assert scored["pred_buy"].is_null().to_pylist() == in_feed
    assert scored["pred_click"].null_count == 0
    score_files(run, tmp_path / "log.parquet", tmp_path / "buy.parquet", tasks=["buy"])
    assert pq.read_table(tmp_path / "buy.parquet")["pred_buy"].equals(scored["pred_buy"])
    frame = mmoe.load(run.path).predict(table.to_pandas())
    assert frame["pred_buy"].isna().tolist() == in_feed
    assert mmoe.load(run.path).predict(table)["pred_buy"].is_null().to_pylist() == in_feed


def _in_scene(table, scene):
    names = pa.array([scene] * len(table), pa.string())
    return table.set_column(table.schema.get_field_index("scene"), "scene", names)


def test_a_score_is_of_its_own_row_and_domain_others_by_the_mean(run, log):
    whole = scores(run, log[:900])
    order = np.random.default_rng(0).permutation(900)[:333]
    assert np.array_equal(scores(run, log[:900].take(order)), whole[order], equal_nan=True)
    feed, live, strange, missing = (
        scores(run, _in_scene(log[:300], scene)) for scene in ("feed", "live", "radio", None)
    )
    assert (feed[:, 0] != live[:, 0]).any()
    assert np.array_equal(strange, missing, equal_nan=True)
    assert np.isfinite(strange[:, 0]).all() and np.isnan(strange[:, 1]).all()


def test_refused_rows_are_named(raw, log, train_funnel, tmp_path):
    run = train_funnel(set_values(raw, ["model.domains.unseen=refuse"]), log)
    table = log[:9].set_column(log.schema.get_field_index("scene"), "scene", [["radio"] * 9])
    pq.write_table(table, tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=r"new.parquet: row 1: column 'scene' .* is 'radio'"):
        score_files(run, tmp_path / "new.parquet", tmp_path / "out.parquet")


def test_a_stream_trains_as_memory_does(raw, log, tmp_path):
    pq.write_table(log[:1500], tmp_path / "log.parquet", row_group_size=500)
    found = []
    for how in ("memory", "stream"):
        settings = [f"data.path={tmp_path / 'log.parquet'}", f"data.input={how}"]
        run = train_run(config_from_dict(set_values(raw, settings)), tmp_path / how)
        found.append(run.metrics["domains"])
    assert found[0] == found[1]


@pytest.mark.parametrize("gate", ["softmax", "switch", "dselect_k"])
def test_a_warm_start_keeps_domains_and_gives_new_ones_the_mean(raw, log, tmp_path, gate):
    old = log.filter(pc.not_equal(log["scene"], "live"))
    raw = set_values(raw, [OWN, f"model.gate.kind={gate}", "tasks.buy.domains=[shop]"])
    first = train_run(
        config_from_dict(raw), tmp_path / "first",
        splits=Splits(train=old[:1000], validation=old[3000:3200], test=old[3200:], origin="log"),
    ).directory  # fmt: skip
    second = train_run(
        config_from_dict(set_values(raw, STILL)), tmp_path / "second", splits=_splits(log),
        warm_start=WarmStart(first.path),
    ).directory  # fmt: skip
    assert load_predictor(second)[1].domains.names == ["feed", "shop", "live"]
    table = log[:500]  # rows of live too, which the first run scores by the mean
    np.testing.assert_allclose(scores(second, table), scores(first, table), atol=2e-5)


def test_domains_may_come_to_a_run_without(raw, log, tmp_path):
    splits = _splits(log)
    plain = config_from_dict(set_values(raw, ["model.domains=null", "tasks.buy.domains=null"]))
    first = train_run(plain, tmp_path / "first", splits=splits).directory
    later = set_values(raw, [OWN, "tasks.buy.domains=null", *STILL])
    second = train_run(
        config_from_dict(later), tmp_path / "second", splits=splits,
        warm_start=WarmStart(first.path),
    ).directory  # fmt: skip
    np.testing.assert_allclose(scores(second, log[:300]), scores(first, log[:300]), atol=2e-5)
    with pytest.raises(ValueError, match=r"model.domains.column is 'scene' there and None here"):
        train_run(plain, tmp_path / "no", splits=splits, warm_start=WarmStart(second.path))


@pytest.mark.torchrec
@pytest.mark.parametrize(
    ("experts", "gate"), [("replicated", "{kind: cosine, k: 2,"), ("spread", "{kind: top_k, k: 2,")]
)
def test_two_ranks_are_one_process(raw, log, tmp_path, experts, gate):
    pq.write_table(log[:1500], tmp_path / "log.parquet")
    config = set_values(
        raw,
        [
            OWN,
            f"data.path={tmp_path / 'log.parquet'}",
            f"model.gate={gate} balance_loss: 0.01, z_loss: 0.01}}",
            "model.expert.dropout=0",
            "training.embedding_backend=torchrec",
            "training.batch_size=200",
            f"parallel.experts={experts}",
        ],
    )
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    alone = train_run(config_from_dict(config), tmp_path / "alone")
    ended = launch(["train", tmp_path / "config.yaml", "--out", tmp_path / "two", "--quiet"], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    two = RunDirectory.open(tmp_path / "two").metrics()
    for mine, theirs in zip(alone.metrics["domains"]["each"], two["domains"]["each"], strict=True):
        assert mine["rows"] == theirs["rows"]
        for task, values in mine["tasks"].items():
            assert theirs["tasks"][task]["ne"] == pytest.approx(values["ne"], abs=3e-4)
    losses = [
        json.loads((tmp_path / name / "history.json").read_text())["epochs"][0]["loss"]
        for name in ("alone", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_experts_can_be_explained_and_pruned(run, log, tmp_path):
    if run.config().model.kind == "shared_bottom":
        pytest.skip("nothing there is weighted")
    if run.config().model.gate.kind in ("cosine", "switch"):
        pruned = prune_run(run, [1], tmp_path / "pruned", splits=_splits(log)).directory
        assert np.isfinite(scores(pruned, log[:200])[:, 0]).all()
        return
    rows = log[3300:]
    found = explain_run(run, rows, ExplainSettings(features=True, gradients=True))
    metrics = evaluate_run(run, rows)["tasks"]
    for task in found["tasks"]:
        assert task["values"]["auc"] == pytest.approx(metrics[task["name"]]["auc"], abs=1e-9)
    if run.config().model.kind == "ple":
        return
    gone = found["experts"][0]
    pruned = prune_run(run, [1], tmp_path / "pruned", splits=_splits(log)).directory
    again = evaluate_run(pruned, rows)["tasks"]
    compared = 0
    for task in ("click", "buy"):
        told = gone["tasks"][task]["refilled"]
        if told is None and run.config().model.gate.picks is None:
            told = gone["tasks"][task]["renormalised"]
        if told is None:  # of gates that pick it is not looked at where the expert is missed
            continue
        change = again[task]["auc"] - metrics[task]["auc"]
        assert change == pytest.approx(told["auc"]["value"], abs=1e-6)
        compared += 1
    assert compared


def test_classes_are_null_where_their_task_does_not_exist():
    task = TaskConfig(
        name="mood", label="mood", kind="multiclass", classes=["good", "bad"], domains=["shop"]
    )
    found_NP = np.array([[1.0, 0.2, 0.8], [np.nan] * 3], np.float32)
    columns = arrow_columns(found_NP, [task])
    assert columns["pred_mood"].to_pylist() == ["bad", None]
    assert columns["pred_mood_good"].null_count == 1
    assert output_columns(found_NP, [task])["pred_mood"].tolist() == ["bad", None]


def test_scores_are_measured_by_labels_that_come_later(run, log, tmp_path):
    rows = log[3300:]
    pq.write_table(rows.drop_columns(["click", "buy"]), tmp_path / "log.parquet")
    pq.write_table(rows.select(["row", "scene", "user", "click", "buy"]), tmp_path / "late.parquet")
    score_files(run, tmp_path / "log.parquet", tmp_path / "scores.parquet", keep=["row"])
    found = evaluate_scored(
        run, str(tmp_path / "scores.parquet"), str(tmp_path / "late.parquet"), ["row"]
    )
    for task, values in run.metrics()["tasks"].items():
        assert found["tasks"][task]["auc"] == pytest.approx(values["auc"], abs=1e-9)
    for ours, theirs in zip(
        found["domains"]["each"], run.metrics()["domains"]["each"], strict=True
    ):
        assert ours["domain"] == theirs["domain"]
        assert [*ours["tasks"]] == [*theirs["tasks"]]
        assert ours["tasks"]["click"]["auc"] == pytest.approx(theirs["tasks"]["click"]["auc"])

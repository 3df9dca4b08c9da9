"""A comparison: what is trained, what is compared with what, resuming, files, errors."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.compare import ComparisonSettings
from mmoe.compare.walk import ComparedRows, baseline_entry
from mmoe.config import config_from_dict, set_values
from mmoe.datasets import Splits
from mmoe.metrics import auc_difference_interval
from mmoe.report.comparison import comparison_grids, describe_winners
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.train import Interrupted, prepare, train_run


def _by_name(result):
    return {model["name"]: model for model in result["models"]}


def _predictions(out, folder, task="click"):
    return pq.read_table(out / folder / "predictions.parquet")[f"pred_{task}"].to_numpy()


def test_every_model_and_seed_is_a_run_of_its_own_beside_two_simple_models(
    compare, small, tmp_path
):
    result = compare(["shared_bottom", "mmoe"], 2)
    out = tmp_path / "out"
    assert json.loads((out / "compare.json").read_text()) == result
    names = ["shared_bottom", "mmoe", "logistic_regression", "boosted_trees"]
    assert list(_by_name(result)) == names
    for name in names[:2]:
        model = _by_name(result)[name]
        assert model["seeds"] == [3, 4]
        runs = [RunDirectory.open(out / folder) for folder in model["folders"]]
        assert [(run.config().model.kind, run.config().seed) for run in runs] == [
            (name, 3),
            (name, 4),
        ]
        for task in ("click", "buy"):
            values = [run.metrics()["tasks"][task]["auc"] for run in runs]
            found = model["results"][f"{task}.auc"]
            assert found["values"] == values
            assert found["mean"] == pytest.approx(np.mean(values))
            assert found["sd"] == pytest.approx(np.std(values, ddof=1))
        weights = CheckpointFolder(runs[0].checkpoint).model("best")
        assert model["parameters"] == sum(tensor.numel() for tensor in weights.values())
        assert model["rows_per_second"] > 0
    # One preparation for all, and yet each run is the one that `mmoe train` would have made
    config = config_from_dict(set_values(small, ["model.kind=mmoe", "seed=4"]))
    alone = train_run(config, tmp_path / "alone").metrics
    assert alone["tasks"] == RunDirectory(out / "mmoe-seed-4").metrics()["tasks"]
    assert (tmp_path / "alone" / "data.json").read_text() == (
        out / "mmoe-seed-4" / "data.json"
    ).read_text()


def test_the_wide_part_alone_is_a_contestant(compare, tmp_path):
    result = compare(["mmoe"], 1, "model.wide=true", "training.embedding_backend=auto")
    assert [*_by_name(result)] == ["mmoe", "wide_part", "logistic_regression", "boosted_trees"]
    gains = RunDirectory(tmp_path / "out" / "mmoe-seed-3").metrics()["over_wide"]["tasks"]
    for task, gain in gains.items():
        of_wide = _by_name(result)["wide_part"]["results"][f"{task}.auc"]
        assert of_wide["mean"] == pytest.approx(gain["wide"], abs=1e-6)
        assert of_wide["difference"]["value"] == pytest.approx(-gain["value"], abs=1e-6)
        assert of_wide["difference"]["low"] == pytest.approx(-gain["high"], abs=1e-6)


def test_the_wide_part_alone_predicts_means_of_a_curved_label(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=6000)
    log = pa.table({"x": x, "spend": np.exp(0.5 * x + rng.normal(size=6000))})
    splits = Splits(train=log[:4000], validation=log[4000:5000], test=log[5000:], origin="log")
    config = config_from_dict({
        "features": [{"kind": "numeric", "name": "x"}],
        "tasks": [{"name": "spend", "label": "spend", "kind": "regression", "target": "log"}],
        "model": {"wide": True},
        "training": {"monitor": "mean.gain"},
    })  # fmt: skip
    rows = ComparedRows(config=config, splits=splits, prepared=prepare(config, splits=splits))
    predicted_N = baseline_entry(tmp_path / "wide", "wide_part", rows).predictions_NP[:, 0]
    assert predicted_N.mean() == pytest.approx(splits.test["spend"].to_numpy().mean(), rel=0.15)


def test_with_one_seed_the_interval_is_delongs(compare, tmp_path):
    result = compare(["shared_bottom", "mmoe"], 1)
    out = tmp_path / "out"
    models = _by_name(result)
    rows = result["rows"]["test"]
    labels = _test_labels(out)
    assert len(labels) == rows == result["test_rows"]["click"]
    for name, folder in (("mmoe", "mmoe-seed-3"), ("boosted_trees", "boosted_trees")):
        expected = auc_difference_interval(
            labels, _predictions(out, folder), _predictions(out, "shared_bottom-seed-3")
        )
        found = models[name]["results"]["click.auc"]["difference"]
        assert found["value"] == pytest.approx(expected.difference, abs=1e-12)
        assert found["low"] == pytest.approx(expected.low, abs=1e-9)
        assert found["high"] == pytest.approx(expected.high, abs=1e-9)
        assert found["seed_error"] is None
    assert models["shared_bottom"]["results"]["click.auc"]["difference"] is None


def test_a_simple_model_is_the_reference_and_the_best_of_a_task_wins_it(compare, tmp_path):
    result = compare(["shared_bottom"], 2, reference="boosted_trees")
    assert result["reference"] == "boosted trees"
    found = {name: model["results"]["click.auc"] for name, model in _by_name(result).items()}
    assert found["boosted_trees"]["difference"] is None
    difference = found["shared_bottom"]["difference"]
    assert difference["value"] == pytest.approx(
        found["shared_bottom"]["mean"] - found["boosted_trees"]["mean"]
    )
    # Two seeds are too few for Student's t, whose reach would be 12.7 standard errors
    error = (difference["row_error"] ** 2 + difference["seed_error"] ** 2) ** 0.5
    assert difference["degrees"] is None
    assert difference["high"] - difference["value"] == pytest.approx(1.96 * error, rel=1e-3)
    winner = result["winners"][0]
    ranked = sorted(found, key=lambda name: -found[name]["mean"])
    assert (winner["task"], winner["model"], winner["second"]) == ("click", *ranked[:2])
    assert winner["sure"] == (winner["difference"]["low"] > 0)
    said = describe_winners(result)
    assert said.startswith("click is won by" if winner["sure"] else "click is even between")
    assert said in (tmp_path / "out" / "compare.html").read_text()


def _test_labels(out):
    from mmoe.datasets.rows.sources import load_splits

    return load_splits(RunDirectory(out / "mmoe-seed-3").config()).test["click"].to_numpy()


def test_regression_is_compared_by_rmse_and_r2_and_has_no_mean_with_auc(compare, tmp_path):
    task = "tasks=[{name: click, label: click}, {name: price, label: price, kind: regression}]"
    feature = "features=[{kind: categorical, name: user}, {kind: categorical, name: item}]"
    result = compare(["shared_bottom"], 1, task, feature)
    assert [measure["key"] for measure in result["measures"]] == [
        "click.auc",
        "price.rmse",
        "price.r2",
    ]
    trees = _by_name(result)["boosted_trees"]
    rmse, r2 = (trees["results"][key] for key in ("price.rmse", "price.r2"))
    gain = rmse["difference"]
    assert gain["low"] < gain["value"] < gain["high"]
    assert rmse["verdict"] in ("gains", "even", "pays")
    assert ("price" in trees["gains"]) == (gain["high"] < 0)  # lower is better
    assert -1 < r2["mean"] < 1
    assert "price, RMSE, lower is better" in (tmp_path / "out" / "compare.html").read_text()


def test_it_goes_on_where_it_was_killed_and_takes_more_seeds(compare, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        compare(["shared_bottom", "mmoe"], 1, reporter=_DiesAfter(4))
    assert not (out / "compare.json").exists()
    finished = out / "shared_bottom-seed-3" / "metrics.json"
    before = finished.stat().st_mtime_ns
    with pytest.raises(ValueError, match="exists already; continue it with --resume"):
        compare(["shared_bottom", "mmoe"], 1)
    compare(["shared_bottom", "mmoe"], 1, resume=True)
    more = compare(["shared_bottom", "mmoe"], 2, resume=True)
    assert finished.stat().st_mtime_ns == before
    assert _by_name(more)["mmoe"]["seeds"] == [3, 4]
    with pytest.raises(ValueError, match=r"begun with another config \(training.batch_size"):
        compare(["mmoe"], 1, "training.batch_size=300", resume=True)


class _DiesAfter(SilentReporter):
    """Ctrl-C when so many lines have been said: the first one of sizes, then one an entry."""

    def __init__(self, lines):
        self.left = lines

    def say(self, text):
        self.left -= not text.startswith("note")
        if self.left <= 0:
            raise KeyboardInterrupt


def test_changed_rows_and_a_damaged_entry_are_refused(compare, funnel_table, tmp_path):
    compare(["shared_bottom"], 1)
    kept = tmp_path / "out" / "boosted_trees" / "predictions.parquet"
    whole = kept.read_bytes()
    kept.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"boosted_trees/predictions.parquet: is damaged.*resume"):
        compare(["shared_bottom"], 1, resume=True)
    kept.write_bytes(whole)
    pq.write_table(funnel_table[:1400], tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="the data has changed since it was begun"):
        compare(["shared_bottom"], 1, resume=True)


@pytest.mark.parametrize(
    ("models", "seeds", "overrides", "message"),
    [
        ("mmoe,plee", 1, [], r"--models: there is no model 'plee'; did you mean ple\?"),
        ("mmoe,mmoe", 1, [], "--models: mmoe is named twice; remove one"),
        (",", 1, [], "--models: expected kinds of models, such as"),
        ("mmoe", 0, [], "--seeds: expected 1 to 1000, got 0"),
        ("mmoe,esmm", 1, ["tasks=[{name: click, label: click}]"], "--models esmm: .*two binary"),
        ("mmoe", 1, ["data.input=stream"], "holds all rows in memory.*data.input=memory"),
        ("mmoe", 1, ["tasks.0.label=clck"], "clck"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    mmoe, small, tmp_path, models, seeds, overrides, message
):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small))
    sets = [word for each in overrides for word in ("--set", each)]
    out = tmp_path / "out"
    code, _, err = mmoe(
        "compare", config, "--models", models, "--seeds", seeds, "--out", out, *sets
    )
    assert code == 2
    assert len(err.splitlines()) == 1
    assert re.search(message, err), err
    assert not out.exists()


def test_a_reference_that_does_not_take_part_is_refused(compare, tmp_path):
    with pytest.raises(ValueError, match=r"--reference: 'ple' does not take part.*boosted_trees"):
        compare(["mmoe"], 1, reference="ple")
    assert not (tmp_path / "out").exists()


def test_the_command_prints_a_table_json_and_a_page(mmoe, small, tmp_path):
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(small))
    arguments = ["compare", config, "--models", "shared_bottom", "--seeds", 1, "--out", out]
    code, printed, err = mmoe(*arguments)
    assert code == 0, err
    assert "less shared_bottom" in printed
    assert "logistic regression" in printed
    *_, page, winners = printed.splitlines()
    assert page == str(out / "compare.html")
    assert re.search(r"^click is .*; buy is ", winners)
    assert re.search(r"^shared_bottom-seed-3: click AUC 0\.\d+, buy AUC 0\.\d+; ", err, re.M)
    assert err.count("gauc rests on") == 2  # of click and of buy, once each

    code, _, err = mmoe("report", out)
    assert code == 2
    assert f"is a comparison, whose page is {out / 'compare.html'}" in err
    code, _, err = mmoe("report", out / "shared_bottom-seed-3")
    assert code == 0, err

    code, printed, err = mmoe(*arguments, "--resume", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(printed) == json.loads((out / "compare.json").read_text())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    code, _, err = mmoe("compare", config, "--out", tmp_path / "mine", "--resume")
    assert (code, "holds no comparison to continue" in err) == (2, True)
    assert ComparisonSettings.of_text(" mmoe , ple,", 1).models == ("mmoe", "ple")


def test_a_metric_that_cannot_be_computed_is_a_dash():
    results = {"click.auc": {"mean": None, "sd": None, "difference": None, "verdict": None}}
    model = {"title": "mmoe", "seeds": [0], "parameters": 7, "rows_per_second": 1.0, "seconds": 1.0}
    measure = {"key": "click.auc", "task": "click", "heading": "AUC", "form": "{:.4f}"}
    result = {"reference": "mmoe", "measures": [measure]}
    result["models"] = [{**model, "results": results, "gains": [], "pays": []}]
    assert "–" in comparison_grids(result)[0].rows[0]

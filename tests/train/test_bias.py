"""`model.bias` by every way that a model goes: trained, continued, scored, evaluated."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.compare.baselines import boosted_trees, logistic_regression
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.splits import Splits
from mmoe.metrics.of_tasks import task_metrics
from mmoe.report import write_report
from mmoe.run.console import SilentReporter
from mmoe.score import load, load_predictor, score_files
from mmoe.train import WarmStart, evaluate_run, train_run
from mmoe.train.fit import training_state
from mmoe.train.fit_wide import fit_wide
from mmoe.train.prepare import prepare
from tests.runs import train_step

DROP = ["model.bias={features: [position, device]}"]
FIXED = ["model.bias={features: [position, device], scoring: fixed, at: {position: 1}}"]


@pytest.fixture(name="biased", scope="module")
def _biased(funnel_table):
    """The funnel, whose clicks are seen at a position; the lower, the rarer."""
    rng = np.random.default_rng(5)
    rows = len(funnel_table)
    position = rng.integers(1, 7, rows)
    seen = rng.random(rows) < 1 / position
    click, buy = (funnel_table[name].to_numpy() * seen for name in ("click", "buy"))
    table = funnel_table.drop_columns(["click", "buy"])
    for name, values in (("click", click), ("buy", buy), ("position", position)):
        table = table.append_column(name, pa.array(values))
    return table.append_column("device", pa.array(rng.choice(["phone", "desk"], rows)))


@pytest.fixture(name="raw")
def _raw(funnel_config):
    raw = json.loads(json.dumps(funnel_config))
    raw["features"] += [
        {"kind": "categorical", "name": "position"},
        {"kind": "categorical", "name": "device", "dim": 4},
    ]
    return raw


@pytest.fixture(name="cut")
def _cut(biased):
    return Splits(
        train=biased[:3000], validation=biased[3000:3500], test=biased[3500:], origin="log"
    )


@pytest.fixture(name="trained")
def _trained(raw, cut, tmp_path):
    def run(name, *overrides, **keywords):
        config = config_from_dict(set_values(raw, overrides))
        return train_run(config, tmp_path / name, splits=cut, **keywords)

    return run


def bias_logits(run):
    """Of the positions 1 to 6, on a desk, less that of 1; [6, T]."""
    predictor, encoder, _ = load_predictor(run.directory)
    table = pa.table(
        {
            "user": [1] * 6, "item": ["i1"] * 6, "price": [1.0] * 6, "tags": [["t1"]] * 6,
            "position": [1, 2, 3, 4, 5, 6], "device": ["desk"] * 6,
        }
    )  # fmt: skip
    batch = EncodedData(features=encoder.encode(table, "log")).batch(slice(0, 6))
    with torch.no_grad():
        output = predictor.ranker(batch, with_bias=True)
    logits = output.with_bias_BT
    return (logits - logits[:1]).numpy()


@pytest.mark.parametrize("how", [DROP, FIXED], ids=["drop", "fixed"])
def test_scores_are_evaluated_bit_for_bit_and_need_no_position(trained, biased, cut, tmp_path, how):
    finished = trained("run", *how, "training.epochs=2")
    run = finished.directory
    pq.write_table(cut.test, tmp_path / "test.parquet")
    unread = ["position"] + (["device"] if how is DROP else [])
    pq.write_table(cut.test.drop_columns(unread), tmp_path / "unread.parquet")
    scores = []
    for name in ("test", "unread"):
        score_files(run, tmp_path / f"{name}.parquet", tmp_path / f"{name}-scores.parquet")
        scores.append(pq.read_table(tmp_path / f"{name}-scores.parquet"))
    assert scores[0].equals(scores[1])
    loaded = load(run)
    assert not set(unread) & set(loaded.columns)
    assert pa.table(loaded.predict(cut.test.drop_columns(unread))).equals(scores[0])
    evaluated = evaluate_run(run, tmp_path / "test.parquet")["tasks"]
    assert {k: v for k, v in evaluated["click"].items() if k != "oracle_auc"} == {
        k: v for k, v in finished.metrics["tasks"]["click"].items() if k != "oracle_auc"
    }
    labels = cut.test["click"].to_numpy().astype(float)
    expected, _ = task_metrics("binary", labels, scores[0]["pred_click"].to_numpy())
    for key in ("auc", "logloss", "calibration"):
        assert evaluated["click"][key] == expected[key]
    # With the position clicks are predicted better
    assert evaluated["click"]["logloss_with_bias"] < evaluated["click"]["logloss"]
    assert evaluated["click"]["auc_with_bias"] > evaluated["click"]["auc"]


def test_it_learns_what_the_position_does_and_the_report_says_it(trained):
    finished = trained("run", *DROP, "training.epochs=8", "training.patience=8")
    found = bias_logits(finished)[:, 0]
    assert found[1] < -0.4 and (found[2:] < -0.7).all()

    folder = finished.directory.path
    [position, device] = json.loads((folder / "curves.json").read_text())["bias"]
    assert position["feature"] == "position"
    assert position["values"] == ["1", "2", "3", "4", "5", "6"]
    click = position["tasks"]["click"]
    assert click[0] == 1 and 0.2 < click[5] < 0.6
    assert sum(position["rows"]) == 500 and set(device["values"]) == {"phone", "desk"}
    page = write_report(folder).read_text()
    assert "bias tower of position, device" in page and f"<td>{click[5]:.3f}</td>" in page
    assert "log-loss with bias" in page


def test_entire_space_tasks_have_it_too(trained):
    how = [*DROP, "model.kind=esmm"]
    finished = trained("run", *how)
    assert np.abs(bias_logits(finished)).min(axis=1)[1:].min() > 0
    only = trained("only", *how, "model.bias.tasks=[click]")
    assert not bias_logits(only)[:, 1].any() and bias_logits(only)[1:, 0].all()


def test_a_warm_start_keeps_it_and_takes_new_features(trained, raw, cut, weights):
    one = trained("one", *DROP)
    two = trained("two", *DROP, "training.epochs=1", warm_start=WarmStart(one.directory.path))
    assert np.allclose(bias_logits(one), bias_logits(two), atol=1.5)
    # A feature that joins is read with weights of zero; a tower that was not there begins at zero
    three = trained("three", "model.bias={features: [device]}", "training.epochs=1")
    held = weights(three.directory.path)["network.bias_tower.mlp.layers.0.weight"]
    assert held.shape == (16, 4)
    start = WarmStart(three.directory.path)
    trained("four", *DROP, "training.epochs=1", warm_start=start)
    plain = trained("plain", "training.epochs=1")
    trained("five", *DROP, "training.epochs=1", warm_start=WarmStart(plain.directory.path))
    with pytest.raises(ValueError, match=r"model.bias.hidden is \[16\] there and \[8\] here"):
        trained("six", *DROP, "model.bias.hidden=[8]", warm_start=WarmStart(one.directory.path))


def test_baselines_read_what_scores_read(raw, cut):
    config = config_from_dict(set_values(raw, DROP))
    moved = cut.test.drop_columns(["position"]).append_column("position", pa.array([1] * 500))
    for fit in (logistic_regression, boosted_trees):
        one, two = (fit(config, cut.train, test)["click"] for test in (cut.test, moved))
        assert np.array_equal(one.predictions_N, two.predictions_N)


def test_a_column_that_is_missing_is_named(trained, cut, tmp_path, mmoe, raw):
    finished = trained("run", *FIXED, "training.epochs=1")
    without = tmp_path / "without.parquet"
    pq.write_table(cut.test.drop_columns(["position", "device"]), without)
    code, _, err = mmoe(
        "score", finished.directory.path, "--input", without, "--output", tmp_path / "s.parquet"
    )
    assert code == 2
    assert "no column 'device', which feature 'device'" in err and "\n" not in err.strip()
    code, _, err = mmoe("evaluate", finished.directory.path, "--data", without)
    assert code == 2
    assert "'position', which feature 'position' of model.bias (to train and to eval" in err


def test_the_wide_part_does_not_read_it(raw, cut):
    overrides = [*DROP, "model.wide=true"]
    config = config_from_dict(set_values(raw, overrides))
    data = prepare(config, splits=cut)
    state = training_state(config, data)
    fit_wide(state.ranker.wide, config, data, SilentReporter())
    wide, held = state.ranker.wide, data.train.held
    at = [f.name for f in wide.features].index("position")
    rows = wide.ids_RT[wide.first_rows[at] : wide.first_rows[at] + 8]
    assert not rows.any() and wide.ids_RT.any()
    batch = held.batch(slice(0, 64))
    logits = wide(batch.dense_BF, batch.values, batch.lengths_CB, batch.id_weights)
    batch.values[at * 64 : (at + 1) * 64] = 3
    again = wide(batch.dense_BF, batch.values, batch.lengths_CB, batch.id_weights)
    assert torch.equal(logits, again)


def test_its_tables_learn(raw, cut):
    config = config_from_dict(set_values(raw, DROP))
    data = prepare(config, splits=cut)
    state = training_state(config, data)
    before = {n: w.clone() for n, w in state.ranker.tables.table_weights().items()}
    batches = list(data.train.epoch_batches(0, 0, 256))
    for batch in batches[:3]:
        train_step(state, [batch], config, 10)
    after = state.ranker.tables.table_weights()
    assert all(not torch.equal(before[name], after[name]) for name in ("position", "device"))

"""A log that kept some of its negatives: probabilities and metrics of the full log."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import evaluate_run, train_run

RATE = 0.2
CONFIG = {
    "seed": 1,
    "features": [
        {"kind": "categorical", "name": "user", "dim": 4},
        {"kind": "categorical", "name": "item", "dim": 4},
    ],
    "tasks": [
        {"name": "click", "label": "click", "negative_sampling_rate": RATE},
        {"name": "buy", "label": "buy", "observed_when": "click"},
    ],
    "model": {"embedding_dim": 4, "num_experts": 2, "expert": {"hidden": [16]}},
    "training": {
        "epochs": 4,
        "batch_size": 256,
        "embedding_backend": "plain",
        "monitor": "click.logloss",
        "optimizer": {"learning_rate": 0.01},
    },
}


def _full_log(rows: int, seed: int) -> pa.Table:
    """Clicks are rare; their probability, and that of a purchase after one, is known."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 6, rows), rng.integers(0, 5, rows)
    p_click = 1 / (1 + np.exp(3.2 - 0.5 * user + 0.4 * item))
    p_buy = 1 / (1 + np.exp(1.0 - 0.4 * item))
    click = rng.random(rows) < p_click
    buy = click & (rng.random(rows) < p_buy)
    columns = {"user": user, "item": item, "click": click.astype(int), "buy": buy.astype(int)}
    return pa.table({**columns, "p_click": p_click, "p_buy": p_buy})


def _sampled(table: pa.Table, seed: int) -> pa.Table:
    """Every click, and the share RATE of the other rows."""
    kept = np.random.default_rng(seed).random(table.num_rows) < RATE
    return table.filter(pa.array(kept | (table["click"].to_numpy() == 1)))


@pytest.fixture(scope="module", name="full")
def _full():
    return _full_log(30_000, seed=2)


@pytest.fixture(scope="module", name="sampled_splits")
def _sampled_splits(full):
    train = _sampled(_full_log(60_000, seed=1), seed=3)
    held_out = _sampled(full, seed=4)
    return Splits(train=train, validation=held_out, test=held_out, origin="log")


@pytest.fixture(scope="module", name="finished", params=["mmoe", "esmm"])
def _finished(request, sampled_splits, tmp_path_factory):
    raw = set_values(CONFIG, [f"model.kind={request.param}"])
    out = tmp_path_factory.mktemp("sampled") / "run"
    return train_run(config_from_dict(raw), out, splits=sampled_splits)


def test_probabilities_are_those_of_the_full_log(finished, full, sampled_splits):
    predictor, encoder, config = load_predictor(finished.directory)
    predictions_NT = predictor.predict(BatchSource.of_table(full, encoder, "log", config))
    for t, task in enumerate(("click", "buy")):
        known = full[f"p_{task}"].to_numpy()
        # Trainings with five seeds lie within 7 % of it
        assert predictions_NT[:, t].mean() == pytest.approx(known.mean(), rel=0.1)
        assert np.abs(predictions_NT[:, t] - known).mean() < (0.02, 0.05)[t]
    sampled = sampled_splits.test["click"].to_numpy().mean()
    assert sampled > 3 * full["click"].to_numpy().mean(), "what an uncorrected model would predict"


def test_metrics_are_those_of_the_full_log(finished, full, sampled_splits, tmp_path):
    """On sampled rows, each negative counting five times, and on all rows as they are."""
    pq.write_table(full, tmp_path / "full.parquet")
    pq.write_table(sampled_splits.test, tmp_path / "sampled.parquet")
    run = finished.directory
    everything = evaluate_run(run, tmp_path / "full.parquet", all_negatives=True)["tasks"]["click"]
    weighed = evaluate_run(run, tmp_path / "sampled.parquet")["tasks"]["click"]
    assert weighed == finished.metrics["tasks"]["click"]
    for name, tolerance in {"auc": 0.01, "logloss": 0.02, "ne": 0.02, "calibration": 0.03}.items():
        assert weighed[name] == pytest.approx(everything[name], rel=tolerance), name
    assert everything["calibration"] == pytest.approx(1, abs=0.1)
    # The sampled rows taken for all of them: far too few clicks are predicted
    naive = evaluate_run(run, tmp_path / "sampled.parquet", all_negatives=True)["tasks"]["click"]
    assert naive["calibration"] < 0.5
    # AUC weighs all negatives alike, so that it is that of the rows as they are
    assert naive["auc"] == pytest.approx(weighed["auc"], abs=1e-12)
    curves = json.loads(run.curves_file.read_text())["tasks"]["click"]["calibration"]
    assert max(abs(b["mean_prediction"] - b["positive_rate"]) for b in curves) < 0.06


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks.click.kind=regression"], "a regression label has no negatives; remove it"),
        (["tasks.click.negative_sampling_rate=0"], "tasks.0.negative_sampling_rate"),
        (["tasks.click.negative_sampling_rate=1.5"], "tasks.0.negative_sampling_rate"),
        (
            ["model.kind=esmm", "tasks.buy.negative_sampling_rate=0.5"],
            "task 'buy': negative_sampling_rate is 0.5, which model.kind esmm cannot correct",
        ),
        (
            ["tasks.buy.kind=entire_space", "tasks.buy.negative_sampling_rate=0.5"],
            "task 'buy': negative_sampling_rate is 0.5, which kind entire_space cannot correct",
        ),
    ],
)
def test_settings_that_do_not_go_together(overrides, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(set_values(CONFIG, overrides))


def test_all_negatives_needs_a_sampled_run(train, tmp_path):
    train("run", "training.epochs=1")
    with pytest.raises(ValueError, match="no task of this run has a negative_sampling_rate"):
        evaluate_run(RunDirectory.open(tmp_path / "run"), all_negatives=True)

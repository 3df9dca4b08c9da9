"""Labels in units of their own, and towers that begin at the base rate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmoe
from mmoe.config import config_from_dict, set_values
from mmoe.datasets import infer_config
from mmoe.datasets.labels.targets import LABELS
from mmoe.datasets.rows.splits import Splits
from mmoe.predictor import Predictor
from mmoe.run import RunDirectory
from mmoe.score import score_files
from mmoe.train import WarmStart, train_run
from mmoe.train.evaluate import evaluate_run
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from tests.tasks.kinds_log import kinds_splits, raw_config

ROWS = 4000


def _log(rows: int = ROWS) -> pa.Table:
    """A click, and what is spent: 50,000 on average, of a number and a user."""
    rng = np.random.default_rng(0)
    x, user, of_user = rng.normal(size=rows), rng.integers(0, 50, rows), rng.normal(size=50)
    spend = 50_000 + 12_000 * (0.7 * x + 0.6 * of_user[user] + 0.3 * rng.normal(size=rows))
    click = rng.random(rows) < 1 / (1 + np.exp(1.5 * of_user[user] - x))
    return pa.table({"x": x, "user": user, "spend": spend, "click": click.astype(float)})


def _splits(log: pa.Table) -> Splits:
    first, second = len(log) * 7 // 10, len(log) * 85 // 100
    parts = {"train": log[:first], "validation": log[first:second], "test": log[second:]}
    return Splits(**parts, origin="log")


def _raw(**spend: Any) -> dict[str, Any]:
    return {
        "features": [{"kind": "numeric", "name": "x"}, {"kind": "categorical", "name": "user"}],
        "tasks": [
            {"name": "click", "label": "click"},
            {"name": "spend", "label": "spend", "kind": "regression", **spend},
        ],
        "model": {"num_experts": 2, "expert": {"hidden": [16]}, "tower": {"hidden": [8]}},
        "training": {
            "epochs": 6,
            "batch_size": 128,
            "optimizer": {"learning_rate": 0.01},
            "embedding_backend": "plain",
            "loggers": [],
        },
    }


@pytest.fixture(name="splits", scope="module")
def _splits_fixture():
    return _splits(_log())


@pytest.fixture(name="run", scope="module")
def _run(splits, tmp_path_factory) -> Path:
    """Trained; read only."""
    path = tmp_path_factory.mktemp("runs") / "run"
    train_run(config_from_dict(_raw()), path, splits=splits)
    return path


def _as_before(run: Path) -> None:
    """Makes a run what it would be of a version that knew nothing of targets but their key."""
    encoder = json.loads((run / "vocabulary" / "encoder.json").read_text())
    del encoder[LABELS]
    (run / "vocabulary" / "encoder.json").write_text(json.dumps(encoder))


def test_a_regression_in_its_own_units_is_learnt_beside_a_click(run, splits, tmp_path):
    found = RunDirectory(run).metrics()["tasks"]
    labels = splits.test["spend"].to_numpy()
    assert found["spend"]["rmse"] < 0.45 * labels.std()
    alone = config_from_dict({**_raw(), "tasks": _raw()["tasks"][:1]})
    click = train_run(alone, tmp_path / "alone", splits=splits).metrics["tasks"]["click"]
    assert found["click"]["auc"] > click["auc"] - 0.01


@pytest.mark.parametrize("kind", ["watch_time", "ziln"])
def test_values_are_scaled_and_never_shifted(kind):
    raw = raw_config([kind, "binary"])
    raw["tasks"][0]["weight"] = 1.0
    prepared = prepare(config_from_dict(raw), splits=kinds_splits())
    spec = prepared.encoder.rules[LABELS][kind]
    assert spec.center == 0
    assert spec.mean == pytest.approx(1)
    labels = prepared.train.held.labels
    assert np.allclose(labels.targets_NT[:, 0] * spec.scale, labels.labels_NT[:, 0], rtol=1e-6)
    raw["tasks"][0]["target"] = "none"
    assert (
        prepare(config_from_dict(raw), splits=kinds_splits()).train.held.labels.targets_NT is None
    )


def test_streamed_rows_give_the_same_statistics(tmp_path):
    log = _log(20_000)  # several blocks of sums
    (tmp_path / "log").mkdir()
    for n in range(4):
        pq.write_table(log[n * 5000 : n * 5000 + 5000], tmp_path / "log" / f"part-{n}.parquet")
    found = []
    for how in (["data.input=memory"], ["data.input=stream", "data.streaming.chunk_rows=700"]):
        raw = {**_raw(), "data": {"path": str(tmp_path / "log"), "split": {"by": "random"}}}
        found.append(prepare(config_from_dict(set_values(raw, how))).encoder.rules[LABELS])
    assert found[0] == found[1]
    assert found[0]["spend"].center == pytest.approx(log["spend"].to_numpy().mean(), rel=0.01)


@pytest.fixture(name="skewed", scope="module")
def _skewed() -> Splits:
    """What is spent has a long tail, of which a number and a user tell a part."""
    log = _log().to_pandas()
    rng = np.random.default_rng(3)
    log["spend"] = np.exp((log.spend - 50_000) / 12_000 + 0.8 * rng.normal(size=len(log)))
    return _splits(pa.Table.from_pandas(log, preserve_index=False))


def test_a_curved_target_comes_back_as_a_mean_by_every_road(skewed, tmp_path):
    config = config_from_dict(_raw(target="auto"))
    run = train_run(config, tmp_path / "run", splits=skewed).directory
    spec = mmoe.load(run.path).encoder.rules[LABELS]["spend"]
    assert spec.power == 0 and len(spec.residuals) > 1
    predicted = mmoe.load(run.path).predict(skewed.test)["pred_spend"].to_numpy()
    labels = skewed.test["spend"].to_numpy()
    assert predicted.mean() == pytest.approx(labels.mean(), rel=0.15)
    found = run.metrics()["tasks"]["spend"]
    rmse = np.sqrt(np.mean((predicted.astype(float) - labels) ** 2))
    assert found["rmse"] == pytest.approx(rmse, rel=1e-4)
    assert found["r2"] > 0.2
    pq.write_table(skewed.test, tmp_path / "rows.parquet")
    score_files(run, tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "scores.parquet")["pred_spend"].to_pylist() == list(predicted)
    again = evaluate_run(run, skewed.test)["tasks"]["spend"]
    assert again["rmse"] == pytest.approx(rmse, rel=1e-4)
    high = skewed.train["spend"].to_numpy().max()
    assert spec.high == pytest.approx(1.05 * high, rel=0.01)
    assert predicted.max() <= spec.high


def test_a_run_with_a_curve_goes_on_bit_for_bit(skewed, tmp_path, dies_after):
    config = config_from_dict(_raw(target="log"))
    whole = train_run(config, tmp_path / "whole", splits=skewed).metrics["tasks"]
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "cut", splits=skewed, reporter=dies_after(50))
    assert train_run(config, tmp_path / "cut", splits=skewed, resume=True).metrics["tasks"] == whole


def test_row_weights_count():
    log = pa.table({"x": [1.0, 2.0, 3.0, 4.0] * 50, "user": [1] * 200,
                    "spend": [10.0, 20.0, 30.0, 1e6] * 50, "w": [1.0, 1.0, 2.0, 0.0] * 50,
                    "click": [0.0, 1.0] * 100})  # fmt: skip
    config = config_from_dict(_raw(weight_column="w"))
    spec = prepare(config, splits=_splits(log)).encoder.rules[LABELS]["spend"]
    assert spec.center == pytest.approx(22.5)
    assert spec.scale == pytest.approx(np.sqrt(68.75))


def _begins_at(raw: dict[str, Any], splits: Splits) -> np.ndarray:
    """What a new model says where its towers read nothing."""
    config = config_from_dict(raw)
    prepared = prepare(config, splits=splits)
    state = training_state(config, prepared)
    for tower in state.ranker.network.towers:
        torch.nn.init.zeros_(tower.logit.weight)
    found = Predictor(state.ranker, config, prepared.encoder).predict(splits.train)
    assert (found == found[0]).all()
    return found[0]


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("binary", "standard"), ("ordinal", "standard"), ("regression", "standard"),
        ("regression", "none"), ("huber", "standard"), ("watch_time", "none"),
        ("ziln", "standard"), ("ziln", "none"),
    ],
)  # fmt: skip
def test_towers_begin_at_the_mean(kind, target):
    splits, raw = kinds_splits(), raw_config([kind])
    if kind not in ("binary", "ordinal"):
        raw["tasks"][0]["target"] = target
    column = raw["tasks"][0]["label"].split(" > ")[0]
    labels = splits.train[column].to_numpy()
    labels = labels > 0 if kind == "binary" else labels
    # A lognormal's mean is what its logarithms have, not quite that of what was seen
    assert _begins_at(raw, splits)[0] == pytest.approx(
        labels.mean(), rel=0.1 if kind == "ziln" else 1e-4
    )


def test_classes_and_levels_begin_at_their_shares():
    splits = kinds_splits()
    for kind, column in (("multiclass", "genre"), ("ordinal", "stars")):
        raw = raw_config([kind])
        counts = splits.train[column].to_pandas().value_counts(normalize=True)
        named = raw["tasks"][0].get("classes") or range(1, 6)
        assert _begins_at(raw, splits)[1:] == pytest.approx([counts[n] for n in named], rel=1e-3)


@pytest.mark.parametrize("esmm", [False, True])
def test_a_consequence_begins_at_the_conditional_rate(esmm):
    rng = np.random.default_rng(0)
    click = rng.random(4000) < 0.2
    buy = click & (rng.random(4000) < 0.1)
    log = pa.table({"x": rng.normal(size=4000), "user": [1] * 4000,
                    "click": click.astype(float), "buy": buy.astype(float)})  # fmt: skip
    raw = _raw()
    raw["tasks"][1] = {"name": "buy", "label": "buy"}
    if esmm:
        raw["model"]["kind"] = "esmm"
        raw["tasks"][1]["observed_when"] = "click"
    else:
        raw["tasks"][1] |= {"kind": "entire_space", "after": "click"}
    splits = _splits(log)
    found = _begins_at(raw, splits)
    train = splits.train.to_pandas()
    assert found == pytest.approx(
        [train.click.mean(), train.buy.sum() / train.click.sum()], rel=1e-4
    )


def test_own_towers_of_domains_begin_there_too(splits):
    raw = set_values(_raw(), ["model.domains={column: user, towers: own}"])
    found = _begins_at(raw, splits)
    train = splits.train.to_pandas()
    assert found == pytest.approx([train.click.mean(), train.spend.mean()], rel=1e-4)


STILL = [
    "training.optimizer.learning_rate=1e-12",
    "training.embedding_optimizer.learning_rate=1e-12",
    "training.epochs=1",
]


def test_a_warm_start_keeps_what_its_towers_learnt(run, splits, tmp_path):
    richer = splits.train.set_column(2, "spend", pa.array(splits.train["spend"].to_numpy() * 3))
    days = Splits(train=richer, validation=splits.validation, test=splits.test, origin="log")
    raw = set_values(_raw(), STILL)
    raw["tasks"].append({"name": "new", "label": "spend", "kind": "regression"})
    warm = train_run(
        config_from_dict(raw), tmp_path / "warm", splits=days, warm_start=WarmStart(run)
    )
    before, now = (mmoe.load(path).predict(splits.test) for path in (run, tmp_path / "warm"))
    assert np.allclose(before["pred_spend"], now["pred_spend"], rtol=1e-6)
    # A new task begins at the mean of the rows that it trains on
    mean = richer["spend"].to_numpy().mean()
    assert now["pred_new"].to_numpy().mean() == pytest.approx(mean, rel=0.35)
    labels = warm.directory.config().tasks[2]
    assert labels.target == "standard"
    # In the targets of before: three times the mean, and the deviation, of richer rows
    spec = mmoe.load(tmp_path / "warm").encoder.labels["spend"]
    assert spec.mean == pytest.approx(2 * spec.center / spec.scale, rel=0.01)
    assert spec.deviation == pytest.approx(3, rel=0.01)


def test_runs_of_before_keep_their_units(splits, tmp_path, dies_after):
    path, config = tmp_path / "old", config_from_dict(_raw(target="none", label="spend / 10000"))
    with pytest.raises(KeyboardInterrupt):
        train_run(config, path, splits=splits, reporter=dies_after(25))
    _as_before(path)
    train_run(config_from_dict(_raw(label="spend / 10000")), path, splits=splits, resume=True)
    expected = mmoe.load(path).predict(splits.test)
    assert RunDirectory(path).config().tasks[1].target == "none"
    today = set_values(_raw(label="spend / 10000"), STILL)
    continued = train_run(
        config_from_dict(today), tmp_path / "today", splits=splits, warm_start=WarmStart(path)
    )
    assert continued.directory.config().tasks[1].target == "none"
    now = mmoe.load(tmp_path / "today").predict(splits.test)
    assert np.allclose(now["pred_spend"], expected["pred_spend"], rtol=1e-6)
    asked = set_values(_raw(label="spend / 10000", target="standard"), STILL)
    with pytest.raises(ValueError, match=r"tasks\.spend\.target is 'none' there and 'standard'"):
        train_run(
            config_from_dict(asked), tmp_path / "other", splits=splits, warm_start=WarmStart(path)
        )


def test_a_target_without_effect_is_refused():
    for task in ({"label": "click"}, {"label": "spend", "kind": "d2q", "duration": "x"}):
        raw = {**_raw(), "tasks": [{"name": "one", **task, "target": "none"}]}
        with pytest.raises(ValueError, match="target"):
            config_from_dict(raw)


def test_a_model_that_is_worse_than_its_mean_says_so(splits, tmp_path):
    raw = set_values(_raw(target="none"), ["training.epochs=1"])
    config = config_from_dict(raw)
    shifted = splits.test.set_column(2, "spend", pa.array(splits.test["spend"].to_numpy() * 3))
    moved = Splits(train=splits.train, validation=splits.validation, test=shifted, origin="log")
    found = train_run(config, tmp_path / "run", splits=moved).metrics["alarms"]
    assert [a["about"] for a in found if a["kind"] == "worse_than_mean"] == ["spend"]


def test_a_run_of_an_init_config_predicts_in_the_label_s_units_by_every_road(splits, tmp_path):
    config, _ = infer_config(splits.train, ["click", "spend"])
    assert [task.label for task in config.tasks] == ["click", "spend"]
    raw = set_values(config.model_dump(mode="json"), ["training.epochs=2"])
    run = train_run(config_from_dict(raw), tmp_path / "run", splits=splits).directory
    x, labels = splits.test.select(["x", "user"]).to_pandas(), splits.test["spend"].to_numpy()
    pq.write_table(splits.test, tmp_path / "rows.parquet")
    score_files(run, tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    scored = pq.read_table(tmp_path / "scores.parquet")["pred_spend"].to_pylist()
    assert np.corrcoef(scored, labels)[0, 1] > 0.5
    assert abs(np.mean(scored) / labels.mean() - 1) < 0.1
    loaded = mmoe.load(run.path)
    assert loaded.predict(x)["pred_spend"].tolist() == scored
    assert loaded.predict(splits.test.to_pylist()[:1])[0]["pred_spend"] == scored[0]
    rough = mmoe.load(run.path, table_precision="int8").predict(x)["pred_spend"]
    assert np.abs(rough - scored).max() < 3000
    ranker = mmoe.MultiTaskRanker.load(run.path)
    assert ranker.predict_proba(x)["pred_spend"].tolist() == scored
    assert ranker.predict(x)["spend"].tolist() == scored

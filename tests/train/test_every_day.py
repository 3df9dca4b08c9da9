"""Warm start and backtest with every kind of feature, managed ids and sampled negatives at once."""

import datetime as dt
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.embeddings import managed_ids
from mmoe.metrics.of_tasks import task_metrics
from mmoe.mixture.moves import NewExperts
from mmoe.parallel import ensure_process_group
from mmoe.predictor import Predictor
from mmoe.report import write_report
from mmoe.run import RunDirectory
from mmoe.score import load_predictor
from mmoe.train import WarmStart, evaluate_run, train_run
from mmoe.train.backtest import BacktestSettings, backtest
from mmoe.train.fit import training_state
from mmoe.train.prepare import prepare
from mmoe.train.warm_start import EarlierRun, transfer

# Managed ids need it, whatever the backend
DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]
TABLES = ("user", "items", "user_item_managed")  # whose ids are managed
RAW: dict[str, Any] = {
    "seed": 1,
    "data": {"group_column": "user", "split": {"by": "day", "column": "day"}},
    "tables": [{"name": "items", "encoding": "managed", "rows": 40, "evict_every": 3}],
    "features": [
        {"kind": "categorical", "name": "user", "encoding": "managed", "rows": 25,
         "admit_after": 2, "evict": "lru", "evict_every": 2},
        {"kind": "categorical", "name": "item", "table": "items"},
        {"kind": "cross", "name": "user_item", "columns": ["user", "item"]},
        {"kind": "cross", "name": "user_item_hash", "columns": ["user", "item"],
         "encoding": "hash", "hash_size": 50, "learning_rate": 0.02},
        {"kind": "cross", "name": "user_item_managed", "columns": ["user", "item"],
         "encoding": "managed", "rows": 100},
        {"kind": "datetime", "name": "at", "parts": ["hour", "weekday"], "cyclic": True},
        {"kind": "list", "name": "tags", "weights": "w", "max_length": 2, "keep": "last"},
        {"kind": "numeric", "name": "price", "log": True, "buckets": 4},
    ],
    "tasks": [
        {"name": "click", "label": "click", "negative_sampling_rate": 0.5},
        {"name": "buy", "label": "buy", "observed_when": "click"},
    ],
    "model": {"kind": "esmm", "embedding_dim": 4, "num_experts": 2, "expert": {"hidden": [8]},
              "tower": {"hidden": []}},
    "training": {"epochs": 1, "batch_size": 50, "accumulate_batches": 2, "ema_decay": 0.9,
                 "embedding_optimizer": {"kind": "adam", "learning_rate": 0.01}},
}  # fmt: skip
TORCHREC = ("training.embedding_backend=torchrec", "training.embedding_optimizer.kind=adagrad")


@pytest.fixture(name="log", scope="module")
def _log(tmp_path_factory) -> Path:
    """A folder a day; every day five users leave, five come, and there is one more tag."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("days") / "log"
    taste = rng.normal(size=(40, 12)) * 2
    for d, day in enumerate(DAYS):
        rows = 700
        user, item = rng.integers(5 * d, 30 + 5 * d, rows), rng.integers(0, 12, rows)
        at = [dt.datetime.fromisoformat(day) + dt.timedelta(minutes=int(m))
              for m in rng.integers(0, 24 * 60, rows)]  # fmt: skip
        tags = [rng.integers(0, 6 + d, rng.integers(0, 4)).tolist() for _ in range(rows)]
        click = rng.random(rows) < 1 / (1 + np.exp(1 - taste[user, item]))
        table = pa.table(
            {
                "user": user,
                "item": [f"i{n}" for n in item],
                "at": pa.array(at, pa.timestamp("ms")),
                "tags": tags,
                "w": [rng.random(len(one)).round(3).tolist() for one in tags],
                "price": rng.lognormal(size=rows),
                "click": click.astype(int),
                "buy": (click & (rng.random(rows) < 0.4)).astype(int),
            }
        )
        (folder / f"day={day}").mkdir(parents=True)
        kept = click | (rng.random(rows) < 0.5)
        pq.write_table(
            table.filter(pa.array(kept)), folder / f"day={day}" / "part.parquet", row_group_size=150
        )
    return folder


@pytest.fixture(name="config", scope="module")
def _config(log):
    """Trains one day and tests the next."""

    def make(day: int, *overrides: str, raw: dict[str, Any] = RAW):
        days = (f"data.split.train_days=['{DAYS[day]}']",
                f"data.split.test_days=['{DAYS[day + 1]}']")  # fmt: skip
        return config_from_dict(set_values(raw, [f"data.path={log}", *days, *overrides]))

    return make


@pytest.fixture(name="plain_monday", scope="module")
def _plain_monday(config, tmp_path_factory):
    """A trained run; read only."""
    return train_run(config(0), tmp_path_factory.mktemp("plain") / "monday").directory.path


@pytest.fixture(name="monday", scope="module", params=["plain", "torchrec"])
def _monday(request, config, plain_monday, tmp_path_factory):
    """A trained run on each backend (read only), and what else its config says."""
    if request.param == "plain":
        return plain_monday, ()
    path = tmp_path_factory.mktemp("torchrec") / "monday"
    return train_run(config(0, *TORCHREC), path).directory.path, TORCHREC


def _begun(config, start: Path, new_experts: NewExperts = "fresh"):
    """A state before its first step."""
    earlier = EarlierRun.open(start)
    earlier.check(config)
    prepared = prepare(config, earlier=earlier.encoder)
    ensure_process_group()
    state = training_state(config, prepared)
    report = transfer(earlier, state, config, prepared.encoder, new_experts)
    return state, prepared.encoder, report


def _predictions(config, state, encoder, table) -> np.ndarray:
    state.ranker.network = state.scoring_network
    return Predictor(state.ranker, config).predict(
        BatchSource.of_table(table, encoder, "log", config)
    )


def _known_rows(log: Path, run: Path) -> pa.Table:
    """Monday's rows, without those held out whose pair Monday's vocabulary has not."""
    rows = pq.read_table(log / f"day={DAYS[0]}", partitioning=None)
    encoder = EarlierRun.open(run).encoder
    place = [spec.name for spec in encoder.categorical].index("user_item")
    known_N = encoder.encode(rows, "log").ids_NC[:, place] > 1
    assert known_N.mean() > 0.9
    return rows.filter(pa.array(known_N))


def _old_predictions(run: Path, table: pa.Table) -> np.ndarray:
    predictor, encoder, config = load_predictor(RunDirectory.open(run))
    return predictor.predict(BatchSource.of_table(table, encoder, "log", config))


@pytest.mark.torchrec
def test_before_the_first_step_owners_vectors_and_scores_are_yesterdays(config, monday, log):
    path, settings = monday
    state, encoder, report = _begun(config(1, *settings), path)
    old = CheckpointFolder(path / "checkpoint").model("best")
    ids = managed_ids(state.ranker.tables)
    assert ids is not None
    for name, tensor in ids.maps().items():
        assert torch.equal(tensor, old[f"ids.{name}"]), name
    for table in TABLES:
        weight = state.ranker.tables.table_weights()[table]
        assert torch.equal(weight, old[f"tables.{table}"]), table
        owned = old[f"ids.{table}._mch_sorted_raw_ids"]
        owned = owned[owned != torch.iinfo(torch.int64).max]
        rows = ids.admissions[table].rows_of(owned)
        assert len(owned) > 10 and (rows > 1).all() and len(rows.unique()) == len(owned)
    rows = _known_rows(log, path)
    found = _predictions(config(1, *settings), state, encoder, rows)
    np.testing.assert_array_equal(found, _old_predictions(path, rows))
    assert "managed ids of tables user, items, user_item_managed" in report.kept
    assert not report.initialised and not report.dropped
    assert any(phrase.startswith("table user_item ") for phrase in report.grown)
    _state_goes_on(path, ids, state)


def _state_goes_on(path, ids, state):
    """Of optimizers and of ids; what is new has none."""
    old = CheckpointFolder(path / "checkpoint").training("best")
    for name, tensor in state.ranker.tables.optimizer_state().items():
        there = old[f"accumulators.{name}"]
        assert torch.equal(tensor[: len(there)], there), name
        assert there.any() and not tensor[len(there) :].any(), name
    for name, tensor in ids.progress().items():
        if name.endswith((".evicted", ".steps", ".learnt_at")):  # counted anew in every run
            assert not tensor
        else:
            assert torch.equal(tensor, old[f"ids.{name}"]), name


@pytest.mark.torchrec
def test_resumed_to_the_bit_and_streamed_as_in_memory(
    config, plain_monday, tmp_path, dies_after, assert_same
):
    path = plain_monday
    mine = config(1, "training.checkpoint_every_steps=2", "data.input=stream",
                  "data.streaming.shuffle_buffer_rows=9999")  # fmt: skip
    whole = train_run(mine, tmp_path / "whole", warm_start=WarmStart(path))
    with pytest.raises(KeyboardInterrupt):
        train_run(mine, tmp_path / "broken", warm_start=WarmStart(path), reporter=dies_after(3))
    resumed = train_run(mine, tmp_path / "broken", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert resumed.metrics["tasks"] == whole.metrics["tasks"]
    one, two = (
        CheckpointFolder(tmp_path / n / "checkpoint").training() for n in ("whole", "broken")
    )
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    train_run(config(1, "data.input=memory"), tmp_path / "memory", warm_start=WarmStart(path))
    assert_same(tmp_path / "memory", tmp_path / "whole")
    run = RunDirectory.open(tmp_path / "memory")
    assert evaluate_run(run)["tasks"] == run.metrics()["tasks"]
    assert "user_item_managed" in Path(write_report(run.path)).read_text()


@pytest.mark.torchrec
def test_another_policy_knows_every_owner_as_seen_once(config, plain_monday):
    """Monday's policy, lru, kept no counts."""
    state, _, _ = _begun(config(1, "features.user.evict=distance_lfu"), plain_monday)
    ids = managed_ids(state.ranker.tables)
    assert ids is not None
    owned = ids.maps()["user._mch_sorted_raw_ids"] != torch.iinfo(torch.int64).max
    progress = ids.progress()
    assert owned.any() and torch.equal(progress["user._mch_counts"], owned.long())
    old = CheckpointFolder(plain_monday / "checkpoint").training("best")
    seen = progress["user._mch_last_access_iter"]
    assert torch.equal(seen, old["ids.user._mch_last_access_iter"])


@pytest.mark.torchrec
def test_another_sampling_rate_leaves_the_probabilities(config, plain_monday, log):
    mine = config(1, "tasks.click.negative_sampling_rate=0.1")
    state, encoder, report = _begun(mine, plain_monday)
    rows = _known_rows(log, plain_monday)
    found = _predictions(mine, state, encoder, rows)
    np.testing.assert_allclose(found, _old_predictions(plain_monday, rows), atol=1e-6)
    old = CheckpointFolder(plain_monday / "checkpoint").training("best")["raw.towers.0.logit.bias"]
    # Both the average and the weights behind it; `_predictions` put the average in their place
    moved, _, _ = _begun(mine, plain_monday)
    bias = moved.ranker.network.state_dict()["towers.0.logit.bias"]
    torch.testing.assert_close(bias, old + math.log(5))
    assert "probabilities of click (logit +1.609: negative_sampling_rate)" in report.kept


@pytest.mark.torchrec
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("features.user.rows=26", r"features.user.rows is 25 there and 26 here; keep it as it was, "
         r"or give the feature another name, or train without --warm-start"),
        ("tables.items.rows=50", r"tables.items.rows is 40 there and 50 here; keep it as it was, "
         r"or give the table another name"),
        ("features.user_item.columns=[item,user]", r"columns is \['user', 'item'\] there and \['i"),
        ("features.user_item_hash.hash_size=60", r"user_item_hash.hash_size is 50 there and 60"),
        ("features.at.timezone=Europe/Berlin", r"features.at.timezone is 'UTC' there and 'Europe"),
        ("features.tags.weights=null", r"features.tags.weighted is True there and False here"),
        ("features.at.dim=8", r"dim of table 'at__hour' is 4 there and 8 here"),
    ],
)  # fmt: skip
def test_other_meanings_are_refused(config, plain_monday, override, message):
    with pytest.raises(ValueError, match=message):
        EarlierRun.open(plain_monday).check(config(1, override))


@pytest.mark.torchrec
def test_a_table_of_the_same_name_with_other_rows_is_refused(plain_monday, config):
    """Features have new names, so that nothing but the table tells."""
    other = {"kind": "cross", "name": "pair", "columns": ["user", "item"], "table": "items"}
    kept = [f for f in RAW["features"] if f["name"] not in ("item", "user_item")]
    mine = config(1, raw={**RAW, "features": [*kept, other]})
    with pytest.raises(ValueError, match=r"content of table 'items' is 'ids' there and 'crosses of "
                       r"2 columns' here"):  # fmt: skip
        EarlierRun.open(plain_monday).check(mine)


@pytest.mark.torchrec
def test_what_may_change_from_day_to_day(config, plain_monday, log):
    """How much is read, how fast rows learn, who gets one; new parts are new."""
    mine = config(
        1, "features.user.admit_after=1", "features.user.evict_every=5",
        "features.user.learning_rate=0.5", "features.at.parts=[month, weekday, hour]",
        "features.tags.max_length=null", "features.tags.keep=first",
        "features.user_item.min_count=2",
    )  # fmt: skip
    state, encoder, report = _begun(mine, plain_monday)
    rows = _known_rows(log, plain_monday)
    for place, name in ((3, "tags"), (4, "w")):
        rows = rows.set_column(place, name, pa.array([[]] * len(rows), rows[name].type))
    found = _predictions(mine, state, encoder, rows)
    # Columns of x have other places, so that sums are rounded otherwise
    np.testing.assert_allclose(found, _old_predictions(plain_monday, rows), atol=1e-6)
    assert report.initialised == ["table at__month"]


def _fitted(feature: dict[str, Any], **columns: list) -> FeatureEncoder:
    raw = {"features": [feature], "tasks": [{"name": "click", "label": "click"}]}
    return FeatureEncoder.fit(config_from_dict(raw), pa.table(columns), "log")


CROSS = {"kind": "cross", "name": "pair", "columns": ["user", "item"]}
HASHED = {**CROSS, "encoding": "hash", "hash_size": 1000}
MANAGED = {"kind": "categorical", "name": "user", "encoding": "managed", "rows": 9}


@pytest.mark.parametrize(
    ("feature", "more"),
    [
        (CROSS, ", and a cross mixes them differently; write the column as int, give the feature"),
        (HASHED, ""),
        ({**CROSS, "encoding": "managed", "rows": 9}, ""),
        (MANAGED, ""),
    ],
)
def test_ids_of_another_kind_are_refused(feature, more):
    rest = {} if feature is MANAGED else {"item": ["a", "b"]}
    old, new = (_fitted(feature, user=ids, **rest) for ids in ([1, 2], ["x", "2"]))
    said = rf"log: column 'user' \(of feature '{feature['name']}'\) holds text ids, but int ids in"
    with pytest.raises(ValueError, match=f"{said} the run that is continued{more}"):
        extend_encoder(new, old, "log")
    if feature is MANAGED:
        assert extend_encoder(old, new, "log").ids["user"] == new.ids["user"]


def test_crosses_keep_the_kinds_of_their_columns():
    rows = pa.table({"user": ["1", "2"], "item": ["a", "b"]})
    old, new = _fitted(HASHED, **rows.to_pydict()), _fitted(HASHED, user=[1, 2], item=["a", "c"])
    both = extend_encoder(new, old, "log")
    assert both.rules["crosses"] == {"pair": ("text", "text")}
    assert both.encode(rows, "log").ids_NC.tolist() == old.encode(rows, "log").ids_NC.tolist()
    with pytest.raises(ValueError, match=r"'user' .* holds int ids, but text ids in the run"):
        extend_encoder(_fitted(CROSS, user=[1], item=["a"]), _fitted(CROSS, **rows.to_pydict()), "")
    # A day without one whole pair knows no kind
    empty = _fitted(CROSS, user=[None, None], item=["a", "c"])
    assert (
        extend_encoder(empty, _fitted(CROSS, **rows.to_pydict()), "log").rules["crosses"]
        == old.rules["crosses"]
    )


@pytest.mark.torchrec
def test_a_backtest_of_esmm_with_managed_ids_crosses_and_sampled_negatives(
    log, tmp_path, assert_same
):
    raw = {**RAW, "data": {"path": str(log), "group_column": "user"}}
    result = backtest(config_from_dict(raw), tmp_path / "out", BacktestSettings(column="day"))
    assert [day["test_day"] for day in result["days"]] == DAYS[1:]
    tables = []
    for day in result["days"]:
        run = RunDirectory.open(tmp_path / "out" / day["run"])
        assert evaluate_run(run)["tasks"] == day["tasks"]
        tables.append(pq.read_table(run.path / "predictions.parquet"))
        _same_as_weighted(day["tasks"]["click"], tables[-1:])
    _same_as_weighted(result["total"]["click"], tables)
    begun = json.loads((run.path / "warm_start.json").read_text())
    assert "managed ids of tables user, items, user_item_managed" in begun["kept"]
    # Stopped between two days, it ends with the same bits
    shutil.copytree(tmp_path / "out", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / day["run"])
    again = backtest(
        config_from_dict(raw), tmp_path / "again", BacktestSettings(column="day"), resume=True
    )
    assert again == result
    assert_same(tmp_path / "out" / day["run"], tmp_path / "again" / day["run"])


def _same_as_weighted(found: dict[str, Any], tables: list[pa.Table]) -> None:
    """Each negative counts twice, as the log kept half of them."""
    rows = pa.concat_tables(tables)
    label_N = rows["label_click"].to_numpy()
    expected, _ = task_metrics(
        "binary",
        label_N,
        rows["pred_click"].to_numpy(),
        weights=np.where(label_N == 1, 1.0, 2.0),
        groups=rows["group_hash"].to_numpy(),
    )
    for name in ("auc", "gauc", "ne", "calibration", "logloss", "ece"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name


@pytest.mark.parametrize("shared", ["true", "false"])
@pytest.mark.parametrize("new_experts", ["fresh", "copy"])
def test_a_dense_run_gets_a_pool_beside_its_experts_without_a_jump(
    new_experts, shared, config, plain_monday, log
):
    """Picks add nothing before the first step; gates want the new experts unlike, so copies too."""
    path = plain_monday
    dense = EarlierRun.open(path).config.model
    gate = f"{{kind: top_k, select: joint, shared_k: 1, always: {dense.num_experts}, "
    gate += f"shared_logits: {shared}}}"
    settings = [f"model.gate={gate}", f"model.num_experts={3 * dense.num_experts}"]
    mine = config(1, *settings)
    state, encoder, report = _begun(mine, path, new_experts)

    rows = _known_rows(log, path)
    found = _predictions(mine, state, encoder, rows)

    np.testing.assert_allclose(found, _old_predictions(path, rows), atol=1e-6)
    assert any("0 at first" in phrase for phrase in report.initialised)
    (level,) = state.ranker.network.levels
    logits = level.mixture.gate.logits
    logits_GED = logits.weights[0] + (0 if logits.shared_ED is None else logits.shared_ED)
    assert len(logits_GED[0].unique(dim=0)) == mine.model.num_experts
    weight = level.mixture.experts.weights[0].detach()
    first, second, _ = weight.split(dense.num_experts)
    copied = torch.equal(first, second)
    assert copied == (new_experts == "copy")

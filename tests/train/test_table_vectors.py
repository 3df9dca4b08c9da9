"""Runs whose tables begin with vectors: frozen or trained, resumed, continued, scored, on ranks."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import save_file

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict
from mmoe.datasets import BatchSource, FeatureEncoder
from mmoe.datasets.rows.splits import Splits
from mmoe.score import load_predictor, score_files
from mmoe.train import WarmStart, evaluate_run, train_run
from mmoe.train.warm_start.earlier import differences
from tests.ranks import launch

BACKENDS = ["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)]
NEW = 20  # items of the file that the log has not
DIM = 6
LEARNS = {"epochs": 5, "optimizer": {"learning_rate": 0.01}}


def _vectors(items):
    """One for each item, which says much of its clicks; made of its number alone."""
    return np.stack([np.random.default_rng(item).normal(2, 3, DIM) for item in items])


@pytest.fixture(name="table", scope="module")
def _table():
    rng = np.random.default_rng(4)
    item, user = rng.integers(0, 60, 3000), rng.integers(0, 30, 3000)
    logit = (_vectors(range(60)) - 2) @ np.linspace(-0.5, 0.5, DIM)
    click = rng.random(3000) < 1 / (1 + np.exp(-logit[item]))
    title = [row.tolist() for row in rng.normal(size=(3000, 3))]
    history = [rng.integers(0, 60, n % 4).tolist() for n in range(3000)]
    columns = {"item": item, "user": user, "title": title, "history": history}
    return pa.table({**columns, "click": click.astype(int)})


@pytest.fixture(name="splits", scope="module")
def _splits(table):
    return Splits(train=table[:2000], validation=table[2000:2400], test=table[2400:], origin="log")


def _write(path, items):
    """Without the items below 5."""
    vectors = _vectors(items).astype(np.float32)
    if path.suffix == ".safetensors":
        numbers = torch.tensor(list(items))
        save_file({"vector": torch.from_numpy(vectors), "id": numbers}, path)
    else:
        rows = {"id": list(items), "vector": list(vectors)}
        pq.write_table(pa.table(rows), path, row_group_size=13)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    _write(folder / "items.parquet", range(5, 60 + NEW))
    _write(folder / "items.safetensors", range(5, 60 + NEW))
    _write(folder / "today.parquet", range(10, 90))
    return folder


def _config(path, *, backend="plain", vectors=(), data=None, **training):
    vectors = None if vectors is None else {"path": str(path), "id": "id", **dict(vectors)}
    features = [
        {"kind": "categorical", "name": "content", "column": "item", "table": "content"},
        {"kind": "list", "name": "history", "table": "content"},
        {"kind": "categorical", "name": "user"},
        {"kind": "vector", "name": "title"},
    ]
    return {
        "seed": 2,
        "data": data or {},
        "tables": [{"name": "content", "vectors": vectors}],
        "features": features,
        "tasks": [{"name": "click", "label": "click"}],
        "model": {
            "embedding_dim": 4,
            "num_experts": 2,
            "expert": {"hidden": [8]},
            "tower": {"hidden": [4]},
        },
        "training": {
            "epochs": 2,
            "batch_size": 128,
            "eval_batch_size": 256,
            "embedding_backend": backend,
            **training,
        },
    }


def _rows(run: Path, table="content"):
    """Items and their rows, as the best checkpoint has them; and those of missing and unseen."""
    ids = FeatureEncoder.load(run / "vocabulary").ids[table]
    rows = CheckpointFolder(run / "checkpoint").model("best")[f"tables.{table}"]
    return dict(zip(ids.keys.to_pylist(), rows[2:], strict=True)), rows[:2]


def _standard(items, of):
    """What the file's vectors are, scaled by those of `of`."""
    all_NL = _vectors(of).astype(np.float32).astype(np.float64)
    deviation_L = all_NL.std(axis=0) * DIM**0.25
    scaled_NL = (_vectors(items).astype(np.float32) - all_NL.mean(axis=0)) / deviation_L
    return torch.from_numpy(np.pad(scaled_NL, ((0, 0), (0, 2)))).float()


FILE = range(5, 60 + NEW)


@pytest.mark.parametrize(
    ("backend", "suffix"),
    [("plain", "parquet"), pytest.param("torchrec", "safetensors", marks=pytest.mark.torchrec)],
)
def test_frozen_rows_are_the_vectors_to_the_end(folder, splits, tmp_path, backend, suffix):
    """Ids that training has not seen included; what has no vector is their mean."""
    config = _config(
        folder / f"items.{suffix}",
        backend=backend,
        vectors={"frozen": True},
        embedding_optimizer={"kind": "adagrad", "learning_rate": 0.5},
        **LEARNS,
    )
    run = train_run(config_from_dict(config), tmp_path / "run", splits=splits)
    rows, others = _rows(run.directory.path)
    assert sorted(rows) == list(range(60 + NEW))
    torch.testing.assert_close(torch.stack([rows[i] for i in FILE]), _standard(FILE, FILE))
    assert not others.any() and not torch.stack([rows[i] for i in range(5)]).any()
    assert run.metrics["tasks"]["click"]["auc"] > 0.7


@pytest.mark.parametrize("backend", BACKENDS)
def test_trained_rows_begin_with_the_vectors(folder, splits, tmp_path, backend):
    """After an epoch at a tiny rate they are hardly moved, and those without are the usual ones."""

    def rows_of(name, **options):
        optimizer = {"kind": "sgd", "learning_rate": 1e-9}
        raw = _config(
            folder / "items.parquet", backend=backend, embedding_optimizer=optimizer, **options
        )
        raw["tables"][0]["dim"] = 8
        train_run(config_from_dict(raw), tmp_path / name, splits=splits)
        return _rows(tmp_path / name)[0]

    rows, usual = rows_of("with"), rows_of("without", vectors=None)
    assert sorted(rows) == sorted(usual) == list(range(60))
    torch.testing.assert_close(
        torch.stack([rows[i] for i in FILE[:55]]), _standard(FILE[:55], FILE)
    )
    for item in range(5):
        torch.testing.assert_close(rows[item], usual[item])
    with_user, without = (_rows(tmp_path / name, "user")[0] for name in ("with", "without"))
    for user, row in with_user.items():
        torch.testing.assert_close(row, without[user], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "frozen"),
    [("plain", False), pytest.param("torchrec", True, marks=pytest.mark.torchrec)],
)
def test_a_killed_run_resumes_to_the_same_bits_without_the_file(
    folder, splits, tmp_path, backend, frozen, dies_after, assert_same
):
    shutil.copy(folder / "items.parquet", tmp_path / "items.parquet")
    raw = _config(
        tmp_path / "items.parquet",
        backend=backend,
        vectors={"frozen": frozen},
        checkpoint_every_steps=3,
    )
    config = config_from_dict(raw)
    train_run(config, tmp_path / "whole", splits=splits)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "broken", splits=splits, reporter=dies_after(10))
    (tmp_path / "items.parquet").unlink()
    train_run(config, tmp_path / "broken", splits=splits, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_warm_start_takes_todays_vectors(folder, splits, tmp_path):
    """Frozen: new ids too, in yesterday's scale; what today's file has not stays as it was."""

    def config(path, **vectors):
        return config_from_dict(_config(folder / path, vectors={"frozen": True, **vectors}))

    train_run(config("items.parquet"), tmp_path / "monday", splits=splits)
    monday = WarmStart(tmp_path / "monday")
    train_run(config("today.parquet"), tmp_path / "tuesday", splits=splits, warm_start=monday)
    rows, others = _rows(tmp_path / "tuesday")
    assert sorted(rows) == list(range(90)) and not others.any()
    items = range(5, 90)
    torch.testing.assert_close(torch.stack([rows[i] for i in items]), _standard(items, FILE))
    other = config("today.parquet", scale="keep")
    with pytest.raises(ValueError, match=r"vectors of table 'content' is .*standard.* keep it"):
        train_run(other, tmp_path / "other", splits=splits, warm_start=monday)
    # Thawed, they go on from where they are
    thawed = _config(folder / "today.parquet", embedding_optimizer={"learning_rate": 0.1})
    thawed = config_from_dict(thawed)
    train_run(thawed, tmp_path / "thawed", splits=splits, warm_start=monday)
    before, after = _rows(tmp_path / "monday")[0], _rows(tmp_path / "thawed")[0]
    assert sorted(after) == list(range(80))
    assert torch.equal(after[70], before[70]) and not torch.equal(after[20], before[20])


def test_a_sequence_of_the_table_hides_nothing_from_a_warm_start(folder):
    """What shares a table says the same of it, whichever feature is the last."""

    def differs(before, here, /, **dims):
        configs = []
        for name, vectors in (("before", before), ("here", here)):
            raw = _config(folder / "items.parquet", vectors=vectors)
            if name in dims:
                raw["tables"][0]["dim"] = dims[name]
            columns = {"columns": ["seen"], "target": ["content"], "encoder": "mean"}
            raw["features"].append({"kind": "sequence", "name": "seen", **columns})
            configs.append(config_from_dict(raw))
        return [key for key, _, _ in differences(*configs)]

    frozen, unit = {"frozen": True}, {"frozen": True, "scale": "unit"}
    assert differs(frozen, frozen) == []
    assert differs(frozen, unit) == ["vectors of table 'content'"]
    assert differs(frozen, frozen, here=8) == differs(frozen, frozen, before=8) == []
    # Vectors that are left out left a width that the stored table shows
    assert differs({}, None, here=8) == differs({}, None, before=8, here=8) == []
    assert differs(None, None, before=4, here=8) == ["dim of table 'content'"]


def test_a_warm_start_keeps_what_trained_rows_have_learnt(folder, splits, tmp_path):
    raw = _config(folder / "items.parquet", embedding_optimizer={"learning_rate": 0.1})
    train_run(config_from_dict(raw), tmp_path / "monday", splits=splits)
    optimizer = {"kind": "sgd", "learning_rate": 1e-9}
    raw = _config(folder / "today.parquet", vectors={"ids": "all"}, embedding_optimizer=optimizer)
    warm = WarmStart(tmp_path / "monday")
    train_run(config_from_dict(raw), tmp_path / "tuesday", splits=splits, warm_start=warm)
    monday, tuesday = (_rows(tmp_path / day)[0] for day in ("monday", "tuesday"))
    for item in range(60):
        torch.testing.assert_close(tuesday[item], monday[item])
    items = range(60, 90)
    torch.testing.assert_close(torch.stack([tuesday[i] for i in items]), _standard(items, FILE))
    learnt = torch.stack([monday[i] for i in FILE[:55]])
    assert not torch.isclose(learnt, _standard(FILE[:55], FILE)).all(dim=1).any()
    # Without its vectors a table keeps their width
    raw = _config(folder / "items.parquet", vectors=None)
    with pytest.raises(ValueError, match=r"'content' has .* width 8 there, and .* width 4 here"):
        train_run(config_from_dict(raw), tmp_path / "other", splits=splits, warm_start=warm)
    raw["tables"][0]["dim"] = 8
    train_run(config_from_dict(raw), tmp_path / "without", splits=splits, warm_start=warm)


def test_scores_are_those_of_evaluation_and_new_items_differ(folder, splits, table, tmp_path):
    """Without the file; items that no row of training had are told apart by their vectors."""
    shutil.copy(folder / "items.parquet", tmp_path / "items.parquet")
    raw = _config(tmp_path / "items.parquet", vectors={"frozen": True})
    run = train_run(config_from_dict(raw), tmp_path / "run", splits=splits).directory
    (tmp_path / "items.parquet").unlink()
    whole = evaluate_run(run, splits.test)
    assert whole["tasks"]["click"]["auc"] == run.metrics()["tasks"]["click"]["auc"]
    pq.write_table(splits.test, tmp_path / "test.parquet", row_group_size=77)
    score_files(run, tmp_path / "test.parquet", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")["pred_click"].to_numpy()
    predictor, encoder, config = load_predictor(run)
    rows = BatchSource.of_table(splits.test, encoder, "log", config)
    assert np.array_equal(scores, predictor.predict(rows)[:, 0])

    def scored(items):
        one = table[:1].to_pylist() * len(items)
        rows = pa.Table.from_pylist(one).set_column(0, "item", pa.array(items))
        return predictor.predict(BatchSource.of_table(rows, encoder, "log", config))[:, 0]

    fresh = scored(list(range(60, 60 + NEW)))
    assert len(set(fresh.tolist())) > NEW // 2  # float32 ties are chance
    assert len(set(scored([1000, 2000, 0]).tolist())) == 1  # unseen ones, and one without a vector
    narrow, *_ = load_predictor(run, table_precision="int8")
    assert np.abs(narrow.predict(rows)[:, 0] - scores).max() < 0.02


@pytest.mark.torchrec
def test_tables_in_half_precision_hold_the_nearest_numbers(folder, splits, tmp_path):
    raw = _config(folder / "items.parquet", backend="torchrec", vectors={"frozen": True})
    raw["parallel"] = {"tables": {"precision": "fp16"}}
    train_run(config_from_dict(raw), tmp_path / "run", splits=splits)
    rows, _ = _rows(tmp_path / "run")
    found = torch.stack([rows[i] for i in FILE]).float()
    torch.testing.assert_close(found, _standard(FILE, FILE), rtol=1e-3, atol=1e-3)


@pytest.mark.torchrec
def test_numbers_that_half_precision_has_not_are_refused(folder, splits, tmp_path):
    large = pa.table({"id": range(60), "vector": [[7e4, 1.0, 0.0, 0.0]] * 60})
    pq.write_table(large, tmp_path / "large.parquet")
    raw = _config(tmp_path / "large.parquet", backend="torchrec", vectors={"scale": "keep"})
    raw["parallel"] = {"tables": {"precision": "fp16"}}
    with pytest.raises(ValueError, match=r"numbers beyond 65,504.*say vectors.scale: standard"):
        train_run(config_from_dict(raw), tmp_path / "run", splits=splits)
    assert not (tmp_path / "run").exists()


def test_streamed_as_in_memory(folder, table, tmp_path, assert_same):
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=500)
    for name in ("memory", "stream"):
        data = {"path": str(tmp_path / "log.parquet"), "input": name}
        raw = _config(folder / "items.parquet", vectors={"frozen": True}, data=data)
        train_run(config_from_dict(raw), tmp_path / name)
    assert_same(tmp_path / "memory", tmp_path / "stream")


@pytest.mark.torchrec
def test_two_ranks_hold_what_one_process_does(folder, table, tmp_path):
    """Cut by rows and by columns; the checkpoint is read by one process."""
    pq.write_table(table, tmp_path / "log.parquet")
    rows = {}
    for sharding in ("row_wise", "column_wise"):
        raw = _config(
            folder / "items.parquet",
            backend="torchrec",
            vectors={"frozen": True},
            data={"path": str(tmp_path / "log.parquet")},
            epochs=1,
        )
        raw["parallel"] = {"per_table": {"content": {"sharding": sharding}}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
        ended = launch(["train", tmp_path / "config.yaml", "--out", tmp_path / sharding], 2)
        assert [rank.code for rank in ended] == [0, 0], ended[0].err
        rows[sharding], others = _rows(tmp_path / sharding)
        assert not others.any()
    for sharding, found in rows.items():
        torch.testing.assert_close(torch.stack([found[i] for i in FILE]), _standard(FILE, FILE))
        assert all(torch.equal(found[i], rows["row_wise"][i]) for i in found), sharding


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "nowhere.parquet"}, "nowhere.parquet: no such file"),
        ({"id": "item"}, "no column 'item', which vectors of table 'content' needs"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    folder, table, tmp_path, mmoe, keys, message
):
    pq.write_table(table, tmp_path / "log.parquet")
    raw = _config(
        folder / "items.parquet", vectors=keys, data={"path": str(tmp_path / "log.parquet")}
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    code, _, err = mmoe("train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert code == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "run").exists()

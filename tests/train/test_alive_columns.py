"""Columns that never varied in training change no score when they come alive, on every road."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.config import config_from_dict
from mmoe.score import score_files
from mmoe.train import WarmStart, train_run
from tests.runs import Listens

FEATURES = [
    {"kind": "categorical", "name": "item"},
    {"kind": "numeric", "name": "price", "buckets": 4},
    {"kind": "numeric", "name": "flat", "buckets": 4, "pieces": 4},
    {"kind": "numeric", "name": "empty", "log": True, "buckets": 4, "pieces": 4},
    {"kind": "categorical", "name": "market"},
    {"kind": "cross", "name": "by_item", "columns": ["market", "item"]},
    {"kind": "list", "name": "tags", "weight_separator": ":", "pooling": "sum"},
]


def log_of(rows, seed=0, **cells):
    draw = np.random.default_rng(seed)
    item_N, price_N = draw.integers(0, 20, rows), draw.gamma(2.0, 10.0, rows)
    chance_N = 1 / (1 + np.exp(-np.sin(item_N) - 0.05 * (price_N - 20)))
    columns = {
        "item": item_N,
        "price": price_N,
        "flat": [7.0] * rows,
        "empty": pa.nulls(rows, pa.float64()),
        "market": ["de"] * rows,
        "tags": ["a:2|b:2"] * rows,
        "click": (draw.random(rows) < chance_N).astype(float),
    }
    return pa.table({**columns, **{name: [cell] * rows for name, cell in cells.items()}})


ALIVE = {"flat": 1e6, "empty": 1e6, "market": "fr", "tags": "c:1000000|a:5"}


def trained(
    folder, *, stream=False, optimizer="adagrad", features=FEATURES, changes=None, **keywords
):
    pq.write_table(log_of(1200), folder / "log.parquet", row_group_size=300)
    raw = {
        "seed": 3,
        "data": {"path": str(folder / "log.parquet"), "input": "stream" if stream else "memory"},
        "features": features,
        "tasks": [{"name": "click", "label": "click"}],
        "model": {"num_experts": 2, "expert": {"hidden": [8]}, "wide": True},
        "training": {"epochs": 2, "embedding_optimizer": {"kind": optimizer}},
    }
    for section, keys in (changes or {}).items():
        raw[section] |= keys
    return train_run(config_from_dict(raw), folder / "run", **keywords).directory


@pytest.mark.parametrize("stream", [False, True], ids=["memory", "streamed"])
def test_no_score_changes_on_any_road(stream, tmp_path):
    reporter = Listens()
    run = trained(tmp_path, stream=stream, reporter=reporter)
    [note] = [line for line in reporter.lines if "one value, or none" in line]
    assert "flat, empty, market, tags: one value" in note
    loaded = mmoe.load(run.path)
    before = loaded.predict(log_of(40, seed=1))["pred_click"].to_pylist()
    for name, cell in {**ALIVE, "all": None}.items():
        table = log_of(40, seed=1, **(ALIVE if name == "all" else {name: cell}))
        assert loaded.predict(table)["pred_click"].to_pylist() == before, name
        [row] = loaded.predict(table.slice(7, 1).to_pylist())
        assert row["pred_click"] == pytest.approx(before[7], abs=1e-6)
    pa_csv.write_csv(log_of(40, seed=1, **ALIVE), tmp_path / "night.csv")
    summary = []
    score_files(run, tmp_path / "night.csv", tmp_path / "out.parquet", on_summary=summary.append)
    assert pq.read_table(tmp_path / "out.parquet")["pred_click"].to_pylist() == before
    outside = {n: f["outside"] for n, f in summary[0].columns.items() if "outside" in f}
    assert {name for name, share in outside.items() if share == 1} == {*ALIVE, "by_item"}
    assert outside["price"] < 0.1


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_rows_of_missing_and_unseen_ids_stay_zero_where_training_had_none(optimizer, tmp_path):
    features = [{"kind": "categorical", "name": "item"}, {"kind": "numeric", "name": "price"}]
    run = trained(tmp_path, optimizer=optimizer, features=features)
    tables = CheckpointFolder(run.checkpoint).model("latest")
    [table_RD] = [tensor for name, tensor in tables.items() if name.startswith("tables")]
    assert not table_RD[:2].any()
    assert table_RD[2:].any(dim=1).all()


@pytest.mark.parametrize("backend", ["plain", pytest.param("torchrec", marks=pytest.mark.torchrec)])
def test_rows_of_hashed_ids_that_training_never_touched_say_nothing(backend, tmp_path):
    hashed = {"kind": "categorical", "name": "item", "encoding": "hash", "hash_size": 100}
    changes = {"training": {"embedding_backend": backend}}
    run = trained(tmp_path, features=[hashed], changes=changes)  # ReLU needs something to begin at
    tables = CheckpointFolder(run.checkpoint).model("latest")
    [table_RD] = [tensor for name, tensor in tables.items() if name.startswith("tables")]
    touched_R = table_RD.abs().amax(dim=1) > 1e-6
    assert 10 < int(touched_R.sum()) <= 20, "20 items, some of which share a row"
    loaded = mmoe.load(run.path)

    def chances(ids):
        table = pa.table({"item": pa.array(ids, pa.int64())})
        return loaded.predict(table)["pred_click"].to_numpy()

    new_N = chances(range(100, 400))
    known_N, [nothing] = chances(range(20)), chances([None])
    assert np.ptp(known_N) > 0.2
    apart_N = np.abs(new_N[:, None] - [*known_N, nothing]).min(axis=1)
    assert apart_N.max() < 1e-6
    assert (np.abs(new_N - nothing) < 1e-6).mean() > 0.5


def test_a_warm_start_learns_of_a_column_that_has_come_alive(tmp_path):
    monday = trained(tmp_path)
    table = log_of(1200, seed=5)
    flat = np.where(table["click"].to_numpy() > 0, 3.0, -3.0)
    table = table.set_column(table.column_names.index("flat"), "flat", pa.array(flat))
    config = monday.config()
    again = train_run(
        config, tmp_path / "tuesday", data=table, warm_start=WarmStart(monday.path)
    ).directory
    loaded = mmoe.load(again.path)
    high, low = (loaded.predict(log_of(40, flat=x))["pred_click"].to_numpy() for x in (3.0, -3.0))
    assert (high - low).mean() > 0.1

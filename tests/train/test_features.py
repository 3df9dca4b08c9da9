"""Runs with every kind of feature: as in memory, resumed, scored and evaluated, to the bit."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.stream import open_stream
from mmoe.metrics.auc import auc
from mmoe.models.build import build_ranker
from mmoe.run import RunDirectory
from mmoe.run.console import SilentReporter
from mmoe.score import load_predictor, score_files
from mmoe.train import evaluate_run, train_run
from mmoe.train.evaluate import predict_rows
from mmoe.train.fit_wide import fit_wide, id_columns
from mmoe.train.prepare import prepare

FEATURES = [
    {"kind": "cross", "name": "user_slot", "columns": ["user", "slot"]},
    {"kind": "cross", "name": "hashed", "columns": ["user", "slot"], "encoding": "hash",
     "hash_size": 500},
    {"kind": "datetime", "name": "at", "parts": ["hour", "weekday"], "cyclic": True},
    {"kind": "datetime", "name": "seconds", "parts": ["day"], "unit": "s",
     "timezone": "America/New_York"},
    {"kind": "categorical", "name": "user"},
    {"kind": "numeric", "name": "price", "buckets": 4},
    {"kind": "numeric", "name": "amount", "column": "price", "log": True, "pieces": 5},
    {"kind": "list", "name": "tags", "weights": "strength", "max_length": 2, "keep": "last"},
    {"kind": "list", "name": "topics", "weight_separator": ":", "pooling": "sum"},
    {"kind": "list", "name": "seen", "max_length": 2, "keep": "last"},
    {"kind": "vector", "name": "picture", "dim": 3},
    {"kind": "vector", "name": "plain", "column": "picture", "standardise": False},
]  # fmt: skip
ROWS = 1200


@pytest.fixture(name="log", scope="module")
def _log():
    """A click depends on user × slot, and on the weights of a tag."""
    rng = np.random.default_rng(5)
    hours = rng.integers(0, 24 * 60, ROWS)
    user, slot = rng.integers(0, 20, ROWS), hours % 3
    at = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=int(hour)) for hour in hours]
    tags = [rng.integers(0, 6, rng.integers(0, 4)).tolist() for _ in range(ROWS)]
    strength = [rng.random(len(one)).round(3).tolist() for one in tags]
    pairs = [list(zip(*both, strict=True)) for both in zip(tags, strength, strict=True)]
    liked = np.array([dict(row).get(1, 0) for row in pairs])
    utility = rng.normal(size=(20, 3))[user, slot] * 2 + 3 * liked - 0.5
    gaps = rng.random(ROWS) < 0.1
    pictures = np.random.default_rng(6).normal(0, 0.2, (ROWS, 6)).astype(np.float32)
    pictures[:, 0] += utility
    return pa.table(
        {
            "user": pa.array(user, mask=gaps),
            "slot": [f"s{n}" for n in slot],
            "at": pa.array(at, pa.timestamp("ms")),
            "seconds": pa.array([int(one.timestamp()) for one in at], mask=gaps[::-1]),
            "price": pa.array(rng.lognormal(size=ROWS).round(4), mask=gaps[::-1]),
            "tags": tags,
            "strength": strength,
            "topics": ["|".join(f"t{tag}:{weight}" for tag, weight in row) for row in pairs],
            "seen": [[f"i{n}" for n in one] for one in tags],
            "picture": pa.array(list(pictures), mask=gaps),
            "click": (rng.random(ROWS) < 1 / (1 + np.exp(-utility))).astype(int),
        }
    )


@pytest.fixture(name="folder")
def _folder(log, tmp_path):
    (tmp_path / "log").mkdir()
    for n in range(3):
        part = log.slice(n * 400, 400)
        pq.write_table(part, tmp_path / "log" / f"part-{n}.parquet", row_group_size=150)
    return tmp_path / "log"


@pytest.fixture(name="train")
def _train(funnel_config, folder, tmp_path):
    def run(name, *overrides, resume=False, reporter=None):
        settings = (
            f"data.path={folder}", "data.group_column=user", "training.batch_size=100",
            "data.streaming.chunk_rows=70", "training.checkpoint_every_steps=5", *overrides,
        )  # fmt: skip
        raw = {**funnel_config, "features": FEATURES, "tasks": [funnel_config["tasks"][0]]}
        config = config_from_dict(set_values(raw, settings))
        return train_run(config, tmp_path / name, resume=resume, reporter=reporter)

    return run


def test_streamed_as_in_memory(train, tmp_path, assert_same):
    held = train("memory", "data.input=memory")
    streamed = train("stream", "data.input=stream")
    assert_same(tmp_path / "memory", tmp_path / "stream")
    assert streamed.metrics["tasks"] == held.metrics["tasks"]
    assert held.metrics["tasks"]["click"]["auc"] > 0.6, "it learns"


@pytest.mark.torchrec
def test_resumed_to_the_bit(train, tmp_path, assert_same, dies_after):
    settings = (
        "data.input=stream", "data.streaming.shuffle_buffer_rows=300", "training.epochs=2",
        "training.embedding_backend=torchrec",
    )  # fmt: skip
    train("whole", *settings)
    with pytest.raises(KeyboardInterrupt):
        train("broken", *settings, reporter=dies_after(14))
    train("broken", *settings, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def _as_csv(log, path):
    """Everything as text, lists with separators."""
    columns = {}
    for name in log.column_names:
        values = log[name].to_pylist()
        if name in ("tags", "strength", "seen"):
            values = ["|".join(str(item) for item in row) for row in values]
        elif name == "picture":
            values = [row and json.dumps(row) for row in values]
        columns[name] = values
    pacsv.write_csv(pa.table(columns), path)
    return path


def test_scores_are_those_of_evaluation_from_files_of_any_kind(train, log, folder, tmp_path):
    finished = train("run", "training.epochs=1")
    run = RunDirectory.open(tmp_path / "run")
    assert evaluate_run(run)["tasks"] == finished.metrics["tasks"]
    predictor, encoder, config = load_predictor(run)
    stream = open_stream(config_from_dict(set_values(config.model_dump(), ["data.input=stream"])))
    expected, labels = predict_rows(predictor, stream.rows("test", encoder))
    assert len(labels) == 120

    def scores(source):
        score_files(run, source, tmp_path / "out.parquet", keep=["click"], mode="overwrite")
        return pq.read_table(tmp_path / "out.parquet")

    every = scores(str(folder))
    found = scores(_as_csv(log, tmp_path / "log.csv"))
    assert every["pred_click"].equals(found["pred_click"])
    clicks_N = every["click"].to_numpy().astype(np.float32)
    scored = np.column_stack([every["pred_click"].to_numpy(), clicks_N]).tolist()
    tested = np.column_stack([expected[:, 0], labels.labels_NT[:, 0]]).tolist()
    assert set(map(tuple, tested)) <= set(map(tuple, scored))
    order = np.random.default_rng(0).permutation(ROWS)
    pq.write_table(log.take(order), tmp_path / "shuffled.parquet")
    shuffled = scores(tmp_path / "shuffled.parquet")["pred_click"].to_numpy()
    np.testing.assert_array_equal(shuffled, every["pred_click"].to_numpy()[order])


def test_an_error_in_rows_that_do_not_train_comes_first(train, log, folder, tmp_path):
    wrong = log.slice(0, 300).to_pylist()
    for row in wrong[-20:]:
        row["strength"] = [-1.0]
        row["tags"] = [1]
    pq.write_table(pa.Table.from_pylist(wrong, log.schema), folder / "part-2.parquet")
    settings = ("data.split={by: time, column: at}", "data.input=stream")
    with pytest.raises(ValueError, match=r"part-2.parquet: row 28\d: column 'strength' .* is -1"):
        train("run", *settings)
    assert not (tmp_path / "run").exists()


def test_a_wide_part_sees_every_kind(funnel_config, log, folder):
    raw = {**funnel_config, "features": FEATURES, "tasks": [funnel_config["tasks"][0]]}
    settings = [f"data.path={folder}", "data.input=stream", "model.wide=true"]
    config = config_from_dict(set_values(raw, settings))
    prepared = prepare(config)
    ranker = build_ranker(config, prepared.encoder)
    fit_wide(ranker.wide, config, prepared, SilentReporter())
    rows = EncodedData(features=prepared.encoder.encode(log, "log"))
    ids = id_columns(ranker.wide, rows.features, np.arange(ROWS))
    batch, wide = rows.batch(slice(None)), ranker.wide
    expected = ids @ wide.ids_RT.numpy() + batch.dense_BF.numpy() @ wide.dense_TF.numpy().T
    found = ranker(batch).logits_BT
    assert found.detach().numpy() == pytest.approx(expected + wide.bias_T.numpy(), abs=1e-5)
    heights = {table.name: table.num_rows for table in prepared.encoder.tables}
    for feature, first in zip(wide.features, wide.first_rows, strict=True):
        assert wide.ids_RT[first : first + heights[feature.table]].any(), feature
    assert auc(log["click"].to_numpy(), expected[:, 0]) > 0.7

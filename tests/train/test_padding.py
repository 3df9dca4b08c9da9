"""Runs on padded lists give the bits of those on ragged ones, on every road."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.config import SEQUENCE_ENCODERS, config_from_dict, set_values
from mmoe.score import score_files
from mmoe.train import evaluate_run, train_run
from tests.datasets.request_log import log_of_requests, write_forms
from tests.train.request_runs import raw_config

ROWS, LONGEST = 400, 6
LISTS = ("seen", "strength", "at")
FEATURES = [
    {"kind": "categorical", "name": "item"},
    {"kind": "list", "name": "bag", "column": "seen", "max_length": 3, "keep": "last"},
    {"kind": "list", "name": "weighed", "column": "seen", "weights": "strength"},
    *(
        {"kind": "sequence", "name": encoder, "columns": ["seen"], "target": ["item"],
         "times": "at", "max_length": 4, "encoder": encoder}
        for encoder in SEQUENCE_ENCODERS.names()
    ),
]  # fmt: skip


def _pad(rows, side, longest=LONGEST):
    def one(row):
        fill = [0] * (longest - len(row))
        return [*row, *fill] if side == "right" else [*fill, *row]

    return [one(row or []) for row in rows]


def _log(side=None):
    """A click depends on whether the item was seen; padded where a side is named."""
    rng = np.random.default_rng(2)
    seen = [rng.integers(1, 12, n).tolist() for n in rng.integers(0, LONGEST + 1, ROWS)]
    item = rng.integers(1, 12, ROWS)
    known = np.array([one in row for one, row in zip(item, seen, strict=True)])
    lists = {
        "seen": seen,
        "strength": [rng.random(len(row)).round(3).tolist() for row in seen],
        "at": [sorted(rng.integers(1, 9999, len(row)).tolist()) for row in seen],
    }
    if side:
        lists = {name: _pad(rows, side) for name, rows in lists.items()}
    return pa.table(lists | {"item": item, "click": (rng.random(ROWS) < 0.2 + 0.6 * known) * 1})


def _features(**keys):
    return [{**one, **keys} if one["kind"] in ("list", "sequence") else one for one in FEATURES]


@pytest.fixture(name="train")
def _train(funnel_config, tmp_path):
    def run(name, log, *overrides, **keys):
        pq.write_table(log, tmp_path / f"{name}.parquet", row_group_size=90)
        own = {"data": {}, "features": _features(**keys), "tasks": [funnel_config["tasks"][0]]}
        settings = (
            f"data.path={tmp_path / name}.parquet", "training.batch_size=50",
            "data.streaming.chunk_rows=70", "training.epochs=1", *overrides,
        )  # fmt: skip
        config = config_from_dict(set_values({**funnel_config, **own}, settings))
        return train_run(config, tmp_path / name)

    return run


@pytest.mark.parametrize(("side", "input_"), [("left", "memory"), ("right", "stream")])
def test_padded_as_ragged(side, input_, train, assert_same, tmp_path):
    ragged = train("ragged", _log(), f"data.input={input_}")
    padded = train("padded", _log(side), f"data.input={input_}", padding=0)
    assert_same(tmp_path / "ragged", tmp_path / "padded")
    assert padded.metrics["tasks"] == ragged.metrics["tasks"]


def test_scored_on_every_road(train, tmp_path):
    """From Parquet, text, a DataFrame and one row at a time; ragged rows are ragged ones still."""
    ragged = train("ragged", _log()).directory
    padded = train("padded", _log("right"), padding=0).directory
    log, rows = _log("right"), _log()
    text = {
        name: ["|".join(map(str, row)) for row in log[name].to_pylist()] if name in LISTS
        else log[name] for name in log.column_names
    }  # fmt: skip
    pacsv.write_csv(pa.table(text), tmp_path / "log.csv")

    def scores(run, source):
        score_files(run, source, tmp_path / "out.parquet", mode="overwrite")
        return pq.read_table(tmp_path / "out.parquet")["pred_click"].to_numpy()

    expected = scores(ragged, str(tmp_path / "ragged.parquet"))
    for source in ("padded.parquet", "log.csv", "ragged.parquet"):
        np.testing.assert_array_equal(scores(padded, str(tmp_path / source)), expected)
    assert evaluate_run(padded, rows)["tasks"] == evaluate_run(ragged, rows)["tasks"]
    loaded = mmoe.load(padded.path)
    frame = log.to_pandas()
    columns = {name: np.stack(frame[name].to_list()) for name in LISTS} | {"item": frame["item"]}
    for given in (frame, columns):
        np.testing.assert_array_equal(np.asarray(loaded.predict(given)["pred_click"]), expected)
    single = mmoe.load(ragged.path)
    for n in range(20):
        one, same = (table.slice(n, 1).to_pydict() for table in (log, rows))
        assert loaded.predict(one)["pred_click"] == single.predict(same)["pred_click"]


@pytest.mark.parametrize(("form", "input_"), [("flat", "stream"), ("nested", "memory")])
def test_lists_of_requests_and_candidates(form, input_, assert_same, tmp_path):
    log, padded = log_of_requests(), log_of_requests()
    for name, filler in (("history", -1), ("seen", -1), ("tags", "<pad>")):
        rows = [row or [] for row in log[name].to_pylist()]
        longest = max(map(len, rows))
        rows = [row + [filler] * (longest - len(row)) for row in rows]
        index = padded.column_names.index(name)
        padded = padded.set_column(index, name, pa.array(rows, log[name].type))
    runs = []
    for name, table in (("ragged", log), ("padded", padded)):
        (tmp_path / name).mkdir()
        write_forms(table, tmp_path / name)
        raw = raw_config(form, {"path": str(tmp_path / name / f"{form}.parquet")}, epochs=1)
        raw["data"] |= {"input": input_, "split": {"by": "hash", "column": "user"}}
        if name == "padded":
            lists = ("list", "sequence")
            raw["features"] = [
                {**one, "padding": [-1, "<pad>"]} if one["kind"] in lists else one
                for one in raw["features"]
            ]
        runs.append(train_run(config_from_dict(raw), tmp_path / f"run-{name}"))
    assert_same(tmp_path / "run-ragged", tmp_path / "run-padded")
    assert runs[0].metrics["tasks"] == runs[1].metrics["tasks"]

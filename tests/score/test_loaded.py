"""`mmoe.load(RUN).predict`: the form in which rows come is that of the answer."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import mmoe
from mmoe.score import load_predictor, scorer


@pytest.fixture(scope="module", name="model")
def _model(run):
    return mmoe.load(run.path)


@pytest.fixture(scope="module", name="expected")
def _expected(run, funnel_table):
    return load_predictor(run)[0].predict(funnel_table)


NAMES = ["pred_click", "pred_buy"]


def test_a_loaded_run_shows_what_it_is(model):
    shown = f"{model!r}"
    assert "tasks: click, buy; reads" in shown and "object at" not in shown


def test_the_form_of_rows_is_that_of_the_answer(model, expected, funnel_table):
    """Data frames keep their index; Arrow, a reader, columns and rows of Python."""
    frame = funnel_table.to_pandas().set_index("row", drop=False)[100:300]
    answer = model.predict(frame)
    assert list(answer.columns) == NAMES and answer.index.equals(frame.index)
    assert np.array_equal(answer.to_numpy(), expected[100:300])
    assert model.predict(frame[:0]).shape == (0, 2)
    answer = model.predict(funnel_table)
    assert isinstance(answer, pa.Table) and answer.column_names == NAMES
    assert np.array_equal(answer["pred_buy"].to_numpy(), expected[:, 1])
    batch = model.predict(funnel_table.to_batches()[0])
    assert isinstance(batch, pa.RecordBatch) and batch.num_rows == 4000
    answer = model.predict(funnel_table.to_reader(max_chunksize=1500))
    assert isinstance(answer, pa.RecordBatchReader)
    assert np.array_equal(answer.read_all()["pred_click"].to_numpy(), expected[:, 0])
    columns = model.predict(funnel_table[:3].to_pydict())
    assert np.array_equal(np.stack([columns[name] for name in NAMES], axis=1), expected[:3])
    answer = model.predict(funnel_table[:3].to_pylist())
    assert answer == [dict(zip(NAMES, row, strict=True)) for row in expected[:3].tolist()]
    assert model.predict([]) == []


def test_polars(model, expected, funnel_table):
    polars = pytest.importorskip("polars")
    answer = model.predict(polars.from_arrow(funnel_table))
    assert isinstance(answer, polars.DataFrame)
    assert np.array_equal(answer.to_numpy(), expected)


def test_batches_are_read_one_at_a_time(model, expected, funnel_table):
    frame, taken = funnel_table.to_pandas(), []

    def batches():
        for start in range(0, 4000, 1000):
            taken.append(start)
            yield frame[start : start + 1000]
        yield frame[:0]

    answers = model.predict(batches())
    assert taken == []
    first = next(answers)
    assert taken == [0] and first.index.equals(frame.index[:1000])
    rest = list(answers)
    assert [len(part) for part in rest] == [1000, 1000, 1000, 0]
    assert np.array_equal(pd.concat([first, *rest]).to_numpy(), expected)
    listed = list(model.predict([funnel_table[:10], funnel_table[10:20]]))
    assert [part.num_rows for part in listed] == [10, 10]


def test_a_large_table_is_encoded_in_parts(model, expected, funnel_table, monkeypatch):
    monkeypatch.setattr(scorer, "ROWS_PER_CHUNK", 999)
    assert np.array_equal(model.predict(funnel_table)["pred_click"].to_numpy(), expected[:, 0])
    wrong = funnel_table.to_pandas().astype({"price": object})
    wrong.loc[2500, "price"] = "dear"
    with (
        pytest.warns(UserWarning, match="side by side in 'price'"),
        pytest.raises(ValueError, match=r"DataFrame: row 2501: column 'price' .* is 'dear'"),
    ):
        model.predict(wrong)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("log.parquet", "expected rows in memory, got the path 'log.parquet'; files are scored by"),
        (pd.DataFrame({"user": [1]}), "there is no column 'item', which feature 'item' needs"),
        (iter([{"user": [1]}]), "batch 1: there is no column 'item'"),
        ({"user": 1}, r"put a row into a list: \[row\]"),
        (5, "expected a path, a DataFrame"),
    ],
)
def test_what_cannot_be_scored(model, rows, message):
    with pytest.raises(ValueError, match=message):
        list(model.predict(rows))


def test_what_is_known_of_it(model, run):
    assert (model.tasks, model.columns) == (["click", "buy"], ["user", "item", "price", "tags"])
    assert mmoe.load(run, table_precision="fp16").tasks == ["click", "buy"]
    with pytest.raises(ValueError, match="there is no such run directory"):
        mmoe.load(run.path / "nowhere")


def test_calls_of_few_rows_take_turns_also_in_a_child_that_was_forked_meanwhile(
    model, expected, funnel_table
):
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda n: model.predict(funnel_table.slice(n, 1)), range(40))
    assert [one["pred_click"][0].as_py() for one in found] == expected[:40, 0].tolist()
    with scorer._TURNS.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if scorer._TURNS.lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

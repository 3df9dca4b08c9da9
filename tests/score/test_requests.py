"""Scores of requests: a row for each candidate, in order, whatever form they come in."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.predictor import Predictor
from mmoe.run.directory import RunDirectory
from mmoe.score import Top, score_files
from mmoe.score.scorer import ScoreRequest
from mmoe.train import train_run
from tests.datasets.request_log import SPLIT, config_of, log_of_requests, nested_log, write_forms


@pytest.fixture(name="log", scope="module")
def _log():
    return log_of_requests(300)


@pytest.fixture(name="files", scope="module")
def _files(log, tmp_path_factory):
    return write_forms(log, tmp_path_factory.mktemp("requests"))


def trained(files, form):
    config = config_of(form, path=str(files / f"{form}.parquet"), split=SPLIT)
    training = {"epochs": 1, "batch_size": 64, "eval_batch_size": 128}
    training = config.training.model_copy(update=training)
    train_run(config.model_copy(update={"training": training}), files / f"run-{form}")
    return RunDirectory(files / f"run-{form}")


@pytest.fixture(name="run", scope="module")
def _run(files):
    return trained(files, "nested")


@pytest.fixture(name="scores", scope="module")
def _scores(run, files):
    """Of each row, with columns of both levels."""
    score_files(run, files / "nested.parquet", files / "all.parquet", keep=["user", "item"])
    return pq.read_table(files / "all.parquet")


def test_every_candidate_has_a_row_in_order(scores, log):
    assert scores["item"].equals(log["item"])
    assert scores["user"].to_pylist() == log["user"].to_pylist()
    assert scores.schema.field("user").type == pa.string()


def test_pieces_of_a_file_are_the_whole(run, files, scores):
    out = files / "pieces"
    kept = ["request", "history"]
    score_files(run, files / "nested.parquet", out, keep=kept, rows_per_file=128)
    parts = json.loads((out / "_manifest.json").read_text())["parts"]
    assert [part["span"] for part in parts] == [[0, 128], [128, 256], [256, 300]]
    tables = [pq.read_table(out / part["name"]) for part in parts]
    assert [table.num_rows for table in tables] == [part["rows"] for part in parts]
    assert pa.concat_tables(tables)["pred_click"].equals(scores["pred_click"])
    (out / parts[1]["name"]).unlink()
    (out / "_SUCCESS").unlink()
    score_files(run, files / "nested.parquet", out, keep=kept, rows_per_file=128, resume=True)
    again = pa.concat_tables([pq.read_table(out / part["name"]) for part in parts])
    assert again["pred_click"].equals(scores["pred_click"])


@pytest.mark.parametrize("form", ["dicts", "pandas", "arrow", "flat"])
def test_rows_in_memory_are_answered_by_candidates(run, log, scores, form):
    loaded, rows = mmoe.load(run), nested_log(log).slice(3, 4)
    first = log["request"].to_pylist().index(1003)
    count = sum(map(len, rows["candidates"].to_pylist()))
    wanted = scores["pred_click"].to_pylist()[first : first + count]
    if form == "dicts":
        found = [row["pred_click"] for row in loaded.predict(rows.to_pylist())]
    elif form == "pandas":
        answer = loaded.predict(rows.to_pandas().set_index("request"))
        assert answer.index.tolist() == log["request"].to_pylist()[first : first + count]
        found = answer["pred_click"].tolist()
    elif form == "arrow":
        found = loaded.predict(rows)["pred_click"].to_pylist()
    else:  # each candidate is a request of its own
        found = loaded.predict(log.slice(first, count))["pred_click"].to_pylist()
    assert np.array_equal(np.float32(found), np.float32(wanted))


def test_an_engine_gets_candidates_with_the_columns_of_their_request(run, log, scores):
    rows = nested_log(log)
    scorer = ScoreRequest(keep=["age", "item"]).load(run)
    found = scorer.score(rows)
    assert found.schema == scorer.columns.written(scorer.columns.rows_schema(rows.schema))
    assert found["item"].equals(log["item"]) and found["age"].equals(log["age"])
    assert found["pred_click"].equals(scores["pred_click"])
    assert scorer.score(rows[:0]).num_rows == 0


def test_requests_without_candidates_have_no_score(run, log):
    rows = nested_log(log).slice(0, 1)
    at, kind = rows.column_names.index("candidates"), rows.schema.field("candidates").type
    rows = rows.set_column(at, "candidates", pa.array([[]], kind))
    assert mmoe.load(run).predict(rows).num_rows == 0


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_whose_lists_are_all_empty_has_no_scores(run, log, files, kind):
    """Their type is not known: that of the trained run's columns is."""
    rows = nested_log(log).slice(0, 3).drop_columns(["candidates"])
    rows = rows.append_column("candidates", pa.array([[], None, []]))
    source = files / f"empty.{kind}"
    if kind == "parquet":
        pq.write_table(rows, source)
    else:
        source.write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()))
    out = files / f"empty-{kind}.parquet"
    score_files(run, source, out, keep=["user", "item"])
    found = pq.read_table(out)
    assert found.num_rows == 0 and found.column_names[:2] == ["user", "item"]
    assert found.schema.field("pred_click").type == pa.float32()


def test_a_null_candidate_has_no_score(run, log, files):
    rows = nested_log(log).slice(0, 3).to_pylist()
    rows[1]["candidates"].insert(1, None)
    said = r"row 2, candidate 2 \(in column 'candidates'\) is null"
    with pytest.raises(ValueError, match=said):
        mmoe.load(run).predict(rows)
    source = files / "null.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ValueError, match=rf"null.jsonl: {said}"):
        score_files(run, source, files / "null.parquet")


def test_what_is_no_list_of_candidates_is_refused(run, log, files):
    pq.write_table(log.append_column("candidates", log["item"]), files / "no-list.parquet")
    with pytest.raises(
        ValueError, match=r"'candidates' .* holds int64, expected a list of structs"
    ):
        score_files(run, files / "no-list.parquet", files / "refused.parquet")


def test_a_predictor_takes_requests_with_their_candidates(run, log, scores):
    loaded = mmoe.load(run)
    predictor = Predictor(loaded.predictor.ranker, loaded.config, loaded.encoder)
    found = predictor.predict(nested_log(log))[:, 0]
    assert np.array_equal(found, scores["pred_click"].to_numpy())


def test_rows_are_counted_as_those_of_a_flat_file(run, files, log):
    found, tables = [], []
    for form, one in (("flat", trained(files, "flat")), ("nested", run)):
        out = files / f"counted-{form}.parquet"
        source, keep = files / f"{form}.parquet", ["user"]
        score_files(one, source, out, keep=keep, on_summary=found.append)
        tables.append(pq.read_table(out))
    assert tables[0].equals(tables[1]), "trained and scored alike, bit for bit"
    flat, nested = (summary.as_dict() for summary in found)
    assert flat == nested and flat["rows"] == len(log)
    assert flat["columns"]["age"]["missing"] > 0 and flat["columns"]["user"]["psi"] is not None


def test_the_best_candidates_of_each_request_are_kept(run, files, log, scores):
    top = Top(2, per="request", by="click")
    score_files(run, files / "nested.parquet", files / "top.parquet", top=top)
    best = pq.read_table(files / "top.parquet")
    by_request = {}
    for key, score in zip(
        log["request"].to_pylist(), scores["pred_click"].to_pylist(), strict=True
    ):
        by_request.setdefault(key, []).append(score)
    wanted = [s for own in by_request.values() for s in sorted(own, reverse=True)[:2]]
    assert best["pred_click"].to_pylist() == wanted

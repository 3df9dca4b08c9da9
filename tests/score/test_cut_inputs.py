"""`--rows-per-file` of every format: one file is shared out, and scored to the same bits."""

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.datasets.files import json_lines
from mmoe.integrations.ray_worker import Order, PartWorker
from mmoe.score import folder_start, score_files
from mmoe.score.file_scorer import ScoreRequest
from mmoe.score.folder import end_folder
from mmoe.score.folder_start import folder_job
from mmoe.score.guard import Guard
from tests.parallel.launch import launch
from tests.score.listing import WHOLE, contents, parts
from tests.score.listing import names as names_in
from tests.score.telling import Told

KINDS = ("csv", "jsonl", "arrow", "arrows")
NAMES = [f"00000-log-{n:05d}.parquet" for n in range(4)]
KEEP = {"keep": ["row", "note"], "rows_per_file": 1024}


@pytest.fixture(scope="module")
def run(funnel_config, train_funnel):
    return train_funnel({**funnel_config, "training": {**funnel_config["training"], "epochs": 1}})


@pytest.fixture(scope="module")
def ranks_run(funnel_config, train_funnel):
    training = {**funnel_config["training"], "epochs": 1, "embedding_backend": "torchrec"}
    return train_funnel({**funnel_config, "training": training})


@pytest.fixture(scope="module")
def table(funnel_table):
    """With cells that need quotes in CSV, some over several lines."""
    notes = [f'said "{n}",\n\nor\r\n{n % 7}' if n % 3 else "" for n in range(len(funnel_table))]
    return funnel_table.append_column("note", pa.array(notes))


def write(table, path, kind):
    if kind == "csv":
        tags = pa.array(["|".join(tags) for tags in table["tags"].to_pylist()])
        at = table.schema.get_field_index("tags")
        pacsv.write_csv(table.set_column(at, "tags", tags), path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in table.to_pylist()))
    else:
        start = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with start(path, table.schema) as writer:
            writer.write_table(table, 300)
    return path


@pytest.fixture(scope="module", params=KINDS)
def log(request, table, tmp_path_factory):
    return write(table, tmp_path_factory.mktemp("cut") / f"log.{request.param}", request.param)


@pytest.fixture(scope="module")
def whole(run, log, tmp_path_factory):
    """All rows scored into one file: what the pieces have to give."""
    out = tmp_path_factory.mktemp("whole") / "scores.parquet"
    score_files(run, log, out, keep=KEEP["keep"])
    return pq.read_table(out)


@pytest.fixture(scope="module")
def cut(run, log, tmp_path_factory):
    out = tmp_path_factory.mktemp("cut") / "scores"
    told = Told()
    assert score_files(run, log, out, reporter=told, **KEEP) == 4000
    assert not any("rows-per-file" in line for line in told.said)
    return out


def test_pieces_are_the_file(cut, whole):
    assert names_in(cut) == [*NAMES, *WHOLE]
    found = [pq.read_table(cut / name) for name in NAMES]
    assert [len(part) for part in found] == [1024, 1024, 1024, 928]
    assert pa.concat_tables(found).equals(whole)
    manifest = json.loads((cut / "_manifest.json").read_text())
    spans = [[0, 1024], [1024, 2048], [2048, 3072], [3072, 4000]]
    assert [part["span"] for part in manifest["parts"]] == spans
    assert len(manifest["inputs"]) == 1


def test_what_is_missing_is_resumed(run, log, cut, tmp_path):
    out = tmp_path / "scores"
    score_files(run, log, out, **KEEP)
    assert contents(out) == contents(cut)
    (out / NAMES[2]).unlink()
    (out / NAMES[3]).write_bytes(b"cut short")
    assert score_files(run, log, out, resume=True, **KEEP) == 1024 + 928
    assert contents(out) == contents(cut)
    with pytest.raises(ValueError, match=r"with the rows .*, and now the rows is|same --rows-per"):
        score_files(run, log, out, resume=True, **{**KEEP, "rows_per_file": 512})
    assert score_files(run, log, out, mode="overwrite", **{**KEEP, "rows_per_file": 2048}) == 4000
    assert parts(out) == NAMES[:2]


@pytest.mark.parametrize("when", ["cut", "between"])
def test_an_input_that_changes_is_refused(run, log, table, tmp_path, monkeypatch, when):
    kind = log.suffix[1:]
    path = write(table, tmp_path / f"log.{kind}", kind)

    def change():
        turned = table.take(pa.array([*range(1, len(table)), 0]))
        write(turned, tmp_path / "other", kind).replace(path)

    if when == "cut":
        find = folder_start.cut_file
        monkeypatch.setattr(folder_start, "cut_file", lambda *a: [find(*a), change()][0])
    else:
        put = folder_start.FolderJob.put
        monkeypatch.setattr(folder_start.FolderJob, "put", lambda *a: [put(*a), change()][1])
    with pytest.raises(ValueError, match=r"log\.\w+: was written to"):
        score_files(run, path, tmp_path / "out", **KEEP)
    assert parts(tmp_path / "out") == []


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_value_that_is_wrong_is_named_by_its_row_in_the_file(run, table, tmp_path, kind):
    prices = [str(price) for price in table["price"].to_pylist()]
    prices[3500] = "dear"
    at = table.schema.get_field_index("price")
    path = write(table.set_column(at, "price", pa.array(prices)), tmp_path / f"log.{kind}", kind)
    with pytest.raises(ValueError, match=rf"log.{kind}: row 3501: .*dear"):
        score_files(run, path, tmp_path / "out", **KEEP)
    with pytest.raises(ValueError, match=rf"log.{kind}: row 3501: .*dear"):
        score_files(run, path, tmp_path / "one.parquet")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_compressed_text_is_one_piece_and_said_so(run, table, tmp_path, kind):
    content, log = write(table[:600], tmp_path / "rows", kind).read_bytes(), tmp_path / "log"
    log.mkdir()
    for n in range(2):
        (log / f"{n}.{kind}.gz").write_bytes(gzip.compress(content))
    told = Told()
    score_files(run, log, tmp_path / "out", reporter=told, rows_per_file=512)
    assert parts(tmp_path / "out") == ["00000-0.parquet", "00001-1.parquet"]
    said = f"--rows-per-file: {log}/0.{kind}.gz and 1 more, which is compressed, is one piece"
    assert said in told.said


def test_an_address_is_cut(run, log, cut, tmp_path):
    address = f"memory://{tmp_path.name}/{log.name}"
    fsspec.filesystem("memory").pipe(address, log.read_bytes())
    score_files(run, address, tmp_path / "out", **KEEP)
    for name in NAMES:
        assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(cut / name))


def test_workers_get_pieces_of_any_format(run, log, cut, tmp_path, monkeypatch):
    """As Ray hands them on; types of JSON lines come with them, and nobody parses all lines."""
    monkeypatch.setattr("os.chdir", lambda folder: None)
    request = ScoreRequest(str(log), keep=KEEP["keep"])
    by = request.provenance(run)
    job = folder_job(run, log, tmp_path / "out", by, rows_per_file=1024)
    found = request.look(request.columns(run.config()))
    out = str(tmp_path / "out")
    order = Order(str(run.path), request, found, by, out, "error", (), str(Path.cwd()))
    worker = PartWorker(order)
    assert worker.load().refused is None
    job.start()
    monkeypatch.setattr(json_lines, "_look_at", None)
    answers = [worker.score(pickle.loads(pickle.dumps(part))) for part in reversed(job.mine)]
    assert [answer.refused for answer in answers] == [None] * 4
    end_folder(job, Guard([], run.training_columns(), run.predicted()))
    job.store.unlock()
    assert contents(tmp_path / "out") == contents(cut)


@pytest.mark.torchrec
@pytest.mark.parametrize("log", ["csv", "jsonl"], indirect=True)
def test_two_ranks_share_one_file(ranks_run, log, tmp_path):
    score_files(ranks_run, log, tmp_path / "one", **KEEP)
    asked = ["--keep", "row", "--keep", "note", "--rows-per-file", "1024"]
    two = tmp_path / "two"
    ended = launch(["score", ranks_run.path, "--input", log, "--output", two, *asked], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    assert parts(two) == NAMES
    for name in NAMES:
        found, expected = (pq.read_table(out / name) for out in (two, tmp_path / "one"))
        assert found.select(KEEP["keep"]).equals(expected.select(KEEP["keep"]))
        for column in ("pred_click", "pred_buy"):
            np.testing.assert_allclose(found[column], expected[column], rtol=0, atol=1e-6)


def test_parts_say_which_rows_they_are(run, log, tmp_path):
    by = ScoreRequest(str(log)).provenance(run)
    job = folder_job(run, log, tmp_path / "out", by, rows_per_file=2048)
    assert [part.rows for part in job.mine] == [(0, 2048), (2048, 4000)]
    assert job.rows() == 4000
    assert replace(job, parts=[]).notes == []

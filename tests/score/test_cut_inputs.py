"""`--rows-per-file`: one Parquet file is shared out, and scored to the same bits."""

import json
from dataclasses import replace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from mmoe.score import folder_start, score_files
from mmoe.score.file_scorer import Output
from mmoe.score.folder_start import folder_job
from mmoe.score.scorer import ScoreRequest
from tests.ranks import launch
from tests.runs import Listens
from tests.score.listing import WHOLE, parts
from tests.score.listing import names as names_in

NAMES = [f"00000-log-{n:05d}.parquet" for n in range(4)]
KEEP = {"keep": ["row"], "rows_per_file": 1024}


@pytest.fixture(scope="module")
def ranks_run(funnel_config, train_funnel):
    training = {**funnel_config["training"], "epochs": 1, "embedding_backend": "torchrec"}
    return train_funnel({**funnel_config, "training": training})


def write(table, path):
    pq.write_table(table, path, row_group_size=300)
    return path


@pytest.fixture(scope="module")
def log(funnel_table, tmp_path_factory):
    return write(funnel_table, tmp_path_factory.mktemp("cut") / "log.parquet")


@pytest.fixture(scope="module")
def cut(run, log, tmp_path_factory):
    out = tmp_path_factory.mktemp("cut") / "scores"
    told = Listens()
    assert score_files(run, log, out, reporter=told, **KEEP) == 4000
    assert not any("rows-per-file" in line for line in told.lines)
    return out


def test_the_manifest_says_which_rows_a_part_holds(cut):
    assert names_in(cut) == [*NAMES, *WHOLE]
    manifest = json.loads((cut / "_manifest.json").read_text())
    spans = [[0, 1024], [1024, 2048], [2048, 3072], [3072, 4000]]
    assert [part["span"] for part in manifest["parts"]] == spans
    assert len(manifest["inputs"]) == 1


def test_an_input_that_changes_is_refused(run, funnel_table, tmp_path, monkeypatch):
    path, find = write(funnel_table, tmp_path / "log.parquet"), folder_start.cut_file

    def change():
        turned = funnel_table.take(pa.array([*range(1, len(funnel_table)), 0]))
        write(turned, tmp_path / "other").replace(path)

    monkeypatch.setattr(folder_start, "cut_file", lambda *a: [find(*a), change()][0])
    with pytest.raises(ValueError, match=r"log\.parquet: was written to"):
        score_files(run, path, tmp_path / "out", **KEEP)
    assert parts(tmp_path / "out") == []


def test_a_value_that_is_wrong_is_named_by_its_row_in_the_file(run, funnel_table, tmp_path):
    prices = [str(price) for price in funnel_table["price"].to_pylist()]
    prices[3500] = "dear"
    at = funnel_table.schema.get_field_index("price")
    path = write(funnel_table.set_column(at, "price", pa.array(prices)), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"log.parquet: row 3501: .*dear"):
        score_files(run, path, tmp_path / "out", **KEEP)


def test_files_of_other_formats_are_one_piece_and_said_so(run, funnel_table, tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    rows = funnel_table.drop_columns(["tags"]).append_column("tags", pa.array(["a|b"] * 4000))
    for n in range(2):
        pacsv.write_csv(rows[:600], log / f"{n}.csv")
    told = Listens()
    score_files(run, log, tmp_path / "out", reporter=told, rows_per_file=512)
    assert parts(tmp_path / "out") == ["00000-0.parquet", "00001-1.parquet"]
    said = f"--rows-per-file: {log}/0.csv and 1 more, which is not Parquet, is one piece"
    assert said in told.lines


def test_an_address_is_cut(run, log, cut, tmp_path):
    address = f"memory://{tmp_path.name}/{log.name}"
    fsspec.filesystem("memory").pipe(address, log.read_bytes())
    score_files(run, address, tmp_path / "out", **KEEP)
    for name in NAMES:
        assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(cut / name))


@pytest.mark.torchrec
def test_two_ranks_share_one_file(ranks_run, log, tmp_path):
    score_files(ranks_run, log, tmp_path / "one", **KEEP)
    asked = ["--keep", "row", "--rows-per-file", "1024"]
    two = tmp_path / "two"
    ended = launch(["score", ranks_run.path, "--input", log, "--output", two, *asked], 2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    assert parts(two) == NAMES
    for name in NAMES:
        found, expected = (pq.read_table(out / name) for out in (two, tmp_path / "one"))
        assert found["row"].equals(expected["row"])
        for column in ("pred_click", "pred_buy"):
            np.testing.assert_allclose(found[column], expected[column], rtol=0, atol=1e-6)


def test_parts_say_which_rows_they_are(run, log, tmp_path):
    request, to = ScoreRequest(str(log)), Output(tmp_path / "out", rows_per_file=2048)
    job = folder_job(run, request, to, request.provenance(run))
    assert [part.rows for part in job.mine] == [(0, 2048), (2048, 4000)]
    assert replace(job, parts=[]).notes == []

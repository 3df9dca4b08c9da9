"""Files without a header line, and JSON lines, from `mmoe init` to `mmoe score`."""

import json
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.datasets.request_log import log_of_requests

NAMES = ["user", "price", "click"]
SMALL = ("--set", "training.epochs=1", "--set", "training.embedding_backend=plain", "--quiet")


def rows():
    rng = np.random.default_rng(3)
    return [[int(u), 1.5 + p, int(c)] for u, p, c in rng.integers(0, (20, 90, 2), (300, 3))]


def write_csv(path):
    path.write_text("".join(f"{u},{p},{c}\n" for u, p, c in rows()))
    return path


def write_dat(path):
    text = "".join(f"{u}::{p}::{c}::é{u}\n" for u, p, c in rows())
    path.write_bytes(text.encode("latin-1"))
    return path


def write_json(path):
    lines = [dict(zip(NAMES, row, strict=True)) for row in rows()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(write_csv(path.with_suffix(".txt")), "any.name")
    return path


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        (
            "log.dat",
            write_dat,
            ("--column-names", "user,price,click,né", "--delimiter", "::", "--encoding", "latin-1"),
        ),
        ("log.jsonl", write_json, ()),
        ("log.zip", write_zip, ("--columns", "user, price,click")),
    ],
)
def test_a_log_from_init_to_scores(mmoe, tmp_path, name, write, options):
    log, config, run = write(tmp_path / name), tmp_path / "config.yaml", tmp_path / "run"
    assert mmoe("init", log, *options, "--label", "click", "--out", config)[::2] == (0, "")
    for more in ((), ("--set", "data.input=stream", "--set", "data.streaming.chunk_rows=70")):
        out = f"{run}{len(more)}"
        assert mmoe("train", config, "--out", out, *SMALL, *more)[0] == 0
        scores = tmp_path / f"{len(more)}.parquet"
        assert mmoe("score", out, "--input", log, "--output", scores, "--keep", "user")[0] == 0
        assert mmoe("evaluate", out, "--data", log, "--quiet")[0] == 0
    one, two = (pq.read_table(tmp_path / f"{n}.parquet") for n in (0, 4))
    assert one.equals(two)
    assert one["user"].cast("int64").to_pylist() == [row[0] for row in rows()]


def test_rows_without_labels_are_scored_with_a_header_and_refused_without(mmoe, tmp_path):
    """Were columns counted in them, each would be taken for the one before it."""
    log, config, run = tmp_path / "log.csv", tmp_path / "config.yaml", tmp_path / "run"
    log.write_text("".join(f"{click},{user},{price}\n" for user, price, click in rows()))
    asked = ("--no-header", "--label", "column_1", "--drop", "column_3", "--out", config)
    assert mmoe("init", log, *asked)[::2] == (0, "")
    assert mmoe("train", config, "--out", run, *SMALL)[0] == 0
    bare, headed = tmp_path / "bare.csv", tmp_path / "headed.csv"
    bare.write_text("".join(f"{user},{price}\n" for user, price, _ in rows()))
    headed.write_text("column_2,column_3\n" + bare.read_text())
    code, _, err = mmoe("score", run, "--input", bare, "--output", tmp_path / "bare.parquet")
    assert code == 2 and "first line has 2 cells, but names were given for 3 (column_1, " in err
    for path in (log, headed):
        out = path.with_suffix(".parquet")
        assert mmoe("score", run, "--input", path, "--output", out)[0] == 0
    assert pq.read_table(tmp_path / "log.parquet") == pq.read_table(tmp_path / "headed.parquet")


def test_a_file_without_a_header_is_said_to_have_none(mmoe, tmp_path):
    log, config = write_csv(tmp_path / "log.csv"), tmp_path / "config.yaml"
    code, _, err = mmoe("init", log, "--label", "click", "--out", config)
    assert code == 2 and "the file has no header; name its 3 columns: --columns a,b,c" in err
    code, _, err = mmoe("init", log, "--label", "c", "--columns", "a,b,b", "--out", config)
    assert code == 2 and err.startswith("mmoe: error: --columns a,b,b: 'b' comes twice;")
    code, _, err = mmoe("init", log, "--label", "b", "--columns", "a,b", "--out", config)
    assert code == 2 and "the first line has 3 cells, but names were given for 2 (a, b)" in err
    code, _, err = mmoe("init", log, "--label", "b", "--columns", "", "--out", config)
    assert code == 2 and "--columns : expected the names of all columns" in err
    code, _, err = mmoe("init", log, "--label", "b", "--encoding", "latin-99", "--out", config)
    assert code == 2 and "--encoding latin-99: expected an encoding of text" in err
    assert not config.exists()


def test_a_log_of_requests_from_init_to_scores(mmoe, tmp_path):
    log, config, run = tmp_path / "log.parquet", tmp_path / "config.yaml", tmp_path / "run"
    pq.write_table(log_of_requests(200), log)
    asked = ("--label", "click", "--request", "request", "--out", config)
    assert mmoe("init", log, *asked)[::2] == (0, "")
    assert "requests: {column: request}" in config.read_text()
    assert mmoe("train", config, "--out", run, *SMALL)[0] == 0
    scores = tmp_path / "scores.parquet"
    assert mmoe("score", run, "--input", log, "--output", scores)[0] == 0
    assert pq.read_table(scores).num_rows == len(log_of_requests(200))
    code, _, err = mmoe("init", log, "--label", "click", "--request", "requests", "--out", "x.yaml")
    assert code == 2 and "did you mean 'request'" in err

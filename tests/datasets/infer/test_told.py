"""What a person says of columns: `mmoe init --categorical, --numeric, --drop, --overwrite`."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from mmoe.config import load_config
from mmoe.datasets import infer_config
from mmoe.datasets.infer.told import Told
from mmoe.datasets.rows.sources import load_splits

ROWS = 600


@pytest.fixture
def log():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "user": rng.integers(0, 30, ROWS),
            "n, all": rng.poisson(40, ROWS),
            "price": rng.lognormal(3, 1, ROWS).round(2),
            "word": np.array(["a", "b", "c"])[rng.integers(0, 3, ROWS)],
            "text": np.array(["1", "NA", "7.5", "003"])[rng.integers(0, 4, ROWS)],
            "row": np.arange(ROWS),
            "tags": [[int(i)] for i in rng.integers(0, 4, ROWS)],
            "click": rng.integers(0, 2, ROWS),
        }
    )


def test_what_is_told_counts_for_more_than_what_is_seen(log):
    told = Told(categorical=["n, all", "row"], numeric=["user", "text"], drop=["price"])
    config, reasons = infer_config(log, ["click"], told=told)
    kinds = {feature.source_columns[0]: feature.kind for feature in config.features}
    assert kinds == {
        "user": "numeric", "n, all": "categorical", "word": "categorical", "text": "numeric",
        "row": "categorical", "tags": "list",
    }  # fmt: skip
    assert reasons.left_out == [("price", "--drop")]
    assert reasons.features["user"].startswith("number by --numeric; ")


@pytest.mark.parametrize(("told", "message"), [
    ({"numeric": ["pricee"]}, r"log: there is no column 'pricee', which --numeric needs \(did"),
    ({"categorical": ["click"]}, "--categorical click: a label is made of this column"),
    ({"numeric": ["user"], "drop": ["user"]}, "--drop user: it is under --numeric as well"),
    ({"numeric": ["word"]}, r"log: row 1: column 'word' \(of --numeric word\) is '\w', expect"),
    ({"numeric": ["tags"]}, r"column 'tags' \(of --numeric tags\) holds list"),
    ({"categorical": ["tags"]}, "--categorical tags: it holds list<.*>, expected one id a row"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(log, told, message):
    with pytest.raises(ValueError, match=message) as caught:
        infer_config(log, ["click"], origin="log", told=Told(**told))
    assert "\n" not in str(caught.value)


def test_on_the_command_line(mmoe, log, tmp_path):
    path, out = tmp_path / "log.csv", tmp_path / "config.yaml"
    csv.write_csv(log.drop_columns(["tags"]), path)
    out.write_text("old")
    init = ["init", path, "--label", "click", "--out", out]
    code, _, err = mmoe(*init)
    assert (code, out.read_text()) == (2, "old")
    assert "exists already; add --overwrite to replace it" in err
    code, _, err = mmoe(*init[:-1], out.as_uri())
    assert (code, out.read_text()) == (2, "old")
    assert "exists already; add --overwrite to replace it" in err
    code, _, err = mmoe(*init, "--overwrite", "--drop", "rows")
    assert (code, out.read_text()) == (2, "old")
    assert "no column 'rows', which --drop needs (did you mean 'row'?)" in err
    more = ["--categorical", "price", "n, all", "--numeric", "user", "--drop", "row,text"]
    code, said, err = mmoe(*init, "--overwrite", *more)
    assert code == 0, err
    assert "left out 'row': --drop" in said
    kinds = {f.source_columns[0]: f.kind for f in load_config(out).features}
    assert kinds == {
        "user": "numeric", "n, all": "categorical", "price": "categorical", "word": "categorical"
    }  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "log.csv"]


def test_init_says_of_what_it_is_unsure(mmoe, tmp_path):
    rng = np.random.default_rng(0)
    columns = {"q": rng.integers(0, 300, 900), "click": rng.integers(0, 2, 900)}
    csv.write_csv(pa.table(columns), tmp_path / "log.csv")
    code, said, err = mmoe(
        "init", tmp_path / "log.csv", "--label", "click", "--out", tmp_path / "c.yaml"
    )
    assert code == 0, err
    assert "unsure whether ids or numbers: 'q'; say --categorical or --numeric" in said


def test_what_is_dropped_need_not_be_readable(tmp_path, mmoe):
    rng = np.random.default_rng(0)
    rows = [
        {"user": int(user), "tags": ["a", 1], "click": int(click)}
        for user, click in zip(rng.integers(0, 9, ROWS), rng.integers(0, 2, ROWS), strict=True)
    ]
    path, out = tmp_path / "log.jsonl", tmp_path / "c.yaml"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    init = ["init", path, "--label", "click", "--out", out]
    code, _, err = mmoe(*init)
    assert code == 2 and "column 'tags' holds lists of text and numbers" in err
    code, said, _ = mmoe(*init, "--drop", "tags")
    assert code == 0 and "left out 'tags': --drop" in said
    config = load_config(out)
    assert [feature.name for feature in config.features] == ["user"]
    assert load_splits(config).train.num_rows > 0

"""Lists of real numbers become vectors, in any form; lists of ids stay what they are."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import VectorFeature, load_config
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.infer.profile import VectorFacts, guess_vector

ROWS = 60
_RNG = np.random.default_rng(0)
VECTORS = _RNG.normal(size=(ROWS, 5)).round(3).tolist()
IDS = _RNG.integers(0, 9, (ROWS, 5)).tolist()
LABEL = [0, 1, 1] * 20


def _kind(values):
    table = pa.table({"age": _RNG.random(ROWS), "x": values, "click": LABEL})
    config, reasons = infer_config(table, ["click"])
    found = {feature.name: feature for feature in config.features}
    return found["x"].kind if "x" in found else dict(reasons.left_out)["x"]


@pytest.mark.parametrize(
    "values",
    [
        VECTORS,
        pa.array(VECTORS, pa.list_(pa.float32(), 5)),
        [None if row % 9 == 0 else v for row, v in enumerate(VECTORS)],
        [json.dumps(v) for v in VECTORS],
        [str(np.array(v)) for v in VECTORS],
        ["" if row % 9 == 0 else str(tuple(v)) for row, v in enumerate(VECTORS)],
    ],
    ids=["lists", "fixed", "gaps", "json", "numpy", "tuples"],
)
def test_vectors(values):
    assert _kind(values) == "vector"


@pytest.mark.parametrize(
    "values",
    [
        IDS,
        [[float(i) for i in row] for row in IDS],
        [[f"t{i}" for i in row] for row in IDS],
        [[0.25, 0.5][: row % 4 % 3] for row in range(ROWS)],
        [[] for _ in range(ROWS)],
    ],
    ids=["ids", "floats", "texts", "few", "empty"],
)
def test_lists_of_ids_stay_lists(values):
    assert _kind(values) == "list"


def test_vectors_of_different_lengths_are_left_out_with_a_word():
    ragged = [v[: 2 + row % 3] for row, v in enumerate(VECTORS)]
    assert _kind(ragged) == (
        "lists of real numbers, 2 in row 1, 3 in row 2: vectors need one length; beside a list of "
        "ids they may be its `weights`"
    )
    assert "2 in row 1, 3 in row 2" in _kind([json.dumps(v) for v in ragged])


def test_long_ones_are_projected_where_there_are_rows_to_learn_it_from():
    guessed = [guess_vector(VectorFacts(n), rows, "x", None)
               for n, rows in ((768, 50_000), (768, 5_000), (16, 50_000))]  # fmt: skip
    assert [feature.dim for feature, _ in guessed] == [32, None, None]
    assert guessed[0][1] == "vectors of 768 numbers; projected to 32"


def test_init_says_what_they_are(tmp_path, mmoe):
    long = list(_RNG.normal(size=(ROWS, 40)))
    table = pa.table(
        {"Title-Vec": pa.array(long, mask=np.arange(ROWS) % 6 == 0), "short": VECTORS,
         "ragged": [v[: 2 + row % 3] for row, v in enumerate(VECTORS)], "click": LABEL}
    )  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    out = tmp_path / "config.yaml"
    code, text, _ = mmoe("init", tmp_path / "log.parquet", "--label", "click", "--out", out)
    assert code == 0
    assert (
        "left out 'ragged': lists of real numbers, 2 in row 1, 3 in row 2: vectors need one" in text
    )
    comments = out.read_text()
    assert "# vectors of 40 numbers, 17 % missing" in comments
    first, second = load_config(out).features
    assert isinstance(first, VectorFeature)
    assert isinstance(second, VectorFeature)
    assert (first.kind, first.name, first.column, first.dim) == (
        "vector", "Title_Vec", "Title-Vec", None
    )  # fmt: skip
    assert (second.kind, second.name, second.dim) == ("vector", "short", None)

"""Padding of lists in a first config: found at one end, said where it is unclear."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import load_config
from mmoe.datasets.infer.config import infer_config

ROWS, LONGEST = 400, 6


def _rows(seed=0, least=0, kinds=30):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, kinds, n).tolist() for n in rng.integers(least, LONGEST + 1, ROWS)]


def _padded(rows, side="right", filler=0):
    fill = [[filler] * (LONGEST - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    return [row + pad if side == "right" else pad + row for row, pad in pairs]


def _inferred(columns):
    log = pa.table({"age": np.arange(ROWS) % 17, "click": np.arange(ROWS) % 2} | columns)
    config, reasons = infer_config(log, ["click"])
    keys = ("padding", "padding_side", "length", "mask")
    found = {
        one.name: {key: getattr(one, key) for key in keys if getattr(one, key) is not None}
        for one in config.features if one.kind == "list"
    }  # fmt: skip
    return found, reasons


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [0, -1, 999, 0.0, "0", "<pad>", "PAD"])
@pytest.mark.parametrize("form", ["lists", "text", "json"])
def test_one_value_at_one_end(form, filler, side):
    rows = _rows(least=0)
    if isinstance(filler, str):
        rows = [list(map(str, row)) for row in rows]
    rows = _padded(rows, side, filler)
    write = {
        "lists": lambda row: row,
        "text": lambda row: "|".join(map(str, row)),
        "json": json.dumps,
    }[form]
    found, reasons = _inferred({"seen": [write(row) for row in rows]})
    assert found["seen"].pop("padding_side") == side
    assert float(found["seen"]["padding"]) == float(filler) if str(filler)[0].isdigit() else True
    assert str(found["seen"]["padding"]).removesuffix(".0") == str(filler).removesuffix(".0")
    assert f"padded {'behind' if side == 'right' else 'before'} with" in reasons.features["seen"]
    assert not reasons.unclear


def test_the_value_may_be_an_item_too():
    rows = _padded([[0, *row] if n % 5 == 0 else row for n, row in enumerate(_rows())], "left")
    rows = [row[-LONGEST:] for row in rows]
    assert _inferred({"seen": rows})[0] == {"seen": {"padding": 0, "padding_side": "left"}}


@pytest.mark.parametrize(
    "rows",
    [
        _rows(least=1),  # ragged
        _rows(least=LONGEST),  # full
        _padded(_rows(kinds=3)),  # flags
        np.random.default_rng(0).poisson(0.3, (ROWS, LONGEST)).tolist(),  # counts of days
        np.sort(np.random.default_rng(0).integers(0, 9, (ROWS, 4))).tolist(),
        [[7, 8, n % 9] for n in range(ROWS)],
    ],
    ids=["ragged", "full", "flags", "counts", "sorted", "constant"],
)
def test_no_padding(rows):
    found, reasons = _inferred({"seen": rows})
    assert found == {"seen": {}} and not reasons.unclear


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0] * (n % 3) + [n % 7 + 1, n % 5 + 1] + [0] * (4 - n % 3) for n in range(ROWS)],
         "'seen' has a run of 0 at both ends of many rows"),
        ([row + [0 if n % 2 else -1] * (LONGEST - len(row)) for n, row in enumerate(_rows())],
         "'seen' has runs of -1 and 0 at one end of many rows"),
    ],
    ids=["both ends", "several values"],
)  # fmt: skip
def test_what_is_unclear_is_said_and_not_guessed(rows, said, tmp_path, mmoe):
    log = pa.table({"age": np.arange(ROWS) % 17, "click": np.arange(ROWS) % 2, "seen": rows})
    pq.write_table(log, tmp_path / "log.parquet")
    out = tmp_path / "config.yaml"
    code, printed, errors = mmoe("init", tmp_path / "log.parquet", "--label", "click", "--out", out)
    assert code == 0 and said in printed + errors and "so all are items" in printed + errors
    assert "padded? 'seen'" in out.read_text()
    (feature,) = [one for one in load_config(out).features if one.name == "seen"]
    assert feature.padding is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_belongs_to_items_is_padded_where_they_are(side):
    """Two kinds are too few to tell, and times in order begin with the least anyway."""
    rows = _rows()
    more = {
        "kind": ([[1 + one % 2 for one in row] for row in rows], 0),
        "word": ([["ab"[one % 2] for one in row] for row in rows], "none"),
        "at": ([[10**9 + n for n, _ in enumerate(row)] for row in rows], 0),
    }
    lists = {name: _padded(cells, side, filler) for name, (cells, filler) in more.items()}
    found, reasons = _inferred({**lists, "seen": _padded(rows, side), "flag": [[0, 1]] * ROWS})
    assert found.pop("flag", {}) == {} and not reasons.unclear
    fillers = {"seen": 0} | {name: filler for name, (_, filler) in more.items()}
    assert found == {
        name: {"padding": filler, "padding_side": side} for name, filler in fillers.items()
    }
    flags = _padded([[one % 2 for one in row] for row in rows], side)
    found, reasons = _inferred({"flag": flags, "seen": _padded(rows, side)})
    assert found["flag"] == {} and "'flag' has 0 where 'seen' is padded" in str(reasons)


def test_lengths_and_masks_say_it_where_the_value_does_not():
    """Where zeros at the end are items, a length or a mask knows; else the value is enough."""
    rows = _rows(least=1)
    ends = [[*row[:-1], 0] if n % 4 == 0 else row for n, row in enumerate(rows)]
    counts = list(map(len, rows))
    mask = _padded([[1] * len(row) for row in rows])
    value = {"padding": 0, "padding_side": "right"}
    found, _ = _inferred({"seen": _padded(rows), "n": counts})
    assert found == {"seen": value}
    found, _ = _inferred({"seen": _padded(ends), "n": counts})
    assert found == {"seen": {"length": "n"}}
    found, reasons = _inferred({"seen": _padded(rows), "mask": mask})
    assert found == {"seen": value} and dict(reasons.left_out)["mask"] == "the mask of 'seen'"
    found, reasons = _inferred({"seen": _padded(ends), "mask": mask})
    assert found == {"seen": {"mask": "mask"}} and "mask" in dict(reasons.left_out)
    starts = [[0, *row[1:]] if n % 4 == 0 else row for n, row in enumerate(rows)]
    found, _ = _inferred({"seen": _padded(starts, "left"), "n": counts})
    assert found == {"seen": {"length": "n", "padding_side": "left"}}

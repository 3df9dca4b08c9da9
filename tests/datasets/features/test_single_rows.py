"""`FeatureEncoder.encode_row`: a row by its cells is the row of a table, bit for bit."""

import copy
import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.frames import as_table

N = 400
WORDS = ["a", "b ", " c", "NA", "", "null", "Ærø", "x\u00a0", "a\tb", "2026-01-01T00:00:00.50", "7"]
WORDS += ["2026-01-01 00:00", "007", "7.0", "+7", "a-very-long-word-of-many-letters", "\x1fy", None]
MOMENTS = ["2026-01-31 23:59:59", "2026-02-28T12:00:00", "2026-01-01T00:00:00Z", "NA", None]
MOMENTS += [" 2026-01-01 10:00", "2026-01-01 20:00:00+01:00", "2026-03-04T20:00:00.25"]
MOMENTS += ["0001-01-01 00:00:00"]
FEATURES = [
    {"kind": "categorical", "name": "word"},
    {"kind": "categorical", "name": "rare", "column": "word", "min_count": 20},
    {"kind": "categorical", "name": "hashed", "column": "word", "encoding": "hash"},
    {"kind": "categorical", "name": "many"},
    {"kind": "categorical", "name": "number", "column": "integer"},
    {"kind": "categorical", "name": "half", "column": "fraction"},
    {"kind": "categorical", "name": "digits"},
    {"kind": "categorical", "name": "flag"},
    {"kind": "categorical", "name": "same"},
    {"kind": "categorical", "name": "wide"},
    {"kind": "numeric", "name": "integer"},
    {"kind": "numeric", "name": "fraction", "log": False, "buckets": 4},
    {"kind": "numeric", "name": "kept", "column": "price", "outside": "keep", "log": False},
    {"kind": "numeric", "name": "price", "pieces": 5},
    {"kind": "numeric", "name": "flat"},
    {"kind": "numeric", "name": "empty"},
    {"kind": "numeric", "name": "text", "column": "digits", "missing_values": [3]},
    {"kind": "numeric", "name": "yes", "column": "flag"},
    {"kind": "cross", "name": "both", "columns": ["word", "integer"]},
    {"kind": "datetime", "name": "at", "parts": ["hour", "weekday"], "cyclic": True},
    {"kind": "datetime", "name": "day", "parts": ["month"]},
    {"kind": "datetime", "name": "moment", "parts": ["hour", "day"], "timezone": "Asia/Tokyo"},
    {"kind": "list", "name": "tags"},
]


def log(seed, number=1.0):
    rng = np.random.default_rng(seed)
    gaps = rng.random(N) < 0.1
    at = np.datetime64("2026-01-01T00:00") + rng.integers(0, 10**6, N)
    numbers = rng.lognormal(0, 1, N) * number
    numbers[:3] = 0.0, -0.0, -1e12
    return pa.table(
        {
            "word": pa.array(rng.choice(np.array(WORDS, object), N)),
            "many": [f"id {i}" for i in rng.integers(0, 9000, N)],
            "integer": pa.array(rng.integers(-5, 60, N), mask=gaps),
            "fraction": pa.array(rng.integers(0, 30, N) / 4, mask=gaps),
            "digits": pa.array([str(i) if i else None for i in rng.integers(0, 9, N)]),
            "flag": pa.array(rng.random(N) < 0.5, mask=gaps),
            "same": ["one" if number == 1.0 else "another"] * N,
            "wide": pa.array(rng.integers(0, 2**62, N) * 2 + gaps, pa.uint64()),
            "price": numbers,
            "flat": [1.0 if number == 1.0 else 2.0] * N,
            "empty": pa.array([None] * N, pa.float64()) if number == 1.0 else pa.array(numbers),
            "at": pa.array(at.astype("M8[us]"), mask=gaps),
            "day": np.datetime_as_string(at.astype("M8[D]")),
            "moment": rng.choice(np.array(MOMENTS, object), N),
            "tags": ["|".join(map(str, rng.integers(0, 9, n))) for n in rng.integers(0, 4, N)],
            "unused": [{"a": [1]}] * N,
        }
    )


def encoder_of(train, **others):
    task = {"name": "click", "label": "integer > 3", "kind": "binary"}
    config = config_from_dict({"features": FEATURES, "tasks": [task], **others})
    return FeatureEncoder.fit(config, train, "log")


def exact(features):
    arrays = [features.dense_NF, features.ids_NC, features.domains_N]
    arrays += [array for one in features.lists for array in one] + [*features.list_weights]
    arrays += [features.outside[name] for name in sorted(features.outside)]
    shown = [None if a is None else (a.dtype, a.shape, a.tobytes()) for a in arrays]
    return shown, sorted(features.outside), sorted(features.links)


@pytest.fixture(name="encoder", scope="module")
def _encoder():
    return encoder_of(log(0))


FORMS = {
    "table": lambda table: table,
    "frame": lambda table: table.to_pandas(),
    "columns": lambda table: table,
    "categories": lambda table: table.to_pandas().astype({"word": "category"}),
    "objects": lambda table: table.to_pandas().astype(object),
    "nullable": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("words", [{}, {"data": {"missing_words": []}}], ids=["words", "none"])
def test_a_row_by_its_cells_is_that_row_of_a_table(words):
    train = log(0)
    kept = [f for f in FEATURES if not words or f["kind"] in ("categorical", "cross", "list")]
    encoder = encoder_of(train, **words, features=kept)
    for number, form in zip((1.0, 1.0, 1.0, 1e3, 1e3, 1e3), FORMS, strict=True):
        table = log(1, number)
        whole, rows = encoder.encode(table, "log"), FORMS[form](table)
        for n in [*range(10), *range(3)]:
            row = rows[n : n + 1]
            row = row.to_pydict() if form == "columns" else row
            found = encoder.encode_row(row)
            assert exact(found) == exact(encoder.encode(as_table(row), "log"))
            assert np.array_equal(found.dense_NF[0], whole.dense_NF[n])
            assert np.array_equal(found.ids_NC[0], whole.ids_NC[n])
            assert {name for name, out in whole.outside.items() if out[n]} == {*found.outside}
    assert encoder.encode_row(table) is encoder.encode_row(table[:0]) is None


def test_numbers_of_all_features_at_once_are_those_of_each(encoder):
    """Also where some have a logarithm, some no limit, and one was constant."""
    values = [0.0, -0.0, 1e-300, -3.5, 7, 2**62, -(2**63), 1e300, np.nan, np.float64(0.1)]
    cells = ("price", "flat", "empty")
    for value in values:
        row = {**log(0)[:1].to_pydict(), **{name: [value] for name in cells}}
        assert exact(encoder.encode_row(row)) == exact(encoder.encode(as_table(row), "log"))


@pytest.mark.parametrize("change", [
    {"price": [float("inf")]},
    {"price": ["dear"]},
    {"price": [10**400]},
    {"price": [1.0, 2.0]},
    {"price": [[1.0]]},
    {"price": np.ma.array([1.0], mask=[True])},
    {"price": None},
    {"day": ["yesterday"]},
    {"word": [{"a": 1}]},
], ids=repr)  # fmt: skip
def test_what_a_table_refuses_no_row_is_made_of(encoder, change):
    row = log(1)[:1].to_pydict()
    assert encoder.encode_row(row) is not None
    try:
        expected = exact(encoder.encode(as_table({**row, **change}), "log"))
    except (ValueError, TypeError):
        expected = None
    found = encoder.encode_row({**row, **change})
    assert found is None or exact(found) == expected
    without = {name: cells for name, cells in row.items() if name not in change}
    assert encoder.encode_row(without) is None


def test_equal_cells_of_other_types_are_other_cells(encoder):
    row = log(1)[:1].to_pydict()
    moment = datetime.datetime(2026, 1, 1, 5)
    for cells in ([1, 1.0, True, "1"], [0, 0.0, -0.0, False], [None, float("nan"), "NA", "nan"]):
        for value in cells:
            for name in ("word", "integer", "digits", "flag"):
                one = {**row, name: [value]}
                assert exact(encoder.encode_row(one)) == exact(encoder.encode(as_table(one), "l"))
    texts = ("2026-02-30", "2026-01-01", "2026-01-01 24:00:00", "2026-01-01T10:00:00\n", "NaT")
    ats = (moment, moment.date(), "2026-01-01T05:00:00", "2026-01-01 05:00", None) * 2
    for name, cells in (("moment", texts), ("at", ats)):
        for cell in cells:
            one = {**row, name: [cell]}
            try:
                expected = exact(encoder.encode(as_table(one), "log"))
            except ValueError:
                expected = None
            found = encoder.encode_row(one)
            assert found is expected is None or exact(found) == expected


def test_copies_begin_without_cells_and_a_full_store_of_cells_is_emptied(monkeypatch):
    monkeypatch.setattr("mmoe.datasets.features.single_rows._MOST_CELLS", 20)
    encoder, table = encoder_of(log(0)), log(1)
    for n in range(30):
        encoder.encode_row(table.slice(n, 1))
        assert len(encoder._singly.known) <= 20
    assert "_singly" not in vars(copy.copy(encoder))

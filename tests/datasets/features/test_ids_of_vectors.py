"""Ids of training beside those of a file of vectors: which have rows, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from mmoe.config import TableVectors
from mmoe.datasets.features import table_vectors
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder
from mmoe.datasets.features.table_vectors import ScalingFit, vector_chunks
from tests.small_configs import click_config

TRAIN = [7, 7, 7, 5, 5, 3]  # most frequent first


@pytest.fixture(name="file")
def _file(tmp_path):
    def write(ids, dim=4, name="items.parquet"):
        vectors = np.random.default_rng(0).random((len(ids), dim))
        pq.write_table(pa.table({"id": ids, "vector": list(vectors)}), tmp_path / name)
        return str(tmp_path / name)

    return write


def _config(path, feature=(), **keys):
    vectors = {"path": path, "id": "id", **keys}
    return click_config(
        {"kind": "categorical", "name": "item", "vectors": vectors, **dict(feature)}
    )


def _fitted(path, train=TRAIN, feature=(), **keys):
    config = _config(path, feature, **keys)
    return FeatureEncoder.fit(config, pa.table({"item": train}), "log")


def _keys(encoder):
    return encoder.ids["item"].keys.to_pylist()


@pytest.mark.parametrize(("keys", "feature", "ids"), [
    ({"frozen": True}, {}, [7, 5, 3, 9, 1]),
    ({"frozen": True, "ids": "seen"}, {}, [7, 5, 3]),
    ({}, {}, [7, 5, 3]),
    ({"ids": "all"}, {}, [7, 5, 3, 9, 1]),
    # One with a vector has a row, whatever min_count says
    ({"least_share": 0}, {"min_count": 2}, [7, 5, 3]),
    ({"least_share": 0}, {"min_count": 3}, [7, 3]),
])  # fmt: skip
def test_which_ids_have_rows(file, keys, feature, ids):
    encoder = _fitted(file([9, 3, 1, 7]), feature=feature, **keys)
    assert _keys(encoder) == ids
    [table] = encoder.tables
    assert (table.num_rows, table.dim) == (2 + len(ids), 4)
    assert table.frozen == keys.get("frozen", False)
    counts = encoder.ids["item"].counts.tolist()
    assert counts == [TRAIN.count(key) for key in ids]


@pytest.mark.parametrize(("dim", "width"), [(4, 4), (5, 8), (12, 12)])
def test_the_width_is_that_of_the_vectors(file, dim, width):
    [table] = _fitted(file([7, 5], dim)).tables
    assert table.dim == width
    [table] = _fitted(file([7, 5], dim), feature={"dim": width}).tables
    assert table.dim == width
    with pytest.raises(
        ValueError,
        match=rf"its vectors have {dim} numbers, but dim of table 'item' is 64; say dim: {width}",
    ):
        _fitted(file([7, 5], dim), feature={"dim": 64})


def test_ids_are_one_in_every_form(file):
    texts = file(["7", "5", "x1"])
    assert _keys(_fitted(texts)) == [7, 5, 3]
    # What is no number makes all of them text
    assert _keys(_fitted(texts, frozen=True)) == ["7", "5", "3", "x1"]
    encoder = _fitted(texts, frozen=True)
    ids_NC = encoder.encode(pa.table({"item": [5, 7, 8]}), "log").ids_NC
    assert ids_NC[:, 0].tolist() == [3, 2, 1]
    assert _keys(_fitted(file([7, 5]), ["7", "a", "7"])) == ["7", "a"]


@pytest.mark.parametrize(("ids", "train", "message"), [
    ([7, 5, 9, 5], TRAIN, r"column 'id' .*: rows 2 and 4 have the same id, 5; keep one"),
    (["7", "7.0", "8"], TRAIN, r"rows 1 and 2 have the same id"),
    ([7, None, 5], TRAIN, r"items.parquet: column 'id' .*: row 2 has no id; remove it"),
    (["7", "", "5"], ["7", "5"], r"row 2 has no id"),
    ([7, 100, 101], TRAIN,
     r"log: column 'item' .*: only 1 of 3 ids \(33%\) have a vector in .*; the most frequent "
     r"without: 5, 3; .* vectors.least_share: 0.33"),
    (["a7", "a5"], TRAIN,
     r"none of its 3 ids has a vector in .*: here 7, 5, 3, there 'a7', 'a5' \(large_string\); "
     r"write both in one form"),
    ([1, 2], ["x", "y"], r"here 'x', 'y', there 1, 2 \(int64\)"),
])  # fmt: skip
def test_ids_that_do_not_fit_are_named(file, ids, train, message):
    with pytest.raises(ValueError, match=message):
        _fitted(file(ids), train)


def test_rows_and_scale_are_stored_and_kept_by_a_warm_start(file, tmp_path):
    monday = _fitted(file([9, 3, 1, 7], 5), frozen=True)
    monday.save(tmp_path / "vocabulary")
    (tmp_path / "items.parquet").unlink()
    loaded = FeatureEncoder.load(tmp_path / "vocabulary")
    assert loaded.rules["table_vectors"] == monday.rules["table_vectors"]
    assert loaded.tables == monday.tables
    assert loaded.fingerprint() == monday.fingerprint()
    tuesday = _fitted(file([8, 3, 7], 5), [8, 8, 3, 4], frozen=True)
    both = extend_encoder(tuesday, monday, "log")
    assert _keys(both) == [7, 5, 3, 9, 1, 8, 4]
    assert both.rules["table_vectors"] == monday.rules["table_vectors"]
    assert both.rules["table_vectors"] != tuesday.rules["table_vectors"]
    with pytest.raises(ValueError, match=r"has 5 ids.*max_rows is 4.* or vectors.ids: seen"):
        _fitted(file([9, 3, 1, 7]), feature={"max_rows": 4}, frozen=True)


IDS = np.array([30, 10, 20, 50, 40])
VECTORS = np.arange(30, dtype=np.float64).reshape(5, 6) / 8 - 2  # exact in float16


def _lists(vectors, kind):
    return pa.array([list(map(kind.to_pandas_dtype(), row)) for row in vectors], pa.list_(kind))


def _parquet(path, ids=IDS, vectors=VECTORS, kind=None, fixed=False):
    kind = kind or pa.float32()
    column = _lists(vectors, kind)
    if fixed:
        column = column.cast(pa.list_(kind, len(vectors[0])))
    pq.write_table(pa.table({"item_id": ids, "embedding": column}), path, row_group_size=2)


def _read(path, **keys):
    keys = {"id": "item_id", "vector": "embedding", **keys}
    found = list(vector_chunks(TableVectors(path=str(path), **keys), "table 'item'"))
    ids = [value for chunk in found for value in chunk.ids.to_pylist()]
    return ids, np.concatenate([chunk.numbers_NL for chunk in found])


@pytest.mark.parametrize(
    ("kind", "fixed", "rows"),
    [("float16", False, 2), ("float32", True, 2), ("float32", False, 100), ("float64", True, 100)],
)
def test_parquet(tmp_path, monkeypatch, kind, fixed, rows):
    monkeypatch.setattr(table_vectors, "_ROWS", rows)
    _parquet(tmp_path / "v.parquet", kind=getattr(pa, kind)(), fixed=fixed)
    ids, numbers_NL = _read(tmp_path / "v.parquet")
    assert ids == IDS.tolist()
    assert numbers_NL.dtype == np.float32 and np.array_equal(numbers_NL, VECTORS)


@pytest.mark.parametrize(("kind", "with_ids", "numbers"), [
    ("float16", True, 12),
    ("bfloat16", False, 12),
    ("float32", False, 10**6),
    ("float64", True, 10**6),
])  # fmt: skip
def test_safetensors(tmp_path, monkeypatch, kind, with_ids, numbers):
    monkeypatch.setattr("mmoe.datasets.features.table_vectors._NUMBERS", numbers)
    tensor = torch.from_numpy(VECTORS).to(getattr(torch, kind))
    tensors = {"embedding": tensor, "item_id": torch.from_numpy(IDS)}
    save_file(tensors, tmp_path / "v.safetensors")
    ids, numbers_NL = _read(tmp_path / "v.safetensors", id="item_id" if with_ids else None)
    assert ids == (IDS.tolist() if with_ids else list(range(5)))
    assert numbers_NL.dtype == np.float32
    assert np.array_equal(numbers_NL, tensor.float().numpy())


def test_unsigned_ids(tmp_path):
    tensors = {
        "embedding": torch.from_numpy(VECTORS),
        "item_id": torch.from_numpy(IDS).to(torch.uint64),
    }
    save_file(tensors, tmp_path / "v.safetensors")
    assert _read(tmp_path / "v.safetensors", id="item_id")[0] == IDS.tolist()
    large = np.array([1, 2, 3, 4, 2**63], np.uint64)
    save_file({**tensors, "item_id": torch.from_numpy(large)}, tmp_path / "v.safetensors")
    with pytest.raises(ValueError, match=r"holds 9223372036854775808, expected ids below 2\^63"):
        _read(tmp_path / "v.safetensors", id="item_id")


def test_what_the_data_may_be_a_file_of_vectors_may_be(tmp_path):
    """Text such as CSV has, a folder of files, an address."""
    (tmp_path / "v.csv").write_text('item_id,embedding\n7,"[0.5, 1]"\n8,"[2, 4]"\n')
    assert _read(tmp_path / "v.csv")[1].tolist() == [[0.5, 1.0], [2.0, 4.0]]
    (tmp_path / "parts").mkdir()
    for n in range(2):
        _parquet(tmp_path / "parts" / f"{n}.parquet", IDS + n, VECTORS)
    assert _read(tmp_path / "parts")[0] == [*IDS, *(IDS + 1)]
    save_file({"embedding": torch.from_numpy(VECTORS)}, tmp_path / "v.safetensors")
    for name in ("v.safetensors", "parts/0.parquet"):
        keys = {"id": None} if name == "v.safetensors" else {}
        assert len(_read(f"file://{tmp_path / name}", **keys)[0]) == 5


def _with(row, column, value):
    vectors = VECTORS.copy()
    vectors[row, column] = value
    return vectors


@pytest.mark.parametrize(("vectors", "message"), [
    ([*VECTORS[:3].tolist(), [1.0], VECTORS[4].tolist()],
     r"v.parquet: row 4: column 'embedding' \(of table 'item'\) holds 1 numbers, expected 6"),
    (_with(3, 2, np.nan), r"v.parquet: row 4: .* holds a missing number, expected finite"),
    (_with(2, 0, -np.inf), r"v.parquet: row 3: .* holds -inf, expected finite numbers"),
    (_with(4, 5, 1e39), r"v.parquet: row 5: .* holds 1e\+39, expected .* of float32"),
    ([*VECTORS[:4].tolist(), []], r"v.parquet: row 5: .* holds no vector; remove the row"),
    (np.full((5, 6), np.nan), r"v.parquet: row 1: .* holds no vector"),
])  # fmt: skip
@pytest.mark.parametrize("rows", [2, 100])
def test_a_vector_that_is_none_is_named_by_its_row(tmp_path, monkeypatch, vectors, message, rows):
    monkeypatch.setattr(table_vectors, "_ROWS", rows)
    _parquet(tmp_path / "v.parquet", vectors=vectors, kind=pa.float64())
    with pytest.raises(ValueError, match=message):
        _read(tmp_path / "v.parquet")


def test_a_column_that_is_none_is_named(tmp_path):
    _parquet(tmp_path / "v.parquet")
    for keys, message in (
        ({"id": "item"}, r"no column 'item', which vectors of table 'item' needs \(did you mean"),
        ({"vector": "vec"}, "no column 'vec', which vectors of table 'item' needs"),
        (
            {"id": None},
            "table 'item': vectors has no id, the column of ids in .*; say id: COLUMN; ",
        ),
        ({"vector": "item_id"}, "holds int64, expected lists of numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            _read(tmp_path / "v.parquet", **keys)


@pytest.mark.parametrize(("keys", "message"), [
    ({"vector": "embeding"}, r"no tensor 'embeding', .* \(did you mean 'embedding'\?\)"),
    ({"vector": "item_id"}, r"tensor 'item_id' .* is I64 \[5\], expected floats \[N, dim\]"),
    ({"id": "few"}, r"tensor 'few' .* is I64 \[4\], expected whole numbers \[5\]"),
    ({"id": "embedding"}, r"is F64 \[5, 6\], expected whole numbers \[5\]"),
    ({"vector": "bad"}, r"row 3 \(from 0\): tensor 'bad' .* holds a missing number"),
    ({"vector": "none"}, r"v.safetensors: holds no vectors"),
])  # fmt: skip
def test_a_tensor_that_is_none_is_named(tmp_path, keys, message):
    tensors = {
        "embedding": torch.from_numpy(VECTORS),
        "item_id": torch.from_numpy(IDS),
        "few": torch.arange(4),
        "bad": torch.from_numpy(_with(3, 1, np.nan)),
        "none": torch.zeros(0, 6),
    }
    save_file(tensors, tmp_path / "v.safetensors")
    keys = {"id": None, **keys}
    with pytest.raises(ValueError, match=message):
        _read(tmp_path / "v.safetensors", **keys)


def test_files_that_are_none_are_named(tmp_path):
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    for name, message in (
        ("torn.safetensors", "cannot be read as safetensors .*; write it again"),
        ("torn.parquet", "torn.parquet"),
        ("none.safetensors", "no such file"),
        ("none.parquet", "no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            _read(tmp_path / name)
    _parquet(tmp_path / "empty.parquet", IDS[:0], VECTORS[:0])
    with pytest.raises(ValueError, match=r"empty.parquet: holds no vectors"):
        _read(tmp_path / "empty.parquet")
    wide = np.zeros((1, 4097))
    _parquet(tmp_path / "wide.parquet", IDS[:1], wide)
    with pytest.raises(ValueError, match=r"4,097 numbers .* at most 4,096 wide"):
        _read(tmp_path / "wide.parquet")


def _scaled(vectors_NL, scale, pieces=1):
    vectors = TableVectors(path="v.parquet", id="id", scale=scale)
    fit = ScalingFit(vectors)
    for piece in np.array_split(vectors_NL.astype(np.float32), pieces):
        fit.add(piece)
    scaling = fit.finish()
    return scaling.rows(vectors_NL.astype(np.float32), vectors), scaling.row_of_others(vectors)


def test_scales():
    vectors_NL = np.random.default_rng(0).normal(100, [1, 5, 1e-3, 0, 2, 9], (500, 6))
    rows_ND, others_D = _scaled(vectors_NL, "standard", 7)
    assert rows_ND.shape == (500, 8) and not rows_ND[:, 6:].any()
    np.testing.assert_allclose(rows_ND.mean(axis=0), 0, atol=1e-3)
    varying = [0, 1, 2, 4, 5]
    np.testing.assert_allclose(rows_ND[:, varying].var(axis=0), 6**-0.5, rtol=1e-2)
    assert not rows_ND[:, 3].any() and not others_D.any()

    rows_ND, others_D = _scaled(vectors_NL, "unit", 7)
    np.testing.assert_allclose(np.linalg.norm(rows_ND, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(others_D, rows_ND.mean(axis=0), rtol=1e-5)

    rows_ND, others_D = _scaled(vectors_NL, "keep", 7)
    assert np.array_equal(rows_ND[:, :6], vectors_NL.astype(np.float32))
    np.testing.assert_allclose(others_D, rows_ND.mean(axis=0), rtol=1e-5)
    zeros, _ = _scaled(np.zeros((3, 4)), "unit", 7)
    assert not zeros.any()

"""Files of vectors: every format gives the same rows, and what is wrong is named by its row."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from mmoe.config import TableVectors
from mmoe.datasets.vectors import chunks
from mmoe.datasets.vectors.chunks import vector_chunks
from mmoe.datasets.vectors.learn import ScalingFit

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


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("fixed", [False, True], ids=["lists", "fixed size"])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_parquet(tmp_path, monkeypatch, kind, fixed, rows):
    monkeypatch.setattr(chunks, "_ROWS", rows)
    _parquet(tmp_path / "v.parquet", kind=getattr(pa, kind)(), fixed=fixed)
    ids, numbers_NL = _read(tmp_path / "v.parquet")
    assert ids == IDS.tolist()
    assert numbers_NL.dtype == np.float32 and np.array_equal(numbers_NL, VECTORS)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "numbers of rows"])
@pytest.mark.parametrize("numbers", [12, 10**6])
def test_safetensors(tmp_path, monkeypatch, kind, with_ids, numbers):
    monkeypatch.setattr("mmoe.datasets.vectors.chunks._NUMBERS", numbers)
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


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            [*VECTORS[:3].tolist(), [1.0], VECTORS[4].tolist()],
            r"v.parquet: row 4: column 'embedding' \(of table 'item'\) holds 1 numbers, expected 6",
        ),
        (_with(3, 2, np.nan), r"v.parquet: row 4: .* holds a missing number, expected finite"),
        (_with(2, 0, -np.inf), r"v.parquet: row 3: .* holds -inf, expected finite numbers"),
        (_with(4, 5, 1e39), r"v.parquet: row 5: .* holds 1e\+39, expected .* of float32"),
        ([*VECTORS[:4].tolist(), []], r"v.parquet: row 5: .* holds no vector; remove the row"),
        (np.full((5, 6), np.nan), r"v.parquet: row 1: .* holds no vector"),
    ],
)
@pytest.mark.parametrize("rows", [2, 100])
def test_a_vector_that_is_none_is_named_by_its_row(tmp_path, monkeypatch, vectors, message, rows):
    monkeypatch.setattr(chunks, "_ROWS", rows)
    _parquet(tmp_path / "v.parquet", vectors=vectors, kind=pa.float64())
    with pytest.raises(ValueError, match=message):
        _read(tmp_path / "v.parquet")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"id": "item"}, r"no column 'item', which vectors of table 'item' needs \(did you mean"),
        ({"vector": "vec"}, "no column 'vec', which vectors of table 'item' needs"),
        (
            {"id": None},
            "table 'item': vectors has no id, the column of ids in .*; say id: COLUMN; the columns "
            "are: item_id, embedding",
        ),
        ({"vector": "item_id"}, "holds int64, expected lists of numbers"),
    ],
)
def test_a_column_that_is_none_is_named(tmp_path, keys, message):
    _parquet(tmp_path / "v.parquet")
    with pytest.raises(ValueError, match=message):
        _read(tmp_path / "v.parquet", **keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vector": "embeding"}, r"no tensor 'embeding', .* \(did you mean 'embedding'\?\)"),
        ({"vector": "item_id"}, r"tensor 'item_id' .* is I64 \[5\], expected floats \[N, dim\]"),
        ({"id": "few"}, r"tensor 'few' .* is I64 \[4\], expected whole numbers \[5\]"),
        ({"id": "embedding"}, r"is F64 \[5, 6\], expected whole numbers \[5\]"),
        ({"vector": "bad"}, r"row 3 \(from 0\): tensor 'bad' .* holds a missing number"),
        ({"vector": "none"}, r"v.safetensors: holds no vectors"),
    ],
)
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


@pytest.mark.parametrize("pieces", [1, 7])
def test_scales(pieces):
    vectors_NL = np.random.default_rng(0).normal(100, [1, 5, 1e-3, 0, 2, 9], (500, 6))
    rows_ND, others_D = _scaled(vectors_NL, "standard", pieces)
    assert rows_ND.shape == (500, 8) and not rows_ND[:, 6:].any()
    np.testing.assert_allclose(rows_ND.mean(axis=0), 0, atol=1e-3)
    varying = [0, 1, 2, 4, 5]
    np.testing.assert_allclose(rows_ND[:, varying].var(axis=0), 6**-0.5, rtol=1e-2)
    assert not rows_ND[:, 3].any() and not others_D.any()

    rows_ND, others_D = _scaled(vectors_NL, "unit", pieces)
    np.testing.assert_allclose(np.linalg.norm(rows_ND, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(others_D, rows_ND.mean(axis=0), rtol=1e-5)

    rows_ND, others_D = _scaled(vectors_NL, "keep", pieces)
    assert np.array_equal(rows_ND[:, :6], vectors_NL.astype(np.float32))
    np.testing.assert_allclose(others_D, rows_ND.mean(axis=0), rtol=1e-5)
    zeros, _ = _scaled(np.zeros((3, 4)), "unit", pieces)
    assert not zeros.any()

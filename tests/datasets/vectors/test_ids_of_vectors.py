"""Ids of training beside those of a file of vectors: which have rows, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder

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
    features = [{"kind": "categorical", "name": "item", "vectors": vectors, **dict(feature)}]
    return config_from_dict({"features": features, "tasks": [{"name": "click", "label": "click"}]})


def _fitted(path, train=TRAIN, feature=(), **keys):
    config = _config(path, feature, **keys)
    return FeatureEncoder.fit(config, pa.table({"item": train}), "log")


def _keys(encoder):
    return encoder.ids["item"].keys.to_pylist()


@pytest.mark.parametrize(
    ("keys", "feature", "ids"),
    [
        ({"frozen": True}, {}, [7, 5, 3, 9, 1]),
        ({"frozen": True, "ids": "seen"}, {}, [7, 5, 3]),
        ({}, {}, [7, 5, 3]),
        ({"ids": "all"}, {}, [7, 5, 3, 9, 1]),
        # One with a vector has a row, whatever min_count says
        ({"least_share": 0}, {"min_count": 2}, [7, 5, 3]),
        ({"least_share": 0}, {"min_count": 3}, [7, 3]),
    ],
)
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


@pytest.mark.parametrize(
    ("ids", "train", "message"),
    [
        ([7, 5, 9, 5], TRAIN, r"column 'id' .*: rows 2 and 4 have the same id, 5; keep one"),
        (["7", "7.0", "8"], TRAIN, r"rows 1 and 2 have the same id"),
        ([7, None, 5], TRAIN, r"items.parquet: column 'id' .*: row 2 has no id; remove it"),
        (["7", "", "5"], ["7", "5"], r"row 2 has no id"),
        (
            [7, 100, 101],
            TRAIN,
            r"log: column 'item' .*: only 1 of 3 ids \(33%\) have a vector in .*; the most "
            r"frequent without: 5, 3; .* vectors.least_share: 0.33",
        ),
        (
            ["a7", "a5"],
            TRAIN,
            r"none of its 3 ids has a vector in .*: here 7, 5, 3, there 'a7', 'a5' "
            r"\(large_string\); write both in one form",
        ),
        ([1, 2], ["x", "y"], r"here 'x', 'y', there 1, 2 \(int64\)"),
    ],
)
def test_ids_that_do_not_fit_are_named(file, ids, train, message):
    with pytest.raises(ValueError, match=message):
        _fitted(file(ids), train)


def test_fewer_vectors_are_allowed_by_name(file):
    path = file([7, 100, 101])
    assert _keys(_fitted(path, least_share=0.33)) == [7, 5, 3]


def test_a_vocabulary_that_outgrows_its_table_is_refused(file):
    with pytest.raises(ValueError, match=r"has 5 ids.*max_rows is 4.* or vectors.ids: seen"):
        _fitted(file([9, 3, 1, 7]), feature={"max_rows": 4}, frozen=True)


def test_it_is_stored_and_read(file, tmp_path):
    encoder = _fitted(file([9, 3, 1, 7], 5), frozen=True)
    encoder.save(tmp_path / "vocabulary")
    (tmp_path / "items.parquet").unlink()
    loaded = FeatureEncoder.load(tmp_path / "vocabulary")
    assert loaded.rules["table_vectors"] == encoder.rules["table_vectors"]
    assert loaded.tables == encoder.tables
    assert loaded.fingerprint() == encoder.fingerprint()


def test_a_warm_start_keeps_rows_and_scale(file):
    monday = _fitted(file([9, 3, 1, 7]), frozen=True)
    tuesday = _fitted(file([8, 3, 7], name="tuesday.parquet"), [8, 8, 3, 4], frozen=True)
    both = extend_encoder(tuesday, monday, "log")
    assert _keys(both) == [7, 5, 3, 9, 1, 8, 4]
    assert both.rules["table_vectors"] == monday.rules["table_vectors"]
    assert both.rules["table_vectors"] != tuesday.rules["table_vectors"]


def test_one_table_of_two_features(file):
    """Ids of both count; vectors stand on the table."""
    config = config_from_dict(
        {
            "tables": [{"name": "t", "vectors": {"path": file([7, 5, 3]), "id": "id"}}],
            "features": [
                {"kind": "categorical", "name": "item", "table": "t"},
                {"kind": "list", "name": "history", "table": "t"},
            ],
            "tasks": [{"name": "click", "label": "click"}],
        }
    )
    train = pa.table({"item": [7, 7, 5], "history": [[3, 3, 3, 7], [], [5]]})
    encoder = FeatureEncoder.fit(config, train, "log")
    assert encoder.ids["t"].keys.to_pylist() == [3, 7, 5]

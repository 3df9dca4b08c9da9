"""Ids that get their rows later: the same 63 bits on every machine, missing and unseen apart."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.config import ManagedIds, config_from_dict, dump_config
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.values.keys import raw_ids

ITEM = {"kind": "categorical", "name": "item", "encoding": "managed", "rows": 50}
SEEN = {"kind": "list", "name": "seen", "encoding": "managed", "rows": 50}
WORD = {"kind": "categorical", "name": "word"}


def _config(*features, **others):
    task = {"name": "click", "label": "click"}
    return config_from_dict({"features": list(features), "tasks": [task], **others})


def _encoder(*features, **columns):
    return FeatureEncoder.fit(_config(*features), pa.table(columns), "train.csv")


def _raw(encoder, column) -> list[int]:
    return encoder.encode(pa.table({"item": column}), "new.csv").ids_NC[:, 0].tolist()


def test_integers_stay_integers():
    encoder = _encoder(ITEM, item=[5, 7])
    assert _raw(encoder, [0, 5, 10**15, None]) == [2, 7, 10**15 + 2, 0]
    assert _raw(encoder, ["5", "", "x", "5.0"]) == [7, 0, 1, 7]
    assert _raw(encoder, [5.0, float("nan"), 6.5]) == [7, 0, 1]


def _mix(value: int) -> int:
    """SplitMix64's finalizer, once more in plain Python."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _hashed(hash_: int) -> int:
    return 2**62 + 2 + hash_ % (2**62 - 4)


def test_text_is_hashed_the_same_everywhere():
    """The numbers are stored with models: they must never change."""
    encoder = _encoder(ITEM, item=["a", "b"])
    found = _raw(encoder, ["ß€", "a", "", None])
    data = "ß€".encode()
    of_bytes = sum(_mix(256 * place + byte) for place, byte in enumerate(data))
    assert found == [_hashed(_mix((of_bytes + len(data)) % 2**64)), 6071658631677739551, 0, 0]
    keys = [-1, 2**62, 2**63 - 1]
    assert _raw(_encoder(ITEM, item=[1, 2]), keys) == [_hashed(_mix(key % 2**64)) for key in keys]
    bits = int(np.float64(0.5).view(np.uint64))
    assert _raw(_encoder(ITEM, item=[0.5, 1.5]), [0.5]) == [_hashed(_mix(bits))]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=200))
def test_integers_never_share_an_id_and_none_is_reserved(keys):
    ids = raw_ids(pa.chunked_array([pa.array(keys, pa.int64())]), 2)
    assert ids.dtype == np.int64
    assert len(np.unique(ids)) == len(keys)
    assert ids.min() >= 2 and ids.max() < 2**63 - 1


def test_only_managed_ids_take_64_bits():
    columns = {"item": [1, 2], "word": ["a", "b"], "seen": [["u", "v"], []]}
    both = _encoder(ITEM, WORD, SEEN, **columns)
    encoded = both.encode(pa.table(columns), "x")
    [(values, offsets)] = encoded.lists
    assert (encoded.ids_NC.dtype, values.dtype) == (np.int64, np.int64)
    assert encoded.ids_NC.tolist() == [[3, 2], [4, 3]]
    assert values[-1] == 0 and offsets.tolist() == [0, 2, 3], "an empty list is missing"
    batch = EncodedData(features=encoded).batch(np.array([1, 0]), pad_to=3)
    assert batch.values.tolist() == [4, 3, 0, 3, 2, 0, 0, *values[:2].tolist(), 0]
    lists_only = _encoder(WORD, SEEN, **columns).encode(pa.table(columns), "x")
    assert (lists_only.ids_NC.dtype, lists_only.lists[0][0].dtype) == (np.int32, np.int64)


def test_tables_and_files(tmp_path):
    shared = {"name": "thing", "encoding": "managed", "rows": 9, "admit_after": 2, "evict": "lru",
              "evict_every": 7, "dim": 8}  # fmt: skip
    config = _config(
        {"kind": "categorical", "name": "item", "table": "thing"},
        {"kind": "list", "name": "seen", "table": "thing"},
        tables=[shared],
    )
    columns = {"item": [3, None], "seen": [["9"], ["3", "4"]]}
    encoder = FeatureEncoder.fit(config, pa.table(columns), "train")
    [table] = encoder.tables
    assert (table.num_rows, table.dim) == (11, 8)
    assert table.managed == ManagedIds(rows=9, admit_after=2, evict="lru", evict_every=7)
    encoder.save(tmp_path)
    again = FeatureEncoder.load(tmp_path)
    assert again.ids == encoder.ids and again.tables == encoder.tables
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.json"], "no vocabulary"
    encoded = again.encode(pa.table(columns), "new")
    assert encoded.ids_NC[:, 0].tolist() == [5, 0]
    assert encoded.lists[0][0].tolist() == [11, 5, 6], "columns that share a table share ids"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"encoding": "managed"}, r"encoding managed needs `rows`.*add rows: N"),
        ({"encoding": "managed", "rows": 1}, r"rows.*greater than or equal to 2"),
        ({"encoding": "managed", "rows": 9, "min_count": 2}, "min_count is 2, but encoding man"),
        ({"encoding": "managed", "rows": 9, "hash_size": 7}, "hash_size goes with encoding hash"),
        ({"encoding": "hash", "rows": 9}, "rows goes with encoding managed, but"),
        ({"evict": "lru"}, "evict goes with encoding managed, .* or change encoding"),
        ({"admit_after": 2}, "admit_after goes with encoding managed, but encoding is vocab"),
        ({"encoding": "managed", "rows": 9, "evict": "fifo"}, "evict"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together(keys, message):
    with pytest.raises(ValueError, match=message):
        _config({"kind": "categorical", "name": "item", **keys})


def test_a_dumped_config_loads(tmp_path):
    from mmoe.config import load_config

    (tmp_path / "c.yaml").write_text(dump_config(_config(ITEM, WORD, SEEN)))
    assert load_config(tmp_path / "c.yaml") == _config(ITEM, WORD, SEEN)

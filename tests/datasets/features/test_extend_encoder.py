"""An encoder that goes on from an earlier one: which ids keep their rows, what is refused."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder, extend_encoder


def _encoder(raw, **columns) -> FeatureEncoder:
    config = config_from_dict(raw)
    return FeatureEncoder.fit(config, pa.table(columns), "log")


def _item(**settings: Any) -> dict[str, Any]:
    return {
        "features": [{"kind": "categorical", "name": "item", **settings}],
        "tasks": [{"name": "click", "label": "click"}],
    }


def test_ids_that_become_text_keep_their_rows():
    old, new = _encoder(_item(), item=[7, 7, 8]), _encoder(_item(), item=["9", "x", "7", "x"])
    both = extend_encoder(new, old, "log").ids["item"]
    assert both.keys.to_pylist() == ["7", "8", "x", "9"]
    assert both.counts.tolist() == [3, 1, 2, 1]
    back = extend_encoder(old, new, "log").ids["item"]
    assert back.keys.to_pylist() == ["x", "7", "9", "8"]


def test_min_count_counts_the_new_days_rows():
    old = _encoder(_item(), item=["a"])
    new = _encoder(_item(min_count=2), item=["a", "b", "c", "c"])
    assert extend_encoder(new, old, "log").ids["item"].keys.to_pylist() == ["a", "c"]


def test_scaling_and_buckets_are_kept_and_new_numbers_fitted():
    raw = {**_item(), "features": [{"kind": "numeric", "name": "age", "buckets": 2}]}
    more = {**raw, "features": [*raw["features"], {"kind": "numeric", "name": "price"}]}
    old = _encoder(raw, age=[1.0, 2.0, 3.0])
    new = _encoder(more, age=[10.0, 20.0, 30.0], price=[5.0, 6.0, 7.0])
    both = extend_encoder(new, old, "log")
    assert both.numeric["age"] == replace(old.numeric["age"], seen=(1.0, 30.0))
    assert both.numeric["price"] == new.numeric["price"]


def test_hashed_ids_of_another_kind_are_refused():
    raw = _item(encoding="hash", hash_size=10)
    old, new = _encoder(raw, item=[7, 8]), _encoder(raw, item=["x", "y"])
    with pytest.raises(ValueError, match=r"log: column 'item' \(of feature 'item'\) holds text ids,"
                       r" but int ids in the run .* they hash differently"):  # fmt: skip
        extend_encoder(new, old, "log")


def test_a_vocabulary_beyond_max_rows_is_refused():
    with pytest.raises(ValueError, match=r"column 'item' \(of feature 'item'\) has 3 ids that were "
                       r"seen at least 1 time\(s\), but max_rows is 2; set max_rows: 3 or more, "
                       r"min_count: 3 \(keeps 1 ids\), or encoding: hash"):  # fmt: skip
        _encoder(_item(max_rows=2), item=["a", "a", "a", "b", "b", "c", "c"])
    old = _encoder(_item(max_rows=3), item=["a", "b"])
    new = _encoder(_item(max_rows=3), item=["c", "d"])
    with pytest.raises(ValueError, match=r"with the ids of earlier days, has 4 ids, but max_rows "
                       r"is 3; set max_rows: 4 or more, or a higher min_count"):  # fmt: skip
        extend_encoder(new, old, "log")
    assert len(_encoder(_item(max_rows=2), item=["a", "b"]).ids["item"].keys) == 2
    with pytest.raises(ValueError, match="max_rows is 5, but encoding hash has as many rows"):
        config_from_dict(_item(max_rows=5, encoding="hash"))

"""`vectors` in a config: where they may stand, and what does not go with them."""

import pytest

from mmoe.config.run import with_vector_paths
from tests.small_configs import click_config

FILE = {"path": "items.parquet", "id": "item_id"}


def _item(kind="categorical", **keys):
    return {"kind": kind, "name": "item", **keys}


@pytest.mark.parametrize(("features", "tables", "message"), [
    ([_item(vectors=FILE, encoding="hash")], [],
     "features.item has vectors and encoding hash, .* say encoding: vocabulary"),
    ([_item(table="t")], [{"name": "t", "vectors": FILE, "encoding": "managed", "rows": 9}],
     "tables.t has vectors and encoding managed"),
    ([_item(table="t", vectors=FILE)], [{"name": "t"}],
     "feature 'item' uses the shared table 't', so vectors must be set on that table under "
     "`tables`"),
    ([_item(vectors={**FILE, "frozen": True}, learning_rate=0.1)], [],
     r"features.item: learning_rate is 0.1, but vectors.frozen is true.* remove " "learning_rate"),
    ([_item("cross", columns=["a", "b"], vectors=FILE)], [], "unknown key 'vectors'"),
    ([_item("cross", columns=["a", "b"], table="t")], [{"name": "t", "vectors": FILE}],
     "features.item is a cross of 2 columns and uses the table 't', but vectors are those of the "
     "ids of one column; give it another table"),
    ([_item(vectors={"id": "item"})], [], "vectors.path"),
    ([_item(vectors={**FILE, "scale": "large"})], [], "vectors.scale"),
    ([_item(vectors={**FILE, "frosen": True})], [], "did you mean 'frozen'"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(features, tables, message):
    with pytest.raises(ValueError, match=message):
        click_config(*features, tables=tables)


def test_ids_of_the_file_have_rows_where_frozen_and_may_have_them_elsewhere():
    def takes_all(**keys):
        [feature] = click_config(_item("list", vectors={**FILE, **keys})).features
        return feature.vectors.takes_all_ids

    assert not takes_all() and takes_all(frozen=True)
    assert takes_all(ids="all") and not takes_all(frozen=True, ids="seen")


def test_paths_are_changed_and_encodings_kept():
    config = click_config(
        _item(vectors=FILE, min_count=3),
        {"kind": "categorical", "name": "brand", "table": "t"},
        {"kind": "categorical", "name": "shop", "table": "u"},
        tables=[{"name": "t", "vectors": {**FILE, "frozen": True}}, {"name": "u"}],
    )
    changed = with_vector_paths(config, lambda path: f"/abs/{path}")
    assert changed.features[0].vectors.path == changed.tables[0].vectors.path
    assert changed.tables[0].vectors.path == "/abs/items.parquet"
    assert changed.features[0].table_encoding.min_count == 3
    assert with_vector_paths(changed, lambda _: "items.parquet") == config

"""Encodings of tables: their keys stand in the section of a feature or table, each's own alone."""

import copy
import pickle

import pytest
import yaml

from mmoe.config import ENCODINGS, CategoricalFeature, config_from_dict, dump_config
from mmoe.config.tables import HashEncoding, ManagedEncoding, VocabularyEncoding
from tests.small_configs import click_config

ITEM = {"kind": "categorical", "name": "item"}


@pytest.mark.parametrize(("keys", "section"), [
    ({}, VocabularyEncoding()),
    ({"min_count": 3, "max_rows": 9}, VocabularyEncoding(min_count=3, max_rows=9)),
    ({"encoding": "hash", "hash_size": 64}, HashEncoding(hash_size=64)),
    ({"encoding": "managed", "rows": 9}, ManagedEncoding(rows=9)),
])  # fmt: skip
@pytest.mark.parametrize(
    "feature", [ITEM, {"kind": "cross", "name": "item", "columns": ["a", "b"]}, None]
)
def test_a_section_holds_one_encoding_and_writes_its_keys(feature, keys, section):
    if feature is None:
        config = click_config(ITEM | {"table": "t"}, tables=[{"name": "t", **keys}])
        holder = config.tables[0]
    else:
        config = click_config(feature | keys)
        [holder] = config.features
    own = section.model_dump()
    assert holder.table_encoding == section
    assert list(holder.model_dump().items())[: len(own)] == list(own.items())
    assert not (set(ENCODINGS.all_keys()) - own.keys()) & holder.model_dump().keys()
    assert config_from_dict(yaml.safe_load(dump_config(config))) == config


def test_a_section_is_a_value_as_any_other():
    hashed = CategoricalFeature(name="item", encoding="hash", hash_size=64)
    assert pickle.loads(pickle.dumps(hashed)) == hashed == copy.deepcopy(hashed)
    assert hashed.model_copy(update={"dim": 8}).table_encoding == hashed.table_encoding
    assert hashed != CategoricalFeature(name="item", encoding="hash")
    assert "hash_size" not in hashed.model_dump(exclude={"hash_size"})


def test_keys_of_a_table_are_set_on_the_table():
    keys = {"table": "t", "encoding": "hash", "dim": 8}
    with pytest.raises(ValueError, match=r"so encoding, dim must be set on that table"):
        click_config(ITEM | keys, tables=[{"name": "t"}])
    with pytest.raises(ValueError, match="hash_size goes with encoding hash, but encoding is voc"):
        click_config(ITEM | {"table": "t", "hash_size": 64}, tables=[{"name": "t"}])


@pytest.mark.parametrize(("keys", "message"), [
    ({"encoding": "hsh"}, r"0\.categorical\.encoding: .*'vocabulary', 'hash' or 'managed'"),
    ({"min_count": 0}, r"features\.0\.categorical\.min_count: .*, got 0"),
    ({"encoding": "hash", "min_cont": 2}, r"key 'min_cont'; did you mean 'min_count'\?"),
    ({"encoding": "hash", "dim": 7}, r"categorical\.dim: .* multiple of 4"),
    ({"encoding": "hash", "min_count": 1}, "min_count is 1, but encoding hash counts no ids"),
    ({"zzzz": 1}, r"known here: admit_after, beyond, column, dim, encoding, evict"),
    ({"inlined": 1}, r"unknown key 'inlined'"),
    ({"encoding": "hash", "max_rows": 2_000}, r"max_rows is 2000, but encoding hash has as"),
    ({"hash_size": 64}, "hash_size goes with encoding hash, but encoding is voc"),
    ({"encoding": "managed"}, r"encoding managed needs `rows`.*add rows: N"),
    ({"encoding": "managed", "rows": 1}, r"rows.*greater than or equal to 2"),
    ({"encoding": "managed", "rows": 9, "min_count": 2}, "min_count is 2, but encoding man"),
    ({"encoding": "managed", "rows": 9, "hash_size": 7}, "hash_size goes with encoding hash"),
    ({"encoding": "hash", "rows": 9}, "rows goes with encoding managed, but"),
    ({"evict": "lru"}, "evict goes with encoding managed, .* or change encoding"),
    ({"admit_after": 2}, "admit_after goes with encoding managed, but encoding is vocab"),
    ({"encoding": "managed", "rows": 9, "evict": "fifo"}, "evict"),
])  # fmt: skip
def test_errors_name_the_key_where_it_stands(keys, message):
    with pytest.raises(ValueError, match=message):
        click_config(ITEM | keys)


def test_each_encoding_names_its_implementation():
    for encoding in ENCODINGS.names():
        assert ENCODINGS.implementation(encoding).encoding == encoding

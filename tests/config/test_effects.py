"""Keys that would do nothing beside the others are refused, whatever section they are in."""

import pytest

from mmoe.config import config_from_dict, dump_config, load_config, set_values
from mmoe.config.effects import NEEDS, Needs, without_unused

RAW = {
    "features": [
        {"kind": "numeric", "name": "age"},
        {"kind": "categorical", "name": "city"},
        {"kind": "list", "name": "tags", "table": "tag"},
        {"kind": "sequence", "name": "seen", "columns": ["seen_city"], "target": ["city"]},
    ],
    "tables": [{"name": "tag"}],
    "tasks": [{"name": "click", "label": "click"}],
}

# What is said, the key that has no effect beside it, and what gives it one
SAID = [
    (["data.split={by: file, validation: 0.2}", "data.validation=v.csv"],
     "data.split.validation", "data.validation=null"),
    (["data.split={by: file, test: 0.2}"], "data.split.test", "data.split.by=random"),
    (["features.tags.table=null"], "tables.tag", "features.tags.table=tag"),
    (["features.city.level=row"], "features.city.level",
     "data={requests: {column: q}}"),
    (["features.age.dim=8"], "features.age.dim", "features.age.buckets=5"),
    (["features.tags={kind: list, name: tags, table: tag, format: json, separator: ','}"],
     "features.tags.separator", "features.tags.format=separated"),
    (["features.seen.format=json", "features.seen.separator=','"],
     "features.seen.separator", "features.seen.format=separated"),
    (["model.tower={hidden: [], dropout: 0.1}"], "model.tower.dropout", "model.tower.hidden=[4]"),
    (["model.tower={hidden: [], activation: gelu}"],
     "model.tower.activation", "model.tower.hidden=[4]"),
    (["model.expert={hidden: [8], activation: gelu, output_activation: none}"],
     "model.expert.activation", "model.expert.hidden=[8, 8]"),
    (["model.gate={kind: top_k, balance_scope: all}"],
     "model.gate.balance_scope", "model.gate.balance_loss=0.1"),
    (["model.gate={kind: switch, balance_scope: all, balance_loss: 0}"],
     "model.gate.balance_scope", "model.gate.balance_loss=null"),
    (["model.gate={kind: top_k, select: joint, shared_k: 1, private_k: 1, floor: 0}"],
     "model.gate.floor", "model.gate.budget=2"),
    (["model.gate={kind: static, softmax: before}"], "model.gate.softmax", "model.gate.k=2"),
    (["model.capacity={factor: 0, priority: choice}"],
     "model.capacity.priority", "model.capacity.factor=-2"),
    (["model.capacity={factor: 0, minimum: 8}"],
     "model.capacity.minimum", "model.execution=padded"),
    *((["parallel.experts=replicated", f"parallel.{key}={value}"], f"parallel.{key}",
       "parallel.experts=spread")
      for key, value in (("slices", 2), ("shadowed", [1]), ("exchange", "auto"), ("chunks", 2),
                         ("rebalance", "epoch"), ("wire_precision", "bf16"))),
]  # fmt: skip


def said(*settings):
    return set_values(RAW, settings)


def test_there_is_nothing_to_refuse():
    config = config_from_dict(RAW)
    assert without_unused(config) == config
    assert config_from_dict(config.model_dump(mode="json")) == config, "defaults spelled out"


@pytest.mark.parametrize(("settings", "key", "mend"), SAID, ids=lambda one: str(one)[:50])
def test_one_sentence_names_the_key(settings, key, mend):
    with pytest.raises(
        ValueError, match=rf"^config: {key} (is .*, which )?has no effect: .*; "
    ) as e:
        config_from_dict(said(*settings))
    assert "\n" not in str(e.value)
    if not mend.startswith("data={requests"):
        config_from_dict(said(*settings, mend))
    of_run = config_from_dict(said(*settings), of_run=True)  # of earlier code
    mended = without_unused(of_run)
    assert config_from_dict(mended.model_dump(mode="json")) == mended


def test_each_rule_is_tried():
    keys = {key.rpartition(".")[2] for _, key, _ in SAID} | {""}
    rules = {key for needs in NEEDS for key in needs.keys}
    assert rules <= keys
    assert all(isinstance(needs, Needs) for needs in NEEDS)


def test_a_run_of_earlier_code_keeps_what_it_said(tmp_path):
    config = config_from_dict(said("model.tower={hidden: [], dropout: 0.1}"), of_run=True)
    (tmp_path / "mmoe.json").write_text("{}")
    for name in ("config.yaml", "copy.yaml"):
        (tmp_path / name).write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml").model.tower.dropout == 0.1
    with pytest.raises(ValueError, match=r"copy.yaml: model.tower.dropout is 0.1, which has no"):
        load_config(tmp_path / "copy.yaml")

"""Stages of a config, and patterns of `training.freeze`: what they mean, what is refused."""

import pytest

from mmoe.config import config_from_dict, set_values
from mmoe.config.training import StageConfig, frozen_tables, keeps_pool, names_part

STAGE = {"tasks": ["click"], "features": ["user"], "experts": ["expert 1"], "tables": ["user"]}
RAW = {
    "features": [{"kind": "categorical", "name": name} for name in ("user", "item")],
    "tasks": [{"name": name, "label": name} for name in ("click", "buy")],
    "model": {"stages": [STAGE]},
}


def test_what_of_the_earlier_run_is_frozen():
    for value, found in (("experts", ["experts"]), ("[a, b, a]", ["a", "b"])):
        config = config_from_dict(set_values(RAW, [f"training.freeze={value}"]))
        assert config.training.freeze == found
    config = config_from_dict(set_values(RAW, ["training.freeze=[tables, encoder]"]))
    assert config.frozen_tables == {"user"} and config.keeps_encoder
    assert not config_from_dict(RAW).keeps_encoder
    assert frozen_tables(["tables.i*"], [StageConfig(**STAGE)]) == set()
    assert not keeps_pool(["tables", "towers.click", "encoder", "sequences.seen"])
    assert keeps_pool(["tables", "levels.0"]) and keeps_pool(["gates"]) and keeps_pool(["*"])
    assert names_part("experts", "experts.weights.0") and names_part("*", "anything")
    assert names_part("levels.*.gate", "levels.1.mixture.gate.logits")
    assert not names_part("towers.click", "towers.clicks.mlp")


@pytest.mark.parametrize(("value", "said"), [
    ("model.stages.0.tasks=[gone]", r"model\.stages\.0: task 'gone' is not there any more"),
    ("model.stages.0.features=[age]", r"model\.stages\.0: feature 'age' is not there any more"),
    ("model.stages.0.tasks=[]", r"model\.stages\.0\.tasks"),
])  # fmt: skip
def test_stages_of_another_config(value, said):
    with pytest.raises(ValueError, match=said):
        config_from_dict(set_values(RAW, [value]))

"""What is searched over, and the config that comes out: nothing here needs Optuna."""

import pytest
import yaml

from mmoe.config import config_from_dict, set_values
from mmoe.tune.search import commented_config, search_result
from mmoe.tune.study import Outcome, search_space, with_values


@pytest.fixture(name="config")
def _config(funnel_config):
    def make(*overrides):
        return config_from_dict(set_values(funnel_config, overrides))

    return make


def _kind_or_value(value):
    return value["kind"] if isinstance(value, dict) else value


def _values(config, rows=None):
    return {each.key: each.values for each in search_space(config, rows)}


def test_every_dimension_holds_the_configs_own_value_and_valid_ones(config):
    own = config("model.gate={kind: noisy_top_k, k: 2}", "model.num_experts=4")
    raw = own.model_dump(mode="json")
    space = search_space(own, 3200)
    assert len(space) == 13
    assert {"model.interaction", "model.wide"} <= {each.key for each in space}
    for each in space:
        value = raw
        for name in each.key.split("."):
            value = value[name]
        assert each.values[each.own] == value
        assert list(each.values) == sorted(each.values, key=_kind_or_value)
        assert len(set(map(str, each.values))) == len(each.values)
        for other in each.values:
            with_values(own, {each.key: other})


def test_a_large_pool_is_tried_with_gates_that_pick_few(config):
    own = config("model.gate={kind: softmax}", "model.num_experts=16")
    dense, sparse = _values(own)["model.gate"]
    assert (dense["kind"], sparse["kind"], sparse["shared_k"]) == ("softmax", "top_k", 8)
    assert with_values(own, {"model.gate": sparse}).model.gate.routed == 8
    assert "model.gate" not in _values(config("model.num_experts=8"))


def test_what_a_config_cannot_have_or_use_is_left_out(config):
    assert _values(config(), 3200)["training.batch_size"] == (96, 192, 384)
    assert _values(config())["training.batch_size"] == (96, 192, 384, 768, 1536)
    top_3 = _values(config("model.gate={kind: noisy_top_k, k: 3}"))
    assert top_3["model.num_experts"] == (3, 6)
    assert "model.shared_experts" not in top_3
    cgc = _values(config("model.kind=cgc"))
    assert "model.num_experts" not in cgc
    assert cgc["model.shared_experts"] == (2, 4, 8)
    bottom = _values(config("model.kind=shared_bottom"))
    assert not {"model.num_experts", "model.shared_experts"} & set(bottom)
    several = _values(config("model={experts: [{kind: mlp, count: 2}, {kind: mlp, count: 1}]}"))
    assert not {"model.num_experts", "model.expert.hidden", "model.expert.dropout"} & set(several)
    decayed = "training.optimizer={kind: adamw, weight_decay: 0.3, weight_decay_on: matrices}"
    key = "training.optimizer.weight_decay"
    assert _values(config(decayed))[key] == (1e-3, 1e-2, 0.1, 0.3, 0.5)  # 0 is refused there
    plain = _values(config("features=[{kind: numeric, name: price}]", "model.tower.hidden=[]"))
    assert not any("embedding" in key for key in plain)
    assert "model.tower.hidden" not in plain
    assert [each["kind"] for each in plain["model.interaction"]] == [
        "dcn_v2",
        "none",
    ]  # no ids: no fm


def test_the_config_that_comes_out_reads_back_the_same_with_comments(config):
    own = config()
    changed = {"model.expert.hidden": [8, 4], "training.optimizer.learning_rate": 0.004}
    best = with_values(own, changed)
    was = {"model.expert.hidden": [16, 8], "training.optimizer.learning_rate": 0.001}
    text = commented_config(best, was, ["first", "second"])
    assert config_from_dict(yaml.safe_load(text)) == best
    lines = text.splitlines()
    assert lines[:2] == ["# first", "# second"]
    assert "    hidden:  # was [16, 8]" in lines
    assert "    learning_rate: 0.004  # was 0.001" in lines
    assert sum("  # was" in line for line in lines) == 2


@pytest.mark.parametrize(("monitor", "expected"), [("mean.auc", 3), ("mean.logloss", 2)])
def test_the_best_is_the_first_with_the_best_value(config, monitor, expected):
    judged = config(f"training.monitor={monitor}")
    space = search_space(config())
    own = {each.key: each.values[each.own] for each in space}
    outcomes = [
        Outcome(state="finished", value=value, epochs=1, seconds=1.0, settings=own)
        for value in (None, 0.5, 0.7, 0.7)
    ]
    result = search_result(judged, space, outcomes)
    assert result["best"]["trial"] == expected
    assert result["best"]["changed"] == {}
    assert search_result(judged, space, [])["best"] is None

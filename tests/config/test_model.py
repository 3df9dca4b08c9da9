"""The model section: which gate settings go together."""

from typing import Literal

import pytest
import yaml

from mmoe.config import (
    GATES,
    MODELS,
    CapacityConfig,
    GateConfig,
    GatedModelConfig,
    ModelConfig,
    PoolModelConfig,
    config_from_dict,
    dump_config,
)

SMALL = {
    "features": [{"kind": "numeric", "name": "age"}],
    "tasks": [{"name": "click", "label": "click"}],
}


def test_each_kind_of_gate_has_its_own_keys_alone_and_reads_back():
    for kind in GATES.names():
        config = config_from_dict({**SMALL, "model": {"gate": {"kind": kind}}})
        assert config_from_dict(yaml.safe_load(dump_config(config))) == config
    assert "jitter" not in type(GateConfig(kind="top_k")).model_fields
    assert "projection_dim" not in dump_config(config_from_dict(SMALL))
    assert GateConfig(kind="cosine", k=3) == ModelConfig(gate={"kind": "cosine", "k": 3}).gate
    with pytest.raises(ValueError, match=r"gate\.k is 2, but a gate of mmoe sees 1 expert"):
        ModelConfig(num_experts=1, gate={"kind": "gshard"})


@pytest.mark.parametrize(("kind", "picks"), [
    ("softmax", None),
    ("top_k", 2),
    ("noisy_top_k", 2),
    ("switch", 1),
    ("gshard", 2),
    ("cosine", 2),
    ("sigmoid", 2),
    ("dselect_k", 2),
    ("static", None),
])  # fmt: skip
def test_the_number_of_experts_that_a_gate_picks(kind, picks):
    assert GateConfig(kind=kind).picks == picks
    if kind not in ("softmax", "switch", "gshard"):
        assert GateConfig(kind=kind, k=3).picks == 3


@pytest.mark.parametrize(("gate", "message"), [
    ({"kind": "topk"}, "model.gate.kind: .*'top_k'.*got 'topk'"),
    ({"kind": "top_k", "jitter": 0.1},
     "model.gate: jitter goes with kind switch, but kind is top_k; remove jitter, or change"),
    ({"softmax": "before"},
     "model.gate: softmax goes with kind top_k or cosine or static, but kind is softmax"),
    ({"kind": "top_k", "load_loss": 0.2}, "load_loss goes with kind noisy_top_k"),
    ({"kind": "static", "per_sample": False}, "per_sample goes with kind dselect_k"),
    ({"k": 4}, "k is 4, but softmax gates weigh all experts; remove k or set kind to top_k"),
    ({"kind": "switch", "k": 2}, "k is 2, but switch always picks 1; remove k"),
    ({"kind": "gshard", "k": 2}, "k is 2, but gshard always picks 2; remove k"),
    ({"kind": "static", "hidden": [8]}, "hidden is set, but this gate reads no input"),
    ({"kind": "dselect_k", "per_sample": False, "hidden": [8]},
     r"hidden must be \[\]: this gate reads no input"),
    ({"dropout": 1.0}, "model.gate.dropout: .*less than 1, got 1.0"),
    ({"balance_scope": "task"}, "model.gate.balance_scope: .*'gate' or 'all'"),
    ({"kind": "noisy_top_k", "k": 9}, "gate.k is 9, but a gate of mmoe sees 8 expert"),
    ({"kind": "static", "k": 9}, "gate.k is 9, but a gate of mmoe sees 8 expert"),
])  # fmt: skip
def test_settings_that_do_not_go_together(gate, message):
    with pytest.raises(ValueError, match=message) as caught:
        config_from_dict({**SMALL, "model": {"gate": gate}})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("model", "message"), [
    ({"kind": "shared_bottom", "num_experts": 4}, "num_experts is 4, but kind shared_bottom"),
    ({"kind": "ple", "request_experts": 1}, "has not one pool of experts; set kind: mmoe, omo"),
    ({"kind": "cgc", "experts": []}, "experts is set, but kind cgc has not one pool"),
    ({"shared_experts": 2}, "kind mmoe has no own and shared experts; set kind: cgc or ple"),
    ({"kind": "omoe", "task_experts": 1}, "task_experts is 1, but kind omoe has no own and"),
    ({"pruned": [{"name": "a"}]}, "has no own and shared experts; lower num_experts"),
    ({"kind": "cgc", "levels": 3}, "kind cgc has one level; set kind: ple, or remove it"),
    ({"kind": "single_task", "gate": {"hidden": [4]}},
     "gate is set, but kind single_task has no gates that choose among experts; set kind: m"),
])  # fmt: skip
def test_keys_of_other_models(model, message):
    with pytest.raises(ValueError, match=f"^config: model: .*{message}"):
        config_from_dict({**SMALL, "model": model})


def test_a_capacity_reads_back_and_is_none_unless_asked_for():
    assert ModelConfig().capacity is None
    capacity = {"factor": -1.5, "priority": "choice", "minimum": 4, "maximum": 90}
    config = config_from_dict({**SMALL, "model": {"capacity": capacity, "execution": "padded"}})
    assert config.model.capacity == CapacityConfig(**capacity)
    assert config_from_dict(yaml.safe_load(dump_config(config))) == config
    assert ModelConfig(capacity={}).capacity == CapacityConfig()
    assert ModelConfig().expert.output_activation == "same"


@pytest.mark.parametrize(("model", "message"), [
    ({"capacity": {"priority": "first"}}, "model.capacity.priority: .*'choice'.*got 'first'"),
    ({"capacity": {"minimum": 0}}, "model.capacity.minimum: .*greater than or equal to 1"),
    ({"capacity": {"minimum": 3, "maximum": 2}}, "minimum must be at most maximum"),
    ({"execution": "padded"}, "execution is padded, which needs a capacity"),
    ({"execution": "padded", "capacity": {}, "expert": {"norm": "batch"}},
     "rows of zeros expert.norm batch would count"),
    ({"expert": {"output_activation": "tanh"}}, "output_activation.*'same', 'none', 'relu'"),
])  # fmt: skip
def test_wrong_capacities_and_experts(model, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict({**SMALL, "model": model})


class _Alone(ModelConfig):
    """A model that says itself what it is trained for, as ESMM does."""

    kind: Literal["alone"] = "alone"

    def check_tasks(self, tasks):
        if len(tasks) > 1:
            raise ValueError("model.kind alone needs one task")

    def trained_tasks(self, tasks):
        return [task.model_copy(update={"weight": 2.0}) for task in tasks]


def test_a_model_of_ones_own_says_which_tasks_it_takes():
    MODELS.add("alone", _Alone, print)
    try:
        config = config_from_dict({**SMALL, "model": {"kind": "alone"}})
        assert [task.weight for task in config.trained_tasks] == [2.0]
        two = [*SMALL["tasks"], {"name": "buy", "label": "buy"}]
        with pytest.raises(ValueError, match=r"^config: model\.kind alone needs one task$"):
            config_from_dict({**SMALL, "tasks": two, "model": {"kind": "alone"}})
    finally:
        MODELS.remove("alone")


def test_a_report_has_words_for_a_model_of_ones_own():
    for base in (ModelConfig, GatedModelConfig, PoolModelConfig):
        own = type("Own", (base,), {"__annotations__": {"kind": Literal["own"]}, "kind": "own"})()
        assert own.pool_title and own.experts_title


@pytest.mark.parametrize(
    ("gate", "model", "said"),
    [
        ({"always": 3, "k": 2}, {"num_experts": 4}, "gate.always is 3 and 2 more are picked"),
        ({"always": 1}, {"kind": "cgc"}, "cgc has no one pool"),
        ({"always": 1}, {"num_experts": 8, "capacity": {}}, "no capacity holds all rows"),
        ({"routed_start": 0.5}, {}, "always is 0"),
        ({"kind": "cosine", "shared_logits": True}, {}, "logits of cosine gates"),
        ({"kind": "dselect_k", "shared_logits": True}, {}, "logits of dselect_k gates"),
    ],
)
def test_experts_of_every_row_and_shared_logits_are_refused_where_they_cannot_be(gate, model, said):
    with pytest.raises(ValueError, match=said):
        ModelConfig(gate={"kind": "top_k", **gate}, **model)


def test_a_report_names_the_experts_of_every_row():
    gate = ModelConfig(num_experts=8, gate={"kind": "top_k", "k": 2, "always": 3}).gate
    assert (gate.title, gate.picks, gate.routed) == ("top-2 beside 3 of every row", 5, 2)

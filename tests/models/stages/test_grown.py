"""Networks that grew: who sees whom, and that what there was computes what it computed."""

import pytest
import torch

from mmoe.config import ModelConfig
from mmoe.models import build_network

D, OLD = 48, ["click", "buy"]


def stage(model, tasks=OLD):
    return {"tasks": tasks, "experts": model.expert_names(tasks), "features": ["x"]}


def grown(model, tasks, **settings):
    """A network of a model that had `OLD` and gets other tasks and settings."""
    raw = {**model.model_dump(), "stages": [stage(model)], **settings}
    return build_network(ModelConfig.model_validate(raw), D, tasks)


def copy_old(old, new):
    """Puts the tensors of a network into what there is of it in another one."""
    tensors = new.state_dict()
    for name, tensor in old.state_dict().items():
        there = name.replace("gate.", "gate.gates.0.", 1)
        pooled = there.replace("experts.", "experts.pools.0.", 1)
        tensors[pooled if pooled in tensors else there if there in tensors else name].copy_(tensor)


@pytest.mark.parametrize(("hidden", "how"), [([16, 8], "dense"), ([256, 128], "grouped")])
def test_execution_is_that_of_before(hidden, how):
    """Of small experts four run dense, 96 grouped, and these round otherwise."""
    torch.manual_seed(0)
    expert = {"hidden": hidden}
    model = ModelConfig(num_experts=4, gate={"kind": "top_k", "k": 2}, expert=expert)
    old, new = build_network(model, D, OLD), grown(model, [*OLD, "like"], num_experts=96)
    copy_old(old, new)
    x_BD = torch.randn(300, D)
    with torch.no_grad():
        one, two = old.eval()(x_BD), new.eval()(x_BD)
    assert torch.equal(one.logits_BT, two.logits_BT[:, :2])
    policy = new.levels[0].mixture.policy
    experts_BGK = torch.zeros(300, 3, 2, dtype=torch.int32)
    given = {"pairs": None, "number_bytes": 4}
    before = old.levels[0].mixture.policy
    assert before.choose(experts_BGK[:, :2], training=False, **given) == how
    assert policy.choose(experts_BGK, training=False, **given) == how
    assert policy.choose(experts_BGK, training=True, **given) == "grouped"


def test_who_sees_whom_in_ple():
    model = ModelConfig(kind="ple", levels=2, task_experts=1, shared_experts=1)
    new = grown(model, ["like", *OLD], shared_experts=2)
    first, last = new.levels
    names = (
        "click expert 1",
        "buy expert 1",
        "shared expert 1",
        "like expert 1",
        "shared expert 2",
    )
    assert first.expert_names == last.expert_names == names
    assert first.gate_names == ("like", "click", "buy", "shared")
    seen = {
        gate: [name for name, sees in zip(names, row.tolist(), strict=True) if sees]
        for gate, row in zip(first.gate_names, first.mixture.visibility_GE, strict=True)
    }
    assert seen == {
        "like": ["shared expert 1", "like expert 1", "shared expert 2"],
        "click": ["click expert 1", "shared expert 1"],
        "buy": ["buy expert 1", "shared expert 1"],
        "shared": ["click expert 1", "buy expert 1", "shared expert 1"],
    }
    assert last.mixture.expert_source == (1, 2, 3, 0, 3)


def test_modules_are_parted_where_something_came_alone():
    model = ModelConfig(num_experts=3)
    same, tasks, both = grown(model, OLD), grown(model, ["like", *OLD]), grown(
        model, [*OLD, "like"], num_experts=4
    )  # fmt: skip
    kinds = [
        (type(n.levels[0].mixture.gate).__name__, type(n.levels[0].mixture.experts).__name__)
        for n in (same, tasks, both)
    ]
    assert kinds == [
        ("SoftmaxGate", "MLPExperts"),
        ("JoinedGates", "MLPExperts"),
        ("JoinedGates", "MixedExperts"),
    ]


def test_stages_of_another_model():
    model = ModelConfig(num_experts=4)
    with pytest.raises(ValueError, match=r"model\.stages: 'expert 4' is no expert of this model"):
        grown(model, OLD, num_experts=3)


def test_kinds_of_experts_do_not_grow():
    experts = [{"kind": "mlp", "count": 2}, {"kind": "dcn_v2", "count": 1}]
    model = ModelConfig(experts=experts)
    more = [{"kind": "mlp", "count": 3}, {"kind": "dcn_v2", "count": 1}]
    assert grown(model, [*OLD, "like"]).towers
    with pytest.raises(ValueError, match=r"model\.experts lists kinds of experts, to which none"):
        grown(model, [*OLD, "like"], experts=more, num_experts=4)

"""load_experts: fewer, more and moved experts; what it says; what it refuses."""

import copy

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    MoE,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
    load_experts,
    mlp_experts,
)

D, G, H = 5, 2, 3


def make(experts, pool="mlp", seed=0, kind="softmax", dim=D):
    torch.manual_seed(seed)
    if pool == "mlp":
        body = mlp_experts(experts, dim, [4, H], norm="layer")
    else:
        body = [
            nn.Sequential(nn.Linear(dim, 4), nn.ReLU(), nn.Linear(4, H)) for _ in range(experts)
        ]
    if kind == "softmax":
        gate = SoftmaxGate(dim, G, experts, hidden=[7])
    else:
        gate = TopKGate(dim, G, experts, k=2)
    return MultiGateMixture(dim, G, body, gate=gate)


def expert_outputs(layer, x):
    return torch.stack(layer.experts.dense([x]))


def logits(layer, x):
    return layer.gate.logits([x] * G)


@pytest.mark.parametrize("kind", ["softmax", "top_k"])
@pytest.mark.parametrize("pool", ["mlp", "modules"])
@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 3), (4, 4), (1, 4)])
def test_experts_and_gate_columns_that_exist_in_both_are_kept(before, after, pool, kind):
    if kind == "top_k" and before < 2:
        kind = "softmax"
    old, new = make(before, pool, kind=kind), make(after, pool, seed=7, kind=kind)
    own, x = copy.deepcopy(new), torch.randn(6, D)
    report = load_experts(new, old.state_dict())
    both = min(before, after)
    assert torch.equal(expert_outputs(new, x)[:both], expert_outputs(old, x)[:both])
    assert torch.equal(expert_outputs(new, x)[both:], expert_outputs(own, x)[both:])
    torch.testing.assert_close(logits(new, x)[..., :both], logits(old, x)[..., :both])
    assert report.kept == tuple((e, e) for e in range(both))
    assert report.new == tuple((e, None) for e in range(before, after))
    assert report.dropped == tuple(range(after, before))
    assert (report.before, report.after) == (before, after)
    last = new.gate.logits.weights[-1]
    name = next(n for n, p in new.named_parameters() if p is last)
    assert (name in report.resized) == (before != after)


@pytest.mark.parametrize("pool", ["mlp", "modules"])
def test_copies_make_the_same_function_of_a_larger_softmax(pool):
    """Every expert twice, with the same logit: each copy gets half of the weight."""
    old, new = make(3, pool), make(6, pool, seed=7)
    report = load_experts(new, old.state_dict(), new_experts="copy")
    x = torch.randn(6, D)
    torch.testing.assert_close(new(x).out_BGO, old(x).out_BGO)
    assert report.new == ((3, 0), (4, 1), (5, 2))
    assert "3 (copy of 0)" in str(report)


@pytest.mark.parametrize("pool", ["mlp", "modules"])
def test_experts_may_move(pool):
    old, new = make(3, pool), make(4, pool, seed=7)
    report = load_experts(new, old.state_dict(), sources=[2, None, 0, None])
    x = torch.randn(6, D)
    assert torch.equal(expert_outputs(new, x)[[0, 2]], expert_outputs(old, x)[[2, 0]])
    torch.testing.assert_close(logits(new, x)[..., [0, 2]], logits(old, x)[..., [2, 0]])
    assert str(report) == (
        "3 experts before, 4 now; kept: 2 as 0, 0 as 2; new: 1 (initialised), 3 (initialised); "
        "dropped: 1"
    )


def test_moe_layers_are_loaded_as_well():
    torch.manual_seed(0)
    old, new = MoE(D, mlp_experts(3, D, [H])), MoE(D, mlp_experts(2, D, [H]))
    report = load_experts(new, old.state_dict())
    assert report.dropped == (2,)
    assert torch.equal(new.mixture.experts.weights[0], old.mixture.experts.weights[0][:2])


def state_of(experts, **changes):
    state = dict(make(experts, **changes).state_dict())
    return state


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_experts(nn.Linear(3, 3), {}), "layer: expected a MultiGateMixture or MoE"),
        (
            lambda: load_experts(make(3), state_of(2), new_experts="mean"),
            "new_experts: expected fresh or copy, got 'mean'",
        ),
        (
            lambda: load_experts(make(3), {}),
            "state: expected the experts' tensors under 'experts.'",
        ),
        (
            lambda: load_experts(make(3), state_of(2) | {"other": torch.zeros(1)}),
            "state: expected only the layer's tensors, got 'other' as well",
        ),
        (
            lambda: load_experts(make(3), {"experts.weights.0": torch.zeros(3, D, 4)}),
            "state: expected a tensor 'experts.weights.1', got none",
        ),
        (
            lambda: load_experts(make(3), state_of(2, dim=6)),
            r"state: expected 'experts.weights.0' of shape \[3, 5, 4\], or with 2 in place of 3",
        ),
        (
            lambda: load_experts(make(3), state_of(2), sources=[0, 2, None]),
            r"sources: expected 3 numbers from 0 to 1 or None, .* got \[0, 2, None\]",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_refused_state_changes_nothing():
    layer = make(3)
    before = copy.deepcopy(layer.state_dict())
    state = make(2, seed=5).state_dict()
    state["gate.logits.weights.1"] = torch.zeros(G, 9, 9)
    with pytest.raises(ValueError, match=r"state: expected 'gate.logits.weights.1'"):
        load_experts(layer, state)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)

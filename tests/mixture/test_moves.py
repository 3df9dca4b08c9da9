"""load_experts: fewer, more and moved experts; what it reports; what it refuses."""

import copy

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    CosineGate,
    DSelectKGate,
    FixedGate,
    MLPExperts,
    MoE,
    MultiGateMixture,
    NoisyTopKGate,
    Pool,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    TopKGate,
    load_experts,
)

D, G, H = 5, 2, 3


def make(experts, pool="mlp", seed=0, kind="softmax", dim=D):
    torch.manual_seed(seed)
    if pool == "mlp":
        body = MLPExperts(experts, dim, [4, H], norm="layer")
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
    old, new = MoE(D, MLPExperts(3, D, [H])), MoE(D, MLPExperts(2, D, [H]))
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


def with_gate(make_gate, num_gates, experts, seed=0):
    torch.manual_seed(seed)
    gate = make_gate(num_gates, experts)
    return MultiGateMixture(D, num_gates, MLPExperts(experts, D, [H]), gate=gate).eval()


GATES = {
    "softmax": lambda G, E: SoftmaxGate(D, G, E, hidden=[E]),
    "noisy_top_k": lambda G, E: NoisyTopKGate(D, G, E, k=2),
    "cosine": lambda G, E: CosineGate(D, G, E, k=2, projection_dim=E),
    "sigmoid": lambda G, E: SigmoidGate(D, G, E, k=2),
    "static": lambda G, E: StaticGate(G, E),
    "fixed": lambda G, E: FixedGate(torch.rand(G, E)),
}


@pytest.mark.parametrize("kind", GATES)
def test_only_the_dimension_of_the_experts_moves_whatever_the_sizes(kind):
    """As many gates, hidden units or directions as experts: sizes do not tell which is which."""
    E = 4
    old, new = with_gate(GATES[kind], E, E), with_gate(GATES[kind], E, E, seed=7)
    for layer in (old, new):
        for buffer in layer.gate.buffers():
            if buffer.is_floating_point():
                nn.init.uniform_(buffer)
    load_experts(new, old.state_dict(), sources=[2, 0, 3, 1])
    x = torch.randn(6, D)
    torch.testing.assert_close(new(x).out_BGO, old(x).out_BGO)


def dselect_k(G, E):
    gate = DSelectKGate(None, G, E, k=2)
    nn.init.uniform_(gate.codes_GKM, -2, 2)
    return gate


def test_dselect_k_keeps_the_numbers_of_its_experts():
    """Its codes name experts by number: moved, they would name others."""
    old, x = with_gate(dselect_k, 4, 4), torch.randn(6, D)
    new = with_gate(dselect_k, 4, 4, seed=7)
    message = (
        "sources: expected every kept expert of a DSelectKGate under its old number, .* 1 as 0"
    )
    before = copy.deepcopy(new.state_dict())
    with pytest.raises(ValueError, match=message):
        load_experts(new, old.state_dict(), sources=[1, 0, 2, 3])
    torch.testing.assert_close(new.state_dict(), before, rtol=0, atol=0)
    load_experts(new, old.state_dict(), sources=[0, 1, None, 3])
    assert torch.equal(new.gate.codes_GKM, old.gate.codes_GKM)
    load_experts(new, old.state_dict())
    torch.testing.assert_close(new(x).out_BGO, old(x).out_BGO)
    with pytest.raises(ValueError, match=r"state: expected 'gate.codes_GKM' of shape"):
        load_experts(with_gate(dselect_k, 4, 5), old.state_dict())


def test_modules_must_have_the_shapes_of_the_state():
    """Widths that happen to be the numbers of experts are no experts."""
    old = MoE(8, [nn.Linear(8, 2) for _ in range(2)])
    new = MoE(8, [nn.Linear(8, 4) for _ in range(4)])
    message = r"state: expected 'mixture.experts.0.weight' of shape \[4, 8\]"
    with pytest.raises(ValueError, match=message):
        load_experts(new, old.state_dict())


@pytest.mark.parametrize("after", [2, 5])
def test_fixed_weights_of_another_number_of_experts_add_up_to_one(after):
    old = with_gate(GATES["fixed"], 2, 3)
    new = with_gate(GATES["fixed"], 2, after, seed=7)
    load_experts(new, old.state_dict())
    weights = new(torch.zeros(1, D), return_gates=True).gate_weights_BGE[0]
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    first = old.gate.weights_GE[:, :2]
    torch.testing.assert_close(weights[:, 0] / weights[:, 1], first[:, 0] / first[:, 1])


class OwnGate(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.width = nn.Parameter(torch.rand(2, experts, 7))
        self.inner = SoftmaxGate(D, 2, experts)

    def forward(self, inputs, visibility_GE):
        return self.inner(inputs, visibility_GE)


class TellingGate(OwnGate):
    def axes(self):
        return {"width": {0: "gates", 1: "experts"}}


def layer_of(gate_class, experts=3):
    return MultiGateMixture(D, 2, MLPExperts(experts, D, [H]), gate=gate_class(experts)).eval()


def test_a_gate_of_ones_own_says_where_it_has_its_experts():
    """Gates inside it, of which it does not speak, say it themselves."""
    old, new, x = layer_of(TellingGate), layer_of(TellingGate), torch.randn(6, D)
    load_experts(new, old.state_dict(), sources=[2, 0, 1])
    assert torch.equal(new.gate.width, old.gate.width[:, [2, 0, 1]])
    torch.testing.assert_close(new(x).out_BGO, old(x).out_BGO)


@pytest.mark.parametrize(("after", "sources"), [(3, [2, 0, 1]), (4, None)])
def test_experts_of_a_gate_that_says_nothing_stay_as_they_are(after, sources):
    """As many features as experts: by its size alone a dimension would be taken for another."""
    old, new = layer_of(OwnGate), layer_of(OwnGate, after)
    with pytest.raises(ValueError, match=r"OwnGate does not say which .* 'gate.width' are the exp"):
        load_experts(new, old.state_dict(), sources=sources)
    same = layer_of(OwnGate)
    load_experts(same, old.state_dict())
    torch.testing.assert_close(same.state_dict(), old.state_dict(), rtol=0, atol=0)


def test_weights_in_half_precision_move_as_well():
    old, new = (layer_of(TellingGate, E).bfloat16() for E in (3, 4))
    load_experts(new, old.state_dict())
    assert torch.equal(new.experts.weights[0][:3], old.experts.weights[0])


class OwnPool(Pool):
    """A pool of one's own: a number for all experts, then one for each."""

    def __init__(self, experts):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))
        self.weights = nn.Parameter(torch.rand(experts, D))

    def __len__(self):
        return len(self.weights)

    def dense(self, inputs):
        return [inputs[0] * weight for weight in self.weights]


class TellingPool(OwnPool):
    def axes(self):
        return {"weights": {0: "experts"}}


@pytest.mark.parametrize("pool", [OwnPool, TellingPool])
def test_a_pool_of_ones_own_may_have_tensors_that_are_no_experts(pool):
    old, new = (MultiGateMixture(D, 2, pool(E), gate=SoftmaxGate(D, 2, E)) for E in (3, 4))
    load_experts(new, old.state_dict())
    assert torch.equal(new.experts.scale, old.experts.scale)
    assert torch.equal(new.experts.weights[:3], old.experts.weights)

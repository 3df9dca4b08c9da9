"""How experts start: copied, cut up, drawn anew; and how gates do."""

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import convert, parameter_counts
from mmoe.mixture import Capacity, TopKGate
from tests.integrations.convert.networks import D, Gated, H, difference, sequential

FORMS = {
    "relu": lambda: sequential(nn.ReLU()),
    "no bias": lambda: sequential(nn.GELU(), bias=False),
    "modules": lambda: sequential(nn.Tanh()),
    "gated": lambda: nn.Sequential(Gated(bias=True)),
    "gated, modules": lambda: nn.Sequential(Gated(nn.GELU("tanh"))),
}
FORM = pytest.mark.parametrize("form", list(FORMS))


def make(form):
    torch.manual_seed(0)
    return FORMS[form]().double(), torch.randn(9, D, dtype=torch.float64)


def first(model):
    return model[0].mixture


@FORM
@pytest.mark.parametrize("num_experts", [2, 3, 4, 12])
def test_split_experts_add_up_to_the_dense_output(form, num_experts):
    """With all experts on: at the start, and as a sum with each output over their number."""
    dense, x = make(form)
    for gate in ("softmax", "top_k"):
        k = 2 if gate == "softmax" else num_experts
        model = convert(dense, num_experts, k, gate, init="split")
        assert difference(model(x), dense(x)) <= 1e-10
    outputs = first(model).experts.dense([x])
    assert difference(sum(outputs) / num_experts, dense(x)) <= 1e-10
    assert difference(outputs[0], dense(x)) > 1e-2


@FORM
@pytest.mark.parametrize(("k", "num_experts"), [(2, 4), (2, 8), (3, 6), (4, 8), (4, 4)])
def test_split_at_equal_cost_starts_as_the_dense_network(form, k, num_experts):
    """k experts of a k-th of the units: a row gets each slice once, and others than other rows."""
    dense, x = make(form)
    model = convert(dense, num_experts, k, init="split", hidden=H // k)
    with torch.no_grad():  # so that rows choose
        logits_GED = first(model).gate.logits.weights[0]
        logits_GED.mul_(50)
    assert difference(model(x), dense(x)) <= 1e-10
    picked = first(model)(x, return_gates=True).gate_weights_BGE[:, 0] > 0
    assert (picked.sum(1) == k).all()
    if num_experts > k:
        assert len(picked.unique(dim=0)) > 1
    assert parameter_counts(model).active == pytest.approx(parameter_counts(dense).active, rel=0.5)


def test_split_with_fewer_experts_is_an_estimate():
    """Over random picks of k its mean is the dense output."""
    dense, x = make("relu")
    model = convert(dense, 6, k=2, init="split")
    outputs_EBO = torch.stack(first(model).experts.dense([x]))
    pairs = torch.combinations(torch.arange(6), 2)
    mean = outputs_EBO[pairs].mean(1).mean(0)
    assert difference(mean, dense(x)) <= 1e-10
    assert difference(model(x), dense(x)) > 1e-2
    logits_ED = first(model).gate.logits.weights[0][0]
    assert len(logits_ED.unique(dim=0)) == 6  # else all rows would pick the first two


@FORM
def test_fresh_experts_differ_and_have_the_form(form):
    dense, x = make(form)
    model = convert(dense, 4, init="fresh")
    outputs = first(model).experts.dense([x])
    assert all(y.shape == (9, D) and y.dtype == torch.float64 for y in outputs)
    assert min(difference(outputs[e], outputs[e - 1]) for e in range(4)) > 0.1
    narrow = convert(dense, 4, init="fresh", hidden=5)
    assert narrow(x).shape == (9, D)
    gated = 3 if "gated" in form else 2
    matrices = sum(
        p.numel() for n, p in first(narrow).experts.named_parameters() if "bias" not in n
    )
    assert matrices == 4 * gated * 5 * D


def test_fresh_experts_are_drawn_as_torch_draws_linear_layers():
    dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    nn.init.zeros_(dense[0].weight)
    pool = first(convert(dense, 16, init="fresh")).experts
    for layer, fan_in in enumerate((64, 256)):
        for tensors in (pool.weights, pool.biases):
            assert tensors[layer].abs().max() <= fan_in**-0.5
            assert tensors[layer].std().item() == pytest.approx((fan_in * 3) ** -0.5, rel=0.05)


@pytest.mark.parametrize("init", ["copy", "split", "fresh"])
def test_a_seed_gives_the_same_network(init):
    dense, _ = make("relu")
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(list(convert(dense, 4, init=init).parameters()))
    same = [torch.equal(a, b) for a, b in zip(made[0], made[1], strict=True)]
    other = [torch.equal(a, b) for a, b in zip(made[0], made[2], strict=True)]
    assert all(same) and not all(other)


def test_copies_and_cuts_draw_nothing_but_gates():
    dense, _ = make("relu")
    torch.manual_seed(3)
    gate = convert(dense, 4).get_submodule("0.mixture.gate").logits.weights[0]
    torch.manual_seed(3)
    TopKGate(D, 1, 4, k=2)
    expected = torch.nn.init.normal_(torch.empty(1, 4, D), std=0.02)
    torch.testing.assert_close(gate, expected.double())


def test_a_capacity_drops_in_training_and_not_in_evaluation():
    dense, x = make("relu")
    model = convert(dense, 4, k=1, capacity=Capacity(0.5))
    model(x)
    assert model[0].last_dropped > 0
    assert difference(model.eval()(x), dense(x)) <= 1e-10
    assert model[0].last_dropped is None
    roomy = convert(dense, 4, k=1, capacity=Capacity(4.0))
    assert difference(roomy(x), dense(x)) <= 1e-10 and roomy[0].last_dropped == 0

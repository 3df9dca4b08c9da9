"""Which parts are converted, what is kept, and by which gates."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import RECOGNISERS, ConvertedMoE, convert, parameter_counts
from mmoe.mixture import MoE, SwitchGate, TopKGate
from tests.integrations.convert.networks import (
    D,
    Gated,
    H,
    Mlp,
    Pair,
    difference,
    encoder,
    sequential,
)


def names_of(model):
    return [name for name, m in model.named_modules() if isinstance(m, ConvertedMoE)]


# --- which parts ---


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (None, [0, 1, 2]),
        (["linear1"], [0, 1, 2]),
        (["layers.1.linear1", "layers.2"], [1, 2]),
        (("linear2",), [0, 1, 2]),
        (r"layers\.[02]", [0, 2]),
        (r".*\.1\.linear1", [1]),
        (lambda module, name: name.startswith("layers.1"), [1]),
        (lambda module, name: isinstance(module, nn.TransformerEncoderLayer), [0, 1, 2]),
    ],
)
def test_targets(targets, found):
    model = convert(encoder(3), 4, target_modules=targets)
    assert names_of(model) == [f"layers.{i}.linear1" for i in found]


def test_the_rest_may_be_converted_later():
    model = convert(encoder(3), 4, target_modules=["layers.1"])
    model = convert(model, 8)
    assert [model.get_submodule(n).mixture.num_experts for n in names_of(model)] == [8, 4, 8]


def test_mixtures_that_are_there_are_left_alone():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = MoE(D, [sequential(nn.ReLU()) for _ in range(2)])
            self.mlp = Mlp()

    assert names_of(convert(Network(), 4)) == ["mlp.fc1"]


# --- what is kept ---


def test_the_dense_network_is_left_as_it_was():
    dense = encoder()
    before, state = repr(dense), copy.deepcopy(dense.state_dict())
    convert(dense, 4)
    assert repr(dense) == before
    assert all(torch.equal(value, state[name]) for name, value in dense.state_dict().items())


def test_in_place():
    dense = encoder()
    attention = dense.layers[0].self_attn
    assert convert(dense, 4, inplace=True) is dense
    assert names_of(dense) == ["layers.0.linear1", "layers.1.linear1"]
    assert dense.layers[0].self_attn is attention
    mlp = Mlp()
    assert convert(mlp, 4, inplace=True) is mlp


def test_nothing_is_changed_in_place_where_something_is_refused():
    dense = nn.ModuleList([Mlp(), sequential(nn.ReLU())])
    dense[1][2] = nn.Linear(H + 1, D)
    before = repr(dense)
    with pytest.raises(ValueError, match="expected a second product that reads the 12 units"):
        convert(dense, 4, inplace=True)
    assert repr(dense) == before


def test_mode_frozen_parameters_and_type():
    dense = nn.ModuleList([Mlp(), Mlp()]).double()
    dense[0].fc1.weight.requires_grad_(False)
    dense[0].fc2.requires_grad_(False)
    dense[1].eval()
    model = convert(dense, 4)
    pool = model[0].fc1.mixture.experts
    assert [weight.requires_grad for weight in pool.weights] == [False, False]
    assert [bias.requires_grad for bias in pool.biases] == [True, False]
    assert all(weight.requires_grad for weight in model[0].fc1.mixture.gate.parameters())
    assert all(module.training for module in model[0].modules())
    assert not any(module.training for module in model[1].fc1.modules())
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}


def test_recognising_changes_neither_mode_nor_generator():
    activation = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    dense = nn.ModuleList([Mlp(drop=0.5), Gated(), Pair(), sequential(activation)])
    dense[0].drop1.eval()
    activation[1].eval()
    modes = [module.training for module in dense.modules()]
    state = torch.get_rng_state()
    for module in dense.modules():
        RECOGNISERS.find(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in dense.modules()] == modes


def test_a_part_that_is_used_twice_is_one_mixture():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.list = Gated(), nn.ModuleList()
            self.list.append(self.first)
            self.list.append(self.first)
            # Two layers with the same weights
            self.mlps = nn.ModuleList([Mlp(), Mlp()])
            self.mlps[1].fc1, self.mlps[1].fc2 = self.mlps[0].fc1, self.mlps[0].fc2

        def forward(self, x):
            return self.mlps[1](self.mlps[0](self.list[1](self.list[0](self.first(x)))))

    dense, x = Tied().double(), torch.randn(3, D, dtype=torch.float64)
    model = convert(dense, 4)
    assert model.first is model.list[0] is model.list[1]
    assert isinstance(model.first, ConvertedMoE)
    assert model.mlps[0].fc1 is model.mlps[1].fc1
    assert difference(model(x), dense(x)) <= 1e-10
    assert names_of(convert(dense, 4, target_modules=["list.1"])) == ["first"]


def test_states_come_back_and_copies_are_apart():
    dense, x = encoder().double(), torch.randn(5, 3, D, dtype=torch.float64)
    model = convert(dense, 4, init="fresh")
    other = convert(dense, 4, init="fresh")
    assert difference(model(x), other(x)) > 1e-3
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    copied = copy.deepcopy(model)
    nn.init.zeros_(copied.layers[0].linear1.mixture.experts.weights[0])
    assert torch.equal(model(x), other(x)) and not torch.equal(copied(x), model(x))


def test_parameters_are_counted():
    dense = Mlp()
    model = convert(dense, 8, k=2)
    of_expert, gate = D * H + H + H * D + D, 8 * D
    assert parameter_counts(dense) == (of_expert, of_expert)
    assert parameter_counts(model) == (8 * of_expert + gate, 2 * of_expert + gate)
    assert f"parameters={8 * of_expert + gate}, active={2 * of_expert + gate}" in repr(model)
    every = convert(dense, 8, gate="softmax")
    assert parameter_counts(every).active == parameter_counts(every).total


def test_it_learns():
    """A step moves every expert and the gate, and the loss falls."""
    torch.manual_seed(0)
    model = convert(Mlp(), 4, init="fresh")
    x, y = torch.randn(64, D), torch.randn(64, D)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        assert all(weight.grad is not None for weight in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.85 * losses[0]


# --- gates ---


def test_gates_by_kind_by_section_and_by_function():
    assert type(convert(Mlp(), 4, gate="softmax").fc1.mixture.gate).__name__ == "SoftmaxGate"
    section = {"kind": "top_k", "k": 3, "balance_loss": 0.1, "hidden": [5]}
    gate = convert(Mlp(), 4, gate=section).fc1.mixture.gate
    assert (gate.k, gate.options.balance_loss, len(gate.logits.weights)) == (3, 0.1, 2)
    own = convert(Mlp(), 4, gate=partial(TopKGate, k=1, z_loss=0.1)).fc1.mixture.gate
    assert (own.k, own.options.z_loss) == (1, 0.1)
    switch = convert(Mlp(), 4, gate="switch", init="fresh").fc1.mixture.gate
    assert isinstance(switch, SwitchGate)

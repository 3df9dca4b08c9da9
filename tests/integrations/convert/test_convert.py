"""What is converted, what is kept, forms of one's own, and what is refused."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from mmoe.integrations.convert import (
    RECOGNISERS,
    ConvertedMoE,
    FeedForward,
    Recogniser,
    convert,
    parameter_counts,
    register,
)
from mmoe.mixture import MoE, SwitchGate, TopKGate, mlp_experts
from tests.integrations.convert.networks import (
    D,
    Gated,
    H,
    Intermediate,
    Mlp,
    Output,
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
    dense = nn.ModuleList([Mlp(drop=0.5), Gated(), Pair()])
    dense[0].drop1.eval()
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
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        assert all(weight.grad is not None for weight in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


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


# --- forms of one's own ---


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wo, self.scale = nn.Linear(D, H), nn.Linear(H, D), 2.0

    def forward(self, x):
        return self.scale * self.wo(self.wi(x).relu())


def match_own(module):
    if isinstance(module, Own):
        return FeedForward(module.wi, module.wo, torch.relu)
    return None


@pytest.fixture
def own_forms():
    before = RECOGNISERS.names()
    yield
    for name in set(RECOGNISERS.names()) - set(before):
        RECOGNISERS.remove(name)
    assert sorted(RECOGNISERS.names()) == sorted(before)


@pytest.mark.usefixtures("own_forms")
def test_a_form_of_ones_own():
    def replace(module, mixture):
        module.wi, module.wo, module.forward = None, None, lambda x: module.scale * mixture(x)
        module.mixture = mixture
        return module

    dense = nn.ModuleList([Own()]).double()
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(dense, 4)
    register("own", match_own, replace)
    model = convert(dense, 4)
    x = torch.randn(3, D, dtype=torch.float64)
    assert difference(model[0](x), dense[0](x)) <= 1e-10
    register(Recogniser("own", lambda module: None, replace))  # in place of the first one
    assert RECOGNISERS.names().count("own") == 1
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(dense, 4)


@pytest.mark.usefixtures("own_forms")
def test_what_register_refuses_and_in_place():
    with pytest.raises(
        ValueError, match=r"recogniser: expected a Recogniser alone, or a name with"
    ):
        register("own")
    register("own", match_own)
    with pytest.raises(ValueError, match="inplace: the module itself is the feed-forward part"):
        convert(Own(), 4, inplace=True)
    assert isinstance(convert(Own(), 4), ConvertedMoE)


# --- what only looks like one ---


class Doubled(Mlp):
    def forward(self, x):
        return 2 * super().forward(x)


class HiddenDropout(Mlp):
    """Drops hidden units by a function, which no attribute shows."""

    def forward(self, x):
        hidden = nn.functional.dropout(self.act(self.fc1(x)), 0.5, self.training)
        return self.fc2(hidden)


class OtherLayer(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return super()._ff_block(x) + x


class OtherOutput(Output):
    def forward(self, hidden, x):
        return self.LayerNorm(self.dense(hidden * 2) + x)


def pair(output):
    layer = Pair()
    layer.output = output
    return layer


class Whole(nn.Module):
    """Has the layers of a block, and attention of its own."""

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)

    def forward(self, x, mask):
        return self.fc2(self.act(self.fc1(x))) * mask


@pytest.mark.parametrize(
    "make",
    [
        Doubled,
        HiddenDropout,
        Whole,
        lambda: OtherLayer(D, 2, H),
        lambda: pair(OtherOutput()),
        lambda: sequential(nn.Softmax(-1)),
        lambda: sequential(nn.ReLU(), nn.Linear(H, H)),
        lambda: sequential(),
        lambda: nn.Sequential(nn.Linear(D, H), nn.Dropout(0.1), nn.ReLU(), nn.Linear(H, D)),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(D, H)), nn.ReLU()),
        lambda: Intermediate(),
    ],
)
def test_what_computes_something_else_is_not_taken(make):
    assert RECOGNISERS.find(make()) is None


# --- what is refused ---


def unfit_layer():
    layer = nn.TransformerEncoderLayer(D, 2, H)
    layer.linear2 = nn.Linear(H + 4, D)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def unfit_gate():
    gated = Gated()
    gated.gate_proj = nn.Linear(D, H + 1)
    return nn.Sequential(gated)


def mixed_types():
    mlp = Mlp()
    mlp.fc2.double()
    return mlp


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (
            lambda: nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(2, 2)),
            {},
            r"module: found no feed-forward part among 3 modules of the types Sequential, Conv1d, "
            r"Linear \(as 0, 1\); known forms are .*fc1, act, fc2.*register$",
        ),
        (lambda: nn.Linear(2, 2), {}, r"\(as the module itself\)"),
        (
            unfit_layer,
            {},
            r"^layers\.0: expected a second product that reads the 12 units of the first, got one "
            "that reads 16; give both the same width",
        ),
        (unfit_gate, {}, r"^0: expected a gate of 8 to 12 units .*, got 8 to 13; give both"),
        (mixed_types, {}, r"expected weights of one type of .*, got torch.float32, torch.float64"),
        (lambda: Mlp().half(), {}, r"^module: .*got torch.float16; cast the module first"),
        (
            lambda: convert(encoder(), 4),
            {},
            r"module: it has been converted already: layers\.0\.linear1, layers\.1\.linear1 are",
        ),
        (lambda: convert(Gated(), 4), {}, "module: it has been converted already"),
        (
            lambda: convert(encoder(), 4, target_modules=["layers.0"]),
            {"target_modules": ["layers.0.linear1"]},
            r"target_modules: layers\.0\.linear1 has been converted already; leave it out",
        ),
        (Mlp, {"k": 5}, r"k: expected 1 to 4, the number of experts, got 5; lower k, or raise num"),
        (Mlp, {"k": 0}, "k: expected a whole number of 1 or more, got 0"),
        (Mlp, {"num_experts": 0}, "num_experts: expected a whole number of 1 or more, got 0"),
        (Mlp, {"init": "copies"}, "init: expected one of copy, split, fresh, got 'copies'"),
        (Mlp, {"gate": "topk"}, r"gate: did you mean 'top_k'\? expected one of softmax, top_k"),
        (Mlp, {"gate": {"kind": "top_k", "z_los": 1}}, "gate: z_los: "),
        (Mlp, {"gate": TopKGate(D, 1, 4, k=2)}, "gate: expected a kind as 'top_k', a section"),
        (Mlp, {"gate": partial(TopKGate, k=2), "k": 3}, "k: expected none beside a gate of your"),
        (Mlp, {"gate": {"kind": "top_k", "k": 1}, "k": 3}, "k: expected 1, as in gate, got 3"),
        (Mlp, {"gate": "softmax", "k": 3}, "k: a softmax gate weighs all experts, got 3; leave k"),
        (Mlp, {"gate": "switch"}, r"gate: init='copy' needs weights that add up to 1.* SwitchGate"),
        (Mlp, {"gate": "gshard"}, "gate: init='copy' needs weights that add up to 1"),
        (
            Mlp,
            {"gate": {"kind": "top_k", "softmax": "before"}},
            "gate: init='copy' needs weights that add up to 1",
        ),
        (
            Mlp,
            {"gate": {"kind": "sigmoid", "normalize": False}},
            "gate: init='copy' needs weights that add up to 1",
        ),
        (Mlp, {"capacity": 1.25}, r"capacity: expected None or a Capacity, as Capacity\(1.25\)"),
        (Mlp, {"hidden": 6}, "hidden: init='copy' keeps the dense width, got 6; leave it out"),
        (Mlp, {"hidden": 0, "init": "fresh"}, "hidden: expected a whole number of 1 or more"),
        (
            Mlp,
            {"init": "split", "num_experts": 8},
            r"num_experts: expected a divisor of the 12 hidden units of module, .* got 8; take 6",
        ),
        (Mlp, {"init": "split", "hidden": 5}, "hidden: expected a width that cuts the 12 hidden"),
        (Mlp, {"init": "split", "hidden": 4}, r"divides num_experts \(4\), got 4"),
        (
            lambda: nn.Sequential(Gated())[0],
            {"inplace": True},
            r"inplace: the module itself is .*use what convert\(module, inplace=False\) returns",
        ),
        (
            encoder,
            {"target_modules": ["linear_1"]},
            "target_modules: 'linear_1' matches no module; nearest are linear1",
        ),
        (
            encoder,
            {"target_modules": ["linear1", "nothing.at.all"]},
            "target_modules: 'nothing.at.all' matches no module; ",
        ),
        (encoder, {"target_modules": r"layer\d"}, "matches no module; nearest are layers"),
        (encoder, {"target_modules": "("}, r"target_modules: expected a regular expression"),
        (encoder, {"target_modules": []}, r"target_modules: expected names as \['linear1'\]"),
        (encoder, {"target_modules": [1]}, r"target_modules: expected names as \['linear1'\]"),
        (
            encoder,
            {"target_modules": lambda module, name: False},
            "target_modules: the function matches no module; there are layers",
        ),
        (
            encoder,
            {"target_modules": ["linear1", "self_attn"]},
            r"target_modules: layers\.0\.self_attn \(MultiheadAttention\) is no feed-forward part",
        ),
        (
            encoder,
            {"target_modules": lambda module, name: "norm" in name},
            r"target_modules: layers\.0\.norm1 \(LayerNorm\) is no feed-forward part that a recog",
        ),
    ],
)
def test_errors(make, settings, message):
    module = make()
    with pytest.raises(ValueError, match=message) as caught:
        convert(module, **{"num_experts": 4} | settings)
    assert "\n" not in str(caught.value)


def test_experts_of_a_mixture_are_no_parts():
    moe = nn.ModuleList([MoE(D, mlp_experts(4, D, [D]))])
    with pytest.raises(ValueError, match="found no feed-forward part"):
        convert(moe, 4)

"""Experts that are cut along their hidden units add up to the whole ones."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    ExpertPool,
    MLPExperts,
    MultiGateMixture,
    TopKGate,
    cut_into_slices,
    join_slices,
)
from mmoe.mixture.experts.sliced import cut_tensor, join_tensor

E, D, H, WIDTH = 3, 5, 8, 4


def make(activation="gelu", **settings):
    torch.manual_seed(0)
    pool = MLPExperts(E, D, [H, WIDTH], activation=activation, output_activation=None, **settings)
    for bias in pool.biases:
        nn.init.normal_(bias)
    return pool.double()


@pytest.mark.parametrize("slices", [1, 2, 8])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
def test_slices_add_up_to_the_whole_forward_and_backward(activation, bias, slices):
    whole = make(activation, bias=bias)
    pool = cut_into_slices(whole, slices)
    x_BD = torch.randn(7, D, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(E, 7, WIDTH, dtype=torch.float64)
    found = []
    for experts in (whole, pool):
        y_EBO = torch.stack(experts.dense([x_BD])).unflatten(0, (E, -1)).sum(1)
        (grad,) = torch.autograd.grad((y_EBO * factors).sum(), x_BD, retain_graph=True)
        (y_EBO * factors).sum().backward()
        found.append((y_EBO, grad))
    torch.testing.assert_close(found[0], found[1])
    for (name, own), expected in zip(pool.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(join_tensor(pool, name, own.grad), expected.grad)
        torch.testing.assert_close(own.grad, cut_tensor(pool, name, expected.grad))


def test_shapes_alone_are_cut():
    with torch.device("meta"):
        pool = cut_into_slices(make("swiglu"), 4)
    for found, expected in zip(
        pool.parameters(), cut_into_slices(make("swiglu"), 4).parameters(), strict=True
    ):
        assert found.is_meta and (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert pool.number_V.is_meta


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_joined_is_the_whole_again_to_the_bit(activation, bias):
    whole = make(activation, dropout=0.1, output_dropout=0.2, bias=bias).eval()
    assert join_slices(cut_into_slices(whole, 4)).dropouts == [0.1, 0.2]
    whole.weights[0].requires_grad_(False)
    joined = join_slices(cut_into_slices(whole, 4))
    assert str(joined) == str(whole) and joined.training == whole.training
    assert [(n, p.requires_grad) for n, p in joined.named_parameters()] == [
        (n, p.requires_grad) for n, p in whole.named_parameters()
    ]
    for ours, theirs in zip(joined.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()


def test_no_random_number_is_drawn():
    whole, state = make(), torch.get_rng_state()
    join_slices(cut_into_slices(whole, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_saved_slices_are_joined_in_another_world():
    whole = make("swiglu")
    saved = cut_into_slices(whole, 4).state_dict()
    assert list(saved) == list(whole.state_dict())
    loaded = cut_into_slices(
        MLPExperts(E, D, [H, WIDTH], activation="swiglu", output_activation=None), 4
    )
    loaded.double().load_state_dict(saved)
    assert all(map(torch.equal, join_slices(loaded).parameters(), whole.parameters()))


def test_what_the_optimizer_keeps_is_cut_and_joined_too():
    pool = cut_into_slices(make(), 2)
    moment = torch.randn(E, D, H)
    cut = cut_tensor(pool, "weights.0/exp_avg", moment)
    assert torch.equal(join_tensor(pool, "weights.0/exp_avg", cut), moment)
    step = torch.tensor(3.0)
    assert (
        cut_tensor(pool, "weights.0/step", step) is step is join_tensor(pool, "biases.1/step", step)
    )


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop"])
def test_the_bias_of_other_slices_stays_0_under_an_optimizer(name):
    pool = cut_into_slices(make(), 2)
    optimizer = getattr(torch.optim, name)(pool.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sum(y.square().sum() for y in pool.dense([torch.randn(6, D).double()])).backward()
        optimizer.step()
    assert pool.biases[1][1::2].abs().max() == 0 < pool.biases[1][::2].abs().min()


def test_what_stands_in_the_place_of_another_slices_bias_is_not_read():
    pool = cut_into_slices(make(), 2)
    x_BD = torch.randn(6, D).double()
    before = pool.dense([x_BD])
    nn.init.ones_(pool.biases[1][1::2])
    assert all(map(torch.equal, before, pool.dense([x_BD])))


def test_a_part_keeps_which_slice_has_the_bias():
    pool = cut_into_slices(make(), 2)
    x_BD = torch.randn(6, D).double()
    part = pool.part([3, 0])
    assert torch.equal(part.dense([x_BD])[0], pool.dense([x_BD])[3])
    assert torch.equal(part.dense([x_BD])[1], pool.dense([x_BD])[0])
    with pytest.raises(ValueError, match=r"slices: expected all 2 of every expert.* got \[3, 0\]"):
        join_slices(part)


def test_new_weights_are_drawn_as_those_of_the_whole():
    pool = cut_into_slices(MLPExperts(2, 64, [512, 64], output_activation=None), 8)
    before = pool.weights[1].std()
    pool.reset_parameters()
    assert abs(pool.weights[1].std() / before - 1) < 0.05


@pytest.mark.parametrize(
    ("pool", "slices", "message"),
    [
        (ExpertPool([nn.Linear(4, 4)]), 2, "experts: expected whole MLPExperts.* a ExpertPool"),
        (cut_into_slices(make(), 2), 2, "experts: expected whole MLPExperts.* slices"),
        (
            MLPExperts(2, D, [WIDTH], output_activation=None),
            2,
            r"hidden: expected two .* got \[4\]",
        ),
        (MLPExperts(2, D, [H, H, WIDTH]), 2, r"hidden: expected two widths.* got \[8, 8, 4\]"),
        (make(norm="layer"), 2, "norm: expected None .* got 'layer'"),
        (MLPExperts(2, D, [H, WIDTH]), 2, "output_activation: expected None .* got 'same'"),
        (make(), 3, "slices: expected a number that divides the 8 hidden units, got 3"),
        (make(), 0, "slices: expected a number that divides the 8 hidden units, got 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(pool, slices, message):
    with pytest.raises(ValueError, match=message):
        cut_into_slices(pool, slices)


def test_a_mixture_of_slices_is_that_of_whole_experts_where_all_are_picked():
    """Gates of one process may see slices as experts: here with equal weights."""
    whole = make()
    gate = TopKGate(D, 2, E, k=E).double()
    nn.init.zeros_(next(gate.parameters()))
    wide = TopKGate(D, 2, 2 * E, k=2 * E).double()
    nn.init.zeros_(next(wide.parameters()))
    x_BD = torch.randn(6, D).double()
    one = MultiGateMixture(D, 2, whole, gate=gate, execution="grouped")
    two = MultiGateMixture(D, 2, cut_into_slices(whole, 2), gate=wide, execution="grouped")
    torch.testing.assert_close(one(x_BD).out_BGO, 2 * two(x_BD).out_BGO)

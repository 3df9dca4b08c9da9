"""Towers of domains: those of each domain alone, row by row the same bits."""

import copy

import pytest
import torch

from mmoe.mixture.inputs import Inputs
from mmoe.tasks import Tower
from mmoe.tasks.towers import DomainTower

D, M = 6, 3


def towers(*, hidden=(5, 4), activation="relu", columns=(1, 0)):
    """A tower of domains that differ, and a plain tower for each of them."""
    torch.manual_seed(1)
    tower = Tower(D, hidden, activation=activation)
    tower.widen(*columns)
    separate = [copy.deepcopy(tower).double().eval() for _ in range(M)]
    joint = DomainTower(tower, M).double().eval()
    for own in (*joint.own_weights, *joint.own_biases):
        torch.nn.init.normal_(own)
    with torch.no_grad():
        for m, one in enumerate(separate):
            for number, layer in enumerate([*one.mlp.layers, one.logit]):
                layer.weight.add_(joint.own_weights[number][m])
                layer.bias.add_(joint.own_biases[number][m])
    return joint, separate


def of(codes):
    return Inputs(x_BR=torch.empty(len(codes), 0)).in_domains(codes.int(), M)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("columns", [(1, 0), (2, 3)], ids=str)
def test_each_row_goes_through_its_domains_tower(hidden, activation, columns):
    joint, separate = towers(hidden=hidden, activation=activation, columns=columns)
    h_BO, codes = torch.randn(50, D, dtype=torch.float64), torch.randint(M, (50,))
    found = joint(h_BO, of(codes))
    for m, one in enumerate(separate):
        torch.testing.assert_close(found[codes == m], one(h_BO[codes == m]))


def test_gradients_are_those_of_separate_towers():
    joint, separate = towers()
    h_BO = torch.randn(50, D, dtype=torch.float64, requires_grad=True)
    codes, wish_B = torch.randint(M, (50,)), torch.randn(50, dtype=torch.float64)
    (joint(h_BO, of(codes)) * wish_B).sum().backward()
    mine, h_BO.grad = h_BO.grad, None
    for m, one in enumerate(separate):
        (one(h_BO[codes == m]) * wish_B[codes == m]).sum().backward()
    torch.testing.assert_close(mine, h_BO.grad)
    for number in range(3):
        layers = [[*one.mlp.layers, one.logit][number] for one in separate]
        weights = torch.stack([layer.weight.grad for layer in layers])
        torch.testing.assert_close(joint.own_weights[number].grad, weights)
        biases = torch.stack([layer.bias.grad for layer in layers])
        torch.testing.assert_close(joint.own_biases[number].grad, biases)


def test_rows_of_no_domain_get_the_mean_of_linear_towers():
    joint, separate = towers(hidden=())
    h_BO = torch.randn(8, D, dtype=torch.float64)
    each = torch.stack([one(h_BO) for one in separate])
    torch.testing.assert_close(joint(h_BO, of(torch.full((8,), M))), each.mean(0))


def test_a_row_feels_no_other_row():
    joint, _ = towers()
    joint = joint.float()
    h_BO, codes = torch.randn(300, D), torch.randint(M + 1, (300,))
    whole, order = joint(h_BO, of(codes)), torch.randperm(300)[:91]
    assert torch.equal(joint(h_BO[order], of(codes[order])), whole[order])


def test_it_begins_as_the_tower_that_it_was_made_of():
    tower = Tower(D, [5]).eval()
    h_BO = torch.randn(9, D)
    before = tower(h_BO)
    after = DomainTower(tower, M).eval()(h_BO, of(torch.arange(9) % (M + 1)))
    torch.testing.assert_close(after, before)

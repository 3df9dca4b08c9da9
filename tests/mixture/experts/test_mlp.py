"""MLP: formula, initialisation, dropout, errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmoe.mixture import MLP


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("training", [True, False])
def test_equals_its_formula(activation, training):
    torch.manual_seed(0)
    mlp, x = MLP(5, [4, 3], activation=activation).train(training), torch.randn(6, 5)
    for layer in mlp.layers:
        nn.init.normal_(layer.bias)
    h = x
    for layer in mlp.layers:
        h = getattr(F, activation)(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(mlp(x), h)
    assert (mlp.input_dim, mlp.output_dim) == (5, 3)


def test_without_layers_is_the_identity():
    x = torch.randn(3, 5)
    assert MLP(5, [])(x) is x
    assert MLP(5, []).output_dim == 5


def test_leaves_its_input_alone():
    x = torch.randn(3, 5)
    before = x.clone()
    MLP(5, [4])(x)
    assert torch.equal(x, before)


def test_he_initialisation_keeps_the_second_moment():
    torch.manual_seed(0)
    y = MLP(300, [400, 400, 400])(torch.randn(500, 300))
    # He et al. 2015: E[relu(y)²] = E[x²] = 1, layer after layer.
    assert 0.8 < y.square().mean() < 1.2


def test_dropout_zeroes_and_rescales():
    torch.manual_seed(0)
    mlp, x = MLP(4, [1000], dropout=0.25), torch.rand(20, 4)
    y, full = mlp(x), mlp.eval()(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], full[kept] / 0.75)
    assert abs(kept.sum() / (full > 0).sum() - 0.75) < 0.02


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0, [4]), "input_dim: expected a width of 1 or more, got 0"),
        (lambda: MLP(4, [4, 0]), r"hidden: expected widths of 1 or more, got \[4, 0\]"),
        (lambda: MLP(4, [4], activation="tanh"), "activation: expected one of relu, gelu, silu"),
        (lambda: MLP(4, [4], dropout=1.0), r"dropout: expected a probability in \[0, 1\), got 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()

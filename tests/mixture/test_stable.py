"""Layers and activations for scoring: their formulas, and rows that keep their bits anywhere."""

import pytest
import torch
import torch.nn.functional as F

from mmoe.mixture.stable import stable_activation, stable_linear, stable_sigmoid

FUNCTIONS = {
    "sigmoid": (stable_sigmoid, torch.sigmoid),
    **{
        name: (lambda x, name=name: stable_activation(x, name), getattr(F, name))
        for name in ("relu", "gelu", "silu")
    },
}


@pytest.mark.parametrize("width", [1, 2, 8, 11, 16, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_linear_layer(width, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(50, 33), torch.randn(width, 33)
    b = torch.randn(width) if bias else None
    torch.testing.assert_close(stable_linear(x, weight, b), F.linear(x, weight, b))


@pytest.mark.parametrize("rows", [100, 512])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8, 11, 12, 16, 24, 64])
def test_shuffled_rows_keep_their_bits(width, rows):
    torch.manual_seed(0)
    for inner in (6, 33, 330):
        x, weight = torch.randn(rows, inner), torch.randn(width, inner)
        order = torch.randperm(rows)
        assert torch.equal(stable_linear(x[order], weight), stable_linear(x, weight)[order])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_is_the_activation(name, dtype):
    stable, plain = FUNCTIONS[name]
    x = torch.cat([torch.linspace(-9, 9, 500), torch.tensor([-200.0, 0.0, 200.0])]).to(dtype)
    assert stable(x).dtype == dtype
    torch.testing.assert_close(stable(x), plain(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_the_activation_stay_finite(name):
    stable, plain = FUNCTIONS[name]
    x = torch.tensor([-1e4, -100.0, -1.0, 0.5, 100.0, 1e4], dtype=torch.float64)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(plain(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(stable(x).sum(), x)[0], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_number_keeps_its_bits_wherever_it_stands(name, dtype):
    torch.manual_seed(0)
    stable, _ = FUNCTIONS[name]
    for width in (1, 7, 33):
        x = (4 * torch.randn(257, width)).to(dtype)
        y, order = stable(x), torch.randperm(257)
        assert torch.equal(stable(x[order]), y[order])
        for rows in (1, 2, 3, 5, 8, 31, 100):
            assert torch.equal(stable(x[:rows].clone()), y[:rows])
            assert torch.equal(stable(x[-rows:].clone()), y[-rows:])

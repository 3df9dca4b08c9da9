"""Layers and activations for scoring: their formulas, and rows that keep their bits anywhere."""

import pytest
import torch
import torch.nn.functional as F

from mmoe.mixture.batch_invariant import (
    StableFunctions,
    padded_linear,
    stable_activation,
    stable_linear,
    stable_sigmoid,
)

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("inner", [6, 33, 330])
def test_a_product_keeps_its_bits_in_any_order_at_any_height(inner, dtype):
    torch.manual_seed(0)
    x, order = torch.randn(512, inner).to(dtype), torch.randperm(512)
    for width in (1, 2, 3, 4, 6, 8, 11, 12, 16, 21, 24, 64):
        weight, bias = torch.randn(width, inner).to(dtype), torch.randn(width).to(dtype)
        y = stable_linear(x, weight, bias)
        assert torch.equal(stable_linear(x[order], weight, bias), y[order])
        for rows in (1, 2, 3, 5, 100):
            assert torch.equal(stable_linear(x[:rows], weight, bias), y[:rows])
            assert torch.equal(stable_linear(x[-rows:].clone(), weight, bias), y[-rows:])


@pytest.mark.parametrize("width", [1, 4, 24])
def test_torchs_own_product_keeps_the_bits_of_shuffled_rows(width):
    torch.manual_seed(0)
    x, weight, order = torch.randn(211, 33), torch.randn(width, 33), torch.randperm(211)
    y = padded_linear(x, weight, torch.ones(width))
    torch.testing.assert_close(y, F.linear(x, weight, torch.ones(width)))
    assert torch.equal(padded_linear(x[order], weight, torch.ones(width)), y[order])


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 5, 3), (0, 5, 3)])
def test_any_leading_dimensions(shape):
    x, weight, bias = torch.randn(*shape), torch.randn(4, 3), torch.randn(4)
    torch.testing.assert_close(stable_linear(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_follows_autocast(dtype):
    x, weight = torch.randn(5, 3), torch.randn(4, 3)
    with torch.autocast("cpu", dtype):
        assert stable_linear(x, weight).dtype == F.linear(x, weight).dtype == dtype
        assert stable_linear(x.double(), weight.double()).dtype == torch.float64


def test_what_does_not_fit_is_refused_as_ever():
    for x, weight in (
        (torch.ones(2, 4), torch.ones(4, 3)),
        (torch.ones(2, 3).double(), torch.ones(4, 3)),
    ):
        with pytest.raises(RuntimeError) as expected:
            F.linear(x, weight)
        with pytest.raises(RuntimeError) as error:
            stable_linear(x, weight)
        assert str(error.value) == str(expected.value)


class Plain(torch.nn.Module):
    """Calls what modules of others may call, in place where that is common."""

    def forward(self, x):
        """All forms, one after another."""
        x = F.silu(F.linear(x, torch.ones(4, x.shape[1])), inplace=True)
        x = F.gelu(x) + F.gelu(x, approximate="tanh")
        return torch.sigmoid(x) * x.sigmoid()


def test_modules_of_others_compute_the_same_with_the_stable_forms():
    torch.manual_seed(0)
    x = torch.randn(7, 3, requires_grad=True)
    expected = Plain()(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    with StableFunctions():
        y = Plain()(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], gradient)


def test_layers_that_write_in_place_have_gradients():
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
    with StableFunctions():
        layers(torch.randn(5, 3)).sum().backward()
    assert layers[0].weight.grad.abs().sum() > 0

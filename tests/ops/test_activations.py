"""The fused activations over a dtype's whole range, values and slopes, against PyTorch's."""

import pytest
import torch

from mmoe.ops import dense_mm, grouped_mm

FUNCTIONS = {
    "none": lambda z: z * 1,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


@pytest.fixture(params=FUNCTIONS)
def activation(request):
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def grouped(x, weight_EDH, bias_EH, activation):
    offsets_E1 = torch.tensor([0, 1], dtype=torch.int32, device=x.device)
    return grouped_mm(x, offsets_E1, weight_EDH, bias_EH, activation)


def dense(x, weight_EDH, bias_EH, activation):
    return dense_mm(x, weight_EDH, bias_EH, activation)[0]


@pytest.fixture(params=[grouped, dense])
def layer(request, activation, device):
    """Values and slopes: the numbers are the biases, the product adds 0."""

    def run(numbers):
        bias_EH = numbers.to(device).unsqueeze(0).requires_grad_()
        x, weight_EDH = bias_EH.new_ones(1, 1), bias_EH.new_zeros(1, 1, len(numbers))
        y = request.param(x, weight_EDH, bias_EH, activation)
        (slopes,) = torch.autograd.grad(y, bias_EH, torch.ones_like(y))
        return y.flatten().cpu(), slopes.flatten().cpu()

    return run


def exact(numbers, activation):
    leaf = numbers.double().requires_grad_()
    y = FUNCTIONS[activation](leaf)
    (slopes,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    return y.detach().to(numbers.dtype), slopes.to(numbers.dtype)


def both_signs(magnitudes, dtype):
    return torch.cat([magnitudes, -magnitudes]).to(dtype)


def test_every_magnitude(layer, activation, dtype):
    powers = torch.logspace(-30, 38, 205, dtype=torch.float64)
    ends = torch.tensor([0, 13, 87, 87.5, 88, 88.25, 88.5, 88.7, 89, 90, 95, 104, 3e38])
    numbers = both_signs(torch.cat([powers, ends.double()]), dtype)

    y, slopes = layer(numbers)

    step = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    expected_y, expected_slopes = exact(numbers, activation)
    torch.testing.assert_close(y, expected_y, rtol=step, atol=step)
    torch.testing.assert_close(slopes, expected_slopes, rtol=step, atol=step)
    small = numbers.abs() < 0.1  # there in relation to the number
    torch.testing.assert_close(y[small], expected_y[small], rtol=step, atol=0)
    if activation == "silu":  # small results too; float32 has exp(x) up to x = 88.72
        torch.testing.assert_close(y, expected_y, rtol=step, atol=3e-37)


def test_nan_of_either_sign_and_infinity_are_pytorchs(layer, activation, dtype):
    """The NaN that x86 itself makes is negative; a ReLU's gradient passes where y is NaN."""
    nan = torch.tensor(torch.nan, dtype=dtype).copysign(torch.tensor([1.0, -1.0], dtype=dtype))
    assert nan.signbit().tolist() == [False, True]
    numbers = torch.cat([nan, torch.tensor([torch.inf, -torch.inf, 1.0], dtype=dtype)]).repeat(9)

    y, slopes = layer(numbers)

    expected_y, expected_slopes = exact(numbers, activation)
    torch.testing.assert_close(y, expected_y, rtol=0.02, atol=0, equal_nan=True)
    torch.testing.assert_close(slopes, expected_slopes, rtol=0.02, atol=0, equal_nan=True)


def test_the_gradient_passes_a_nan_from_the_product(dtype):
    """Infinity less infinity, as in a run that diverges."""
    x_PD = torch.tensor([[torch.inf, -torch.inf], [1.0, 1.0], [-1.0, -1.0]], dtype=dtype)
    x_PD.requires_grad_()
    weight_EDH = torch.ones(1, 2, 40, dtype=dtype)

    y_PH = grouped_mm(x_PD, torch.tensor([0, 3], dtype=torch.int32), weight_EDH, None, "relu")
    (grad_PD,) = torch.autograd.grad(y_PH, x_PD, torch.ones_like(y_PH))

    assert y_PH[0].isnan().all()
    assert grad_PD.tolist() == [[40.0, 40.0], [40.0, 40.0], [0.0, 0.0]]

"""Gradients of biases: sums of what the products read, which is rounded to the rows' dtype."""

from itertools import pairwise

import pytest
import torch

import mmoe.ops  # noqa: F401  # defines torch.ops.mmoe, also where this file runs alone

DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)]


def layer(rows, weights, sizes, width, device):
    """Experts that give their rows back as they are, so that the gradient of x is dz itself."""
    generator = torch.Generator().manual_seed(len(sizes))
    P, E = sum(sizes), len(sizes)
    grad, z = (torch.randn(P, width, generator=generator).to(rows) for _ in range(2))
    weight_EDH = torch.eye(width).expand(E, width, width).to(weights)
    offsets_E1 = torch.tensor([0, *sizes]).cumsum(0).int()
    return [tensor.to(device) for tensor in (grad, z, weight_EDH, offsets_E1)]


def grouped(grad, z, weight_EDH, offsets_E1, activation):
    arguments = (grad, torch.zeros_like(z), offsets_E1, weight_EDH, z, z, activation)
    dz, _, grad_bias = torch.ops.mmoe.grouped_mm_backward(*arguments, True, True, True)
    bounds = offsets_E1.tolist()
    return [dz[a:b] for a, b in pairwise(bounds)], grad_bias


def dense(grad, z, weight_EDH, offsets_E1, activation):
    """Experts that all have as many rows."""
    E = len(weight_EDH)
    parts = [list(tensor.view(E, -1, tensor.shape[1]).unbind(0)) for tensor in (grad, z)]
    x = [torch.zeros_like(part) for part in parts[1]]
    kept = (weight_EDH, parts[1], parts[1], activation)
    dz, _, grad_bias = torch.ops.mmoe.dense_mm_backward(parts[0], x, *kept, True, True, True)
    return dz, grad_bias


def in_order(rows):
    """Row by row from 0 on, as a small expert's are added up everywhere."""
    total = torch.zeros(rows.shape[1])
    for row in rows.float().cpu():
        total += row
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", [grouped, dense])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32], ids=["bf16", "fp32-weights"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("width", [24, 17])
def test_bf16_rows_are_added_up_as_they_are_rounded(device, operator, weights, activation, width):
    dz, grad_bias = operator(*layer(torch.bfloat16, weights, [7, 7], width, device), activation)

    for rows, found in zip(dz, grad_bias, strict=True):
        assert torch.equal(found.cpu(), in_order(rows).to(weights))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", [grouped, dense])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_of_many_rows(device, operator, dtype):
    """Of several tiles of rows; bf16 rows beside fp32 weights, so that no sum is rounded."""
    weights = torch.float32 if dtype == torch.bfloat16 else dtype
    dz, grad_bias = operator(*layer(dtype, weights, [300, 300, 300], 40, device), "silu")

    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for rows, found in zip(dz, grad_bias, strict=True):
        expected = rows.double().sum(0).to(weights)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)

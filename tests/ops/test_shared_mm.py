"""Layers whose rows share a part with their owner: against the layer of all columns, messages."""

import pytest
import torch

from mmoe.ops import dense_mm, shared_mm
from mmoe.ops.row_sums import Owners, repeat_rows, sum_by_owner
from tests.needs_kernels import needs_kernels

E, B, Q, D, H = 3, 37, 6, 16, 24


def draw(dtype=torch.float32):
    """Rows, weights, biases, what owners have of the product, and whose each row is."""
    generator = torch.Generator().manual_seed(B + D)

    def random(*sizes):
        return torch.randn(sizes, generator=generator).to(dtype)

    owners = Owners(torch.randint(Q, (B,), generator=generator), Q)
    weights = random(E, D, H) / D**0.5, random(E, H)
    return random(B, D), *weights, [random(Q, H) for _ in range(E)], owners


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_it_is_the_layer_of_all_columns(activation):
    x_BD, weight_EDH, bias_EH, _, owners = draw(torch.float64)
    x_QP, own_EPH = torch.randn(Q, 5).double(), torch.randn(E, 5, H).double()
    shared = dense_mm(x_QP, own_EPH)
    found = shared_mm(x_BD, weight_EDH, bias_EH, shared, owners, activation)
    together = torch.cat([repeat_rows(x_QP, owners), x_BD], dim=1)
    whole = dense_mm(together, torch.cat([own_EPH, weight_EDH], dim=1), bias_EH, activation)
    torch.testing.assert_close(found, whole)


def test_messages():
    *layer, shared, owners = draw()
    with pytest.raises(ValueError, match="shared: expected 3 tensors, one per expert, got 2"):
        shared_mm(*layer, shared[:2], owners)
    with pytest.raises(ValueError, match=r"shared\[0\]: expected shape \[5, 24\]"):
        shared_mm(*layer, shared, Owners(owners.of_B, 5))


@needs_kernels
@torch.no_grad()
def test_wrong_owners_are_refused():
    *given, owners = draw()
    with pytest.raises(ValueError, match=r"owners_B: expected numbers in \[0, 6\)"):
        shared_mm(*given, Owners(owners.of_B + 1, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_repeated_rows_and_their_sums(dtype):
    owners = Owners(torch.tensor([3, 0, 3, 1, 0, 3]), 5)
    x_QD = torch.randn(5, 7).to(dtype).requires_grad_()
    out_BD = repeat_rows(x_QD, owners)
    assert torch.equal(out_BD, x_QD[owners.of_B])
    grad_BD = torch.randn(6, 7).to(dtype)
    (grad_QD,) = torch.autograd.grad(out_BD, x_QD, grad_BD)
    expected = torch.zeros(5, 7, dtype=torch.float64).index_add(0, owners.of_B, grad_BD.double())
    step = {torch.float32: 5e-5, torch.bfloat16: 3e-2, torch.float64: 1e-11}[dtype]
    torch.testing.assert_close(grad_QD, expected.to(dtype), rtol=step, atol=4 * step)
    assert torch.equal(grad_QD, sum_by_owner(grad_BD, owners))


def test_of_no_rows_sums_are_zero():
    owners = Owners(torch.zeros(0, dtype=torch.int64), 3)
    assert torch.equal(sum_by_owner(torch.zeros(0, 2), owners), torch.zeros(3, 2))

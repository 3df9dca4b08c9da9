"""Layers whose rows share a part with their owner: against the reference, gradients, bits."""

import pytest
import torch

from mmoe.ops import dense_mm, reference, shared_mm
from mmoe.ops.repeat_rows import Owners, repeat_rows, sum_by_owner
from tests.needs_kernels import needs_kernels

ACTIVATIONS = ["none", "relu", "gelu", "silu"]
# Experts, rows, owners, input and output width
LAYERS = {
    "usual": (3, 37, 6, 16, 24),
    "one owner": (1, 20, 1, 8, 8),
    "no rows": (2, 0, 3, 4, 6),
    "owners without rows": (2, 3, 9, 7, 5),
    "odd widths": (3, 61, 7, 33, 67),
    "many blocks": (2, 700, 20, 70, 300),
}
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "bf16 rows": (torch.bfloat16, torch.float32),
    "fp64": (torch.float64, torch.float64),
}
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 3e-2, torch.float64: 1e-11}


def draw(layer, dtypes):
    E, B, Q, D, H = layer
    generator = torch.Generator().manual_seed(B + D)
    rows, weights = dtypes
    x_BD = torch.randn(B, D, generator=generator).to(rows)
    weight_EDH = (torch.randn(E, D, H, generator=generator) / D**0.5).to(weights)
    bias_EH = torch.randn(E, H, generator=generator).to(weights)
    shared = [torch.randn(Q, H, generator=generator).to(rows) for _ in range(E)]
    owners = Owners(torch.randint(Q, (B,), generator=generator), Q)
    grad = [torch.randn(B, H, generator=generator).to(rows) for _ in range(E)]
    return x_BD, weight_EDH, bias_EH, shared, owners, grad


def near(actual, expected, dtype):
    assert actual.dtype == expected.dtype
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    step = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=step, atol=step * scale)


def gradients(function, inputs):
    x_BD, weight_EDH, bias_EH, shared, owners, grad = inputs
    leaves = [t.clone().requires_grad_() for t in (x_BD, weight_EDH, bias_EH, *shared)]
    y = function(*leaves[:3], leaves[3:], owners)
    return y, torch.autograd.grad(y, leaves, grad)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_equals_reference_with_its_gradients(layer, dtypes, activation):
    inputs = draw(LAYERS[layer], DTYPES[dtypes])

    def specified(x_BD, weight_EDH, bias_EH, shared, owners):
        owners_B = owners.of_B.int()
        return reference.shared_mm(
            x_BD, weight_EDH, bias_EH, shared, owners_B, None, None, activation
        )[0]

    y, found = gradients(lambda *given: shared_mm(*given, activation), inputs)
    expected_y, expected = gradients(specified, inputs)
    for one, other in zip([*y, *found], [*expected_y, *expected], strict=True):
        near(one, other, inputs[0].dtype)


@needs_kernels
@pytest.mark.parametrize("dtypes", DTYPES)
def test_a_row_depends_on_itself_and_its_owner_alone(dtypes):
    x_BD, weight_EDH, bias_EH, shared, owners, _ = draw(LAYERS["many blocks"], DTYPES[dtypes])
    whole = shared_mm(x_BD, weight_EDH, bias_EH, shared, owners, "relu")
    for places in ([5], [699, 3, 40], [*range(700)][::-1]):
        some = Owners(owners.of_B[places], owners.count)
        part = shared_mm(x_BD[places], weight_EDH, bias_EH, shared, some, "relu")
        for one, other in zip(part, whole, strict=True):
            assert torch.equal(one, other[places])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_the_layer_of_all_columns(activation):
    x_BD, weight_EDH, bias_EH, _, owners, _ = draw(LAYERS["usual"], DTYPES["fp64"])
    x_QP, own_EPH = torch.randn(6, 5).double(), torch.randn(3, 5, 24).double()
    shared = dense_mm(x_QP, own_EPH)
    found = shared_mm(x_BD, weight_EDH, bias_EH, shared, owners, activation)
    together = torch.cat([repeat_rows(x_QP, owners), x_BD], dim=1)
    whole = dense_mm(together, torch.cat([own_EPH, weight_EDH], dim=1), bias_EH, activation)
    torch.testing.assert_close(found, whole)


def test_messages():
    x_BD, weight_EDH, bias_EH, shared, owners, _ = draw(LAYERS["usual"], DTYPES["fp32"])
    with pytest.raises(ValueError, match="shared: expected 3 tensors, one per expert, got 2"):
        shared_mm(x_BD, weight_EDH, bias_EH, shared[:2], owners)
    with pytest.raises(ValueError, match=r"shared\[0\]: expected shape \[5, 24\]"):
        shared_mm(x_BD, weight_EDH, bias_EH, shared, Owners(owners.of_B, 5))


@needs_kernels
@torch.no_grad()
def test_wrong_owners_are_refused():
    x_BD, weight_EDH, bias_EH, shared, owners, _ = draw(LAYERS["usual"], DTYPES["fp32"])
    wrong = Owners(owners.of_B + 1, 6)
    with pytest.raises(ValueError, match=r"owners_B: expected numbers in \[0, 6\)"):
        shared_mm(x_BD, weight_EDH, bias_EH, shared, wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_repeated_rows_and_their_sums(dtype):
    owners = Owners(torch.tensor([3, 0, 3, 1, 0, 3]), 5)
    x_QD = torch.randn(5, 7).to(dtype).requires_grad_()
    out_BD = repeat_rows(x_QD, owners)
    assert torch.equal(out_BD, x_QD[owners.of_B])
    grad_BD = torch.randn(6, 7).to(dtype)
    (grad_QD,) = torch.autograd.grad(out_BD, x_QD, grad_BD)
    expected = torch.zeros(5, 7, dtype=torch.float64).index_add(0, owners.of_B, grad_BD.double())
    near(grad_QD, expected.to(dtype), dtype)
    assert torch.equal(grad_QD, sum_by_owner(grad_BD, owners))


def test_of_no_rows_sums_are_zero():
    owners = Owners(torch.zeros(0, dtype=torch.int64), 3)
    assert torch.equal(sum_by_owner(torch.zeros(0, 2), owners), torch.zeros(3, 2))

"""Products of experts as deep and as wide as 1,024: many steps of every tile, and the last partial.

The shared cases end at 67; what is odd cannot be read in packs.
"""

import pytest
import torch

from mmoe import ops
from mmoe.ops.product_choice import grouped_product

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

TYPES = {
    "fp32": (torch.float32, torch.float32, "own"),
    "bf16": (torch.bfloat16, torch.bfloat16, "own"),
    "bf16-library": (torch.bfloat16, torch.bfloat16, "library"),
    "bf16-fp32": (torch.bfloat16, torch.float32, "own"),
    "bf16-fp32-library": (torch.bfloat16, torch.float32, "library"),
    "fp64": (torch.float64, torch.float64, "own"),
}
# D and H: each depth of either product stands first and last, rows of 16 bytes and not
SIZES = [(129, 40), (136, 264), (255, 33), (512, 129), (40, 1023), (640, 24), (1023, 7), (1024, 72)]
SIZES += [(72, 1024), (24, 511)]
ROWS = (0, 1, 67, 130)  # of each expert: none, one, part of a tile, more than one


@pytest.fixture(params=TYPES.values(), ids=list(TYPES))
def types(request):
    """Of rows and of weights, and whose grouped product is taken."""
    *types, product = request.param
    with grouped_product(product):
        yield *types, product


@pytest.fixture(params=SIZES, ids=lambda size: f"D{size[0]}-H{size[1]}")
def layer(request, types):
    """x_PD, offsets_E1, weight_EDH, bias_EH, and the gradient of the result."""
    (D, H), E, (rows, weights, _) = request.param, len(ROWS), types
    generator = torch.Generator().manual_seed(D)
    offsets_E1 = torch.tensor([0, *ROWS]).cumsum(0).int()
    x_PD, grad_PH = (torch.randn(sum(ROWS), width, generator=generator) for width in (D, H))
    weight_EDH = torch.randn(E, D, H, generator=generator) / D**0.5
    bias_EH = torch.randn(E, H, generator=generator)
    values = x_PD.to(rows), offsets_E1, weight_EDH.to(weights), bias_EH.to(weights)
    return *values, grad_PH.to(rows)


def near(found, wanted, dtype):
    """Within the roundings of the rows' type, seen from the largest number."""
    step = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float64: 1e-12}[dtype]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        atol = step * max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=atol)


def test_grouped_products(layer):
    *inputs, grad_PH = layer
    op, backward = torch.ops.mmoe.grouped_mm, torch.ops.mmoe.grouped_mm_backward
    needs = "silu", True, True, True

    y, z = op(*inputs, "silu")
    found = op(*(part.cuda() for part in inputs), "silu")

    near(found, (y, z), grad_PH.dtype)
    arguments = grad_PH, *inputs[:3], y, z
    found = backward(*(part.cuda() for part in arguments), *needs)
    near(found, backward(*arguments, *needs), grad_PH.dtype)


def test_dense_products(layer, types):
    if types[-1] == "library":
        pytest.skip("dense_mm has one product")
    x_BD, _, weight_EDH, bias_EH, grad_BH = layer
    op, backward = torch.ops.mmoe.dense_mm, torch.ops.mmoe.dense_mm_backward
    needs = "silu", True, True, True
    weights = weight_EDH.cuda(), bias_EH.cuda()

    y, z = op([x_BD], weight_EDH, bias_EH, "silu")
    found = op([x_BD.cuda()], *weights, "silu")

    near([*found[0], *found[1]], [*y, *z], x_BD.dtype)
    grad = [grad_BH.roll(shift, 0) for shift in range(len(weight_EDH))]
    lists = [[part.cuda() for part in parts] for parts in (grad, [x_BD], y, z)]
    grads, x, *kept = lists
    found_x, *found = backward(grads, x, weights[0], *kept, *needs)
    wanted_x, *wanted = backward(grad, [x_BD], weight_EDH, y, z, *needs)
    near([*found_x, *found], [*wanted_x, *wanted], x_BD.dtype)


def test_a_deep_rows_result_does_not_depend_on_the_other_rows(layer, types):
    if types[-1] == "library":
        pytest.skip("the library does not promise it")
    x_PD, offsets_E1, weight_EDH, bias_EH, _ = (part.cuda() for part in layer)
    few_E1 = torch.tensor([0, 0, 0, 0, 9], dtype=torch.int32).cuda()

    many = ops.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH)
    few = ops.grouped_mm(x_PD[-9:], few_E1, weight_EDH, bias_EH)

    assert torch.equal(few, many[-9:])

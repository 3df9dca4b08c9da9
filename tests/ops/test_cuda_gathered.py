"""gathered_mm on a GPU against the CPU's, with our own product and with PyTorch's."""

import math

import pytest
import torch

from mmoe import ops
from mmoe.ops.product_choice import grouped_product

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():  # one line in the report instead of a thousand
    pytest.skip("no CUDA device", allow_module_level=True)

FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64
# Rows, weights, and the product that bfloat16 takes where it can
KINDS = {
    "fp32": (FP32, FP32, "own"),
    "fp64": (FP64, FP64, "own"),
    "bf16": (BF16, BF16, "own"),
    "bf16-library": (BF16, BF16, "library"),
    "bf16-rows": (BF16, FP32, "own"),
    "bf16-rows-library": (BF16, FP32, "library"),
}
TOLERANCE = {FP32: 1e-5, BF16: 1.5e-2, FP64: 1e-12}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def types(request):
    """Of rows and weights."""
    *types, product = request.param
    with grouped_product(product):
        yield types


def near(found, expected, dtype):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.numel():
        step = TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=step)


def on_gpu(values):
    return [value.cuda() if isinstance(value, torch.Tensor) else value for value in values]


def layer_inputs(case, types, D):
    """What the operator takes, and the gradient that comes back; garbage in its tail."""
    plan = ops.route_plan(case.experts_BGK(), case.E)
    rows, weights = types
    x_BD = case.random(case.B, D, seed=1).to(rows)
    weight_EDH = (case.random(case.E, D, case.O, seed=2) / max(D, 1) ** 0.5).to(weights)
    bias_EH = case.random(case.E, case.O, seed=3).to(weights)
    grad_PH = case.random(len(plan.rows_P), case.O, seed=4).to(rows)
    grad_PH[int(plan.offsets_E1[-1]) :] = math.nan
    return (x_BD, *plan, weight_EDH, bias_EH), grad_PH


def check(arguments, grad_PH, activation, rows):
    """Both directions on both devices, and the same bits a second time."""
    op, backward = torch.ops.mmoe.gathered_mm, torch.ops.mmoe.gathered_mm_backward
    x_BD, rows_P, offsets_E1, _, weight_EDH, _ = arguments

    found = op(*on_gpu(arguments), activation)

    kept = op(*arguments, activation)
    for ours, theirs in zip(found, kept, strict=True):
        near(ours, theirs, rows)
    # Both sides start from the same y and z: a ReLU that rounds to the other side is no error
    back = (grad_PH, x_BD, rows_P, offsets_E1, weight_EDH, *kept, activation, True, True, True)
    found = backward(*on_gpu(back))
    for ours, theirs in zip(found, backward(*back), strict=True):
        near(ours, theirs, rows)
    assert all(map(torch.equal, found, backward(*on_gpu(back))))


# Many parts of the depth, several tiles of columns; weights' gradients of rows in several parts.
@pytest.mark.parametrize(
    ("rows", "experts", "D", "H"), [(70, 3, 300, 200), (45, 2, 517, 130), (2500, 1, 48, 136)]
)
def test_wide_layers_equal_the_cpu(types, rows, experts, D, H):
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(0, experts, (rows, 1, 1), generator=generator, dtype=torch.int32)
    x_BD = torch.randn(rows, D, generator=generator).to(types[0])
    weight_EDH = (torch.randn(experts, D, H, generator=generator) / D**0.5).to(types[1])
    bias_EH = torch.randn(experts, H, generator=generator).to(types[1])
    grad_PH = torch.randn(rows, H, generator=generator).to(types[0])
    plan = ops.route_plan(picks, experts)

    check((x_BD, *plan, weight_EDH, bias_EH), grad_PH, "relu", types[0])


def test_our_own_product_gives_the_bits_of_permuted_rows(case, types):
    with grouped_product("own"):
        arguments, grad_PH = layer_inputs(case, types, 40)
        x_BD, rows_P, offsets_E1, slots_BGK, weight_EDH, bias_EH = on_gpu(arguments)
        plan = ops.RoutePlan(rows_P, offsets_E1, slots_BGK)
        leaves = [leaf.requires_grad_() for leaf in (x_BD, weight_EDH, bias_EH)]

        y_PH = ops.gathered_mm(leaves[0], plan, *leaves[1:], "gelu")
        found = torch.autograd.grad(y_PH, leaves, grad_PH.cuda())

        x_PD = ops.permute(leaves[0], plan)
        expected = ops.grouped_mm(x_PD, offsets_E1, *leaves[1:], "gelu")
        assert torch.equal(y_PH, expected)
        wanted = torch.autograd.grad(expected, leaves, grad_PH.cuda())
        assert all(map(torch.equal, found, wanted))


def test_pairs_of_no_row_read_zeros(types):
    rows_P = torch.tensor([1, -1, 0, -1], dtype=torch.int32)
    slots_BGK = torch.tensor([[[2]], [[0]]], dtype=torch.int32)
    offsets_E1 = torch.tensor([0, 2, 3], dtype=torch.int32)
    rows, weights = types
    x_BD = torch.tensor([[1.0], [2.0]], dtype=rows)
    weight_EDH = torch.tensor([[[1.0]], [[10.0]]], dtype=weights)
    bias_EH = torch.tensor([[5.0], [0.0]], dtype=weights)
    plan = rows_P, offsets_E1, slots_BGK

    check((x_BD, *plan, weight_EDH, bias_EH), torch.ones(4, 1, dtype=rows), "none", rows)


def test_storage_that_is_not_aligned(usual, types):
    """Rows that no copy of 16 bytes fits, and none of the plan's numbers either."""
    arguments, grad_PH = layer_inputs(usual, types, 40)

    def moved(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        storage = tensor.new_empty(tensor.numel() + 1)
        storage[1:] = tensor.flatten()
        return storage[1:].view(tensor.shape)

    found = torch.ops.mmoe.gathered_mm(*map(moved, on_gpu(arguments)), "gelu")

    kept = torch.ops.mmoe.gathered_mm(*arguments, "gelu")
    for ours, theirs in zip(found, kept, strict=True):
        near(ours, theirs, types[0])
    x_BD, rows_P, offsets_E1, _, weight_EDH, _ = arguments
    back = (grad_PH, x_BD, rows_P, offsets_E1, weight_EDH, *kept, "gelu", True, True, True)
    found = torch.ops.mmoe.gathered_mm_backward(*map(moved, on_gpu(back)))
    for ours, theirs in zip(found, torch.ops.mmoe.gathered_mm_backward(*back), strict=True):
        near(ours, theirs, types[0])


@pytest.mark.parametrize("name", ["rows_P", "offsets_E1", "slots_BGK", "weight_EDH", "bias_EH"])
def test_tensors_on_two_devices_are_refused(usual, name):
    arguments, _ = layer_inputs(usual, (FP32, FP32), 24)
    names = ("x_BD", "rows_P", "offsets_E1", "slots_BGK", "weight_EDH", "bias_EH")
    given = [
        value if this == name else value.cuda()
        for this, value in zip(names, arguments, strict=True)
    ]

    with pytest.raises(ValueError, match=f"{name}: expected device cuda:0 as x_BD, got cpu"):
        torch.ops.mmoe.gathered_mm(*given, "none")

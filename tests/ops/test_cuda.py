"""What is special to the CUDA kernels of gate, routing and products; all calls are the smoke's."""

import math
import subprocess
import sys

import pytest
import torch

from mmoe import ops
from mmoe.ops.product_choice import grouped_product
from tests.ops.conftest import LAYER_TYPES
from tests.ops.cuda.calls import OPERATORS, Draw, calls, flat, near, with_tensors
from tests.ops.thin_layers import restrided

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():  # one line in the report instead of a thousand
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.fixture(
    params=[
        (name, product)
        for name in LAYER_TYPES
        for product in ("own", "library")[: 1 + ("bf16" in name)]
    ],
    ids="-".join,
)
def grouped_types(request):
    """Types of rows and weights, once for each product that `grouped_mm` may take."""
    name, product = request.param
    with grouped_product(product):
        yield LAYER_TYPES[name]


def on_gpu(*tensors):
    return [None if tensor is None else tensor.cuda() for tensor in tensors]


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_nan_makes_the_weights_of_its_row_and_gate_nan(after):
    logits_BGE = torch.zeros(2, 2, 20, device="cuda")
    logits_BGE[1, 0, 7] = math.nan

    weights_BGK, experts_BGK = torch.ops.mmoe.topk_gate(
        logits_BGE, torch.ones(2, 20, dtype=torch.bool, device="cuda"), 3, after
    )

    assert weights_BGK.isnan().all(-1).tolist() == [[False, False], [True, False]]
    assert weights_BGK.isnan().any(-1).tolist() == [[False, False], [True, False]]
    assert experts_BGK[1, 0].tolist() == [7, 0, 1]


def layer_inputs(case, dtypes, D):
    """A plan's rows, with garbage in the tail; experts' weights; the gradient that comes back."""
    plan = ops.route_plan(case.experts_BGK(), case.E)
    P, H, pairs = plan.rows_P.numel(), case.O, int(plan.offsets_E1[-1])
    x_PD, grad_PH = case.random(P, D, seed=1), case.random(P, H, seed=4)
    x_PD[pairs:] = grad_PH[pairs:] = math.nan
    weight_EDH = case.random(case.E, D, H, seed=2) / max(D, 1) ** 0.5
    bias_EH = case.random(case.E, H, seed=3)
    rows, weights = dtypes
    return (
        (x_PD.to(rows), plan.offsets_E1, weight_EDH.to(weights), bias_EH.to(weights)),
        grad_PH.to(rows),
        pairs,
    )


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_grouped_mm_reads_no_strides_of_size_1(thin_layer, grouped_types, activation):
    rows, weights = grouped_types
    types = (rows, torch.int32, weights, weights, rows)
    plain = [tensor.to(dtype) for tensor, dtype in zip(thin_layer, types, strict=True)]
    op, backward = torch.ops.mmoe.grouped_mm, torch.ops.mmoe.grouped_mm_backward
    *arguments, grad_PH = [restrided(tensor) for tensor in on_gpu(*plain)]

    y_PH, z_PH = op(*arguments, activation)

    *inputs, grad = plain
    y, z = op(*inputs, activation)
    near([y_PH, z_PH], [y, z], rows)
    needs = (activation, True, True, True)
    actual = backward(grad_PH, *arguments[:3], restrided(y.cuda()), restrided(z.cuda()), *needs)
    near(actual, backward(grad, *inputs[:3], y, z, *needs), rows)


@pytest.mark.parametrize("E", [1, 3])
def test_grouped_mm_of_one_row_cut_from_a_wider_tensor(layer_types, E):
    """It is contiguous, and its stride no multiple of 16 bytes: PyTorch's product refuses that."""
    rows, weights = layer_types
    generator = torch.Generator().manual_seed(E)
    wide_PD, wide_PH = (torch.randn(1, n, generator=generator).to(rows) for n in (19, 27))
    weight_EDH = torch.randn(E, 16, 24, generator=generator).to(weights)
    offsets_E1 = torch.tensor([0, *[1] * E]).int()
    op, backward = torch.ops.mmoe.grouped_mm, torch.ops.mmoe.grouped_mm_backward
    x_PD, grad_PH = wide_PD.cuda()[:, :16], wide_PH.cuda()[:, :24]

    y_PH, _ = op(x_PD, *on_gpu(offsets_E1, weight_EDH), None, "none")

    y, z = op(wide_PD[:, :16], offsets_E1, weight_EDH, None, "none")
    near([y_PH], [y], rows)
    arguments = (offsets_E1, weight_EDH, y, z)
    actual = backward(grad_PH, x_PD, *on_gpu(*arguments), "none", True, True, True)
    expected = backward(wide_PH[:, :24], wide_PD[:, :16], *arguments, "none", True, True, True)
    near(actual, expected, rows)


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_grouped_mm_gives_only_the_gradients_that_are_needed(usual, grouped_types, needs):
    (x_PD, offsets_E1, weight_EDH, _), grad_PH, _ = layer_inputs(usual, grouped_types, 24)
    y_PH = x_PD.new_ones(grad_PH.shape)
    arguments = on_gpu(grad_PH, x_PD, offsets_E1, weight_EDH, y_PH, y_PH.new_empty(0))

    every = torch.ops.mmoe.grouped_mm_backward(*arguments, "relu", True, True, True)
    some = torch.ops.mmoe.grouped_mm_backward(*arguments, "relu", *needs)

    for needed, part, whole in zip(needs, some, every, strict=True):
        assert torch.equal(part, whole) if needed else part.shape == (0,)


# More experts than PyTorch's grouped product takes, so that ours serves whatever is asked for; and
# one expert with enough rows for the larger tiles and for weights' gradients in several parts.
@pytest.mark.parametrize("sizes", [[3, 0] * 600, [2500]], ids=["many-experts", "many-rows"])
def test_grouped_mm_in_extremes(grouped_types, sizes):
    generator = torch.Generator().manual_seed(0)
    rows, weights = grouped_types
    offsets_E1 = torch.tensor([0, *sizes]).cumsum(0).int()
    x_PD = torch.randn(int(offsets_E1[-1]) + 9, 48, generator=generator).to(rows)
    weight_EDH = (torch.randn(len(sizes), 48, 136, generator=generator) / 7).to(weights)
    op, backward = torch.ops.mmoe.grouped_mm, torch.ops.mmoe.grouped_mm_backward
    arguments = (x_PD, offsets_E1, weight_EDH, None)

    y, z = op(*arguments, "gelu")

    near(op(*on_gpu(*arguments), "gelu")[:1], [y], rows)
    arguments = (torch.randn(y.shape, generator=generator).to(rows), *arguments[:3], y, z)
    actual = backward(*on_gpu(*arguments), "gelu", True, True, True)
    expected = backward(*arguments, "gelu", True, True, True)
    near(actual, expected, rows)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing(usual, layer_types, narrow):
    (x_PD, offsets_E1, weight_EDH, bias_EH), _, _ = layer_inputs(usual, layer_types, 24)
    x_PD, offsets_E1, weight_EDH, bias_EH = on_gpu(x_PD, offsets_E1, weight_EDH, bias_EH)

    with torch.autocast("cuda", narrow):
        grouped = ops.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, "relu")
        dense = ops.dense_mm(x_PD[:5], weight_EDH, bias_EH, "relu")

    assert torch.equal(grouped, ops.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, "relu"))
    expected = ops.dense_mm(x_PD[:5], weight_EDH, bias_EH, "relu")
    assert all(torch.equal(a, b) for a, b in zip(dense, expected, strict=True))


@pytest.mark.parametrize(("D", "H"), [(65, 130), (1023, 7), (512, 129)])
def test_a_rows_result_does_not_depend_on_the_other_rows(layer_types, D, H):
    generator = torch.Generator().manual_seed(D)
    rows, weights = layer_types
    weight_EDH = torch.randn(2, D, H, generator=generator).to("cuda", weights)
    x_PD = torch.randn(300, D, generator=generator).to("cuda", rows)

    with grouped_product("own"):  # the library does not promise it
        many = ops.grouped_mm(x_PD, torch.tensor([0, 140, 300]).int().cuda(), weight_EDH)
        few = ops.grouped_mm(x_PD[130:145], torch.tensor([0, 10, 15]).int().cuda(), weight_EDH)

    assert torch.equal(few, many[130:145])


KERNELS = sorted(set(OPERATORS) - {"shared_mm", "dense_mlp", "mixed_towers", "row_softmax"})


@pytest.mark.parametrize("name", KERNELS)
def test_a_tensor_left_on_the_cpu_is_refused(name):
    """The kernel would read the CPU's memory by its address."""
    for operator, arguments in calls(name, Draw(33, 2, 1, 8, 24, 24), torch.float32):
        tensors = flat(arguments)
        for left in [n for n, tensor in enumerate(tensors) if n and tensor.numel()]:
            placed = iter([t if n == left else t.cuda() for n, t in enumerate(tensors)])
            given = with_tensors(arguments, placed)
            with pytest.raises(ValueError, match=r"expected device cuda.*, got cpu"):
                getattr(torch.ops.mmoe, operator)(*given)


# A stopped kernel takes the process's CUDA context with it, so each runs in a process of its own.
@pytest.mark.real_gpu
@pytest.mark.parametrize(
    "call",
    [
        "ops.permute(x, ops.RoutePlan(ints([0, 4]), ints([0, 2]), ints([[[0]]] * 4)))",
        "ops.unpermute(x, ops.RoutePlan(ints([0, 1, 2, 2]), ints([0, 4]), ints([[[0]]] * 2)))",
        "ops.grouped_mm(x, ints([0, 5]), torch.zeros(1, 3, 2, device='cuda'))",
        "ops.grouped_mm(x, ints([1, 4]), torch.zeros(1, 3, 2, device='cuda'))",
    ],
)
def test_an_index_out_of_range_stops_the_kernel(repository, call):
    script = f"""
import torch
from mmoe import ops
ints = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")
x = torch.zeros(4, 3, device="cuda")
try:
    {call}
    torch.cuda.synchronize()
except RuntimeError as error:
    print("stopped:", str(error).splitlines()[0])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=False
    )

    assert "stopped: CUDA error" in result.stdout, result.stdout + result.stderr

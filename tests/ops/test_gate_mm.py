import pytest
import torch

from mmoe.ops import gate_mm, reference
from tests.needs_kernels import needs_kernels

# Rows, their width, outputs.
SIZES = {
    "usual": (37, 16, 24),
    "no rows": (0, 4, 6),
    "one row": (1, 7, 5),
    "one output": (20, 9, 1),
    "odd widths": (61, 33, 67),
    "many blocks": (700, 370, 40),
    "wide": (300, 20, 300),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.fixture(params=SIZES, ids=lambda name: name.replace(" ", "-"))
def sizes(request):
    return SIZES[request.param]


@pytest.fixture(params=DTYPES, ids=["fp32", "bf16", "fp64"])
def dtype(request):
    return request.param


def inputs(sizes, dtype):
    """Rows, weights, bias, and a gradient."""
    B, D, N = sizes
    generator = torch.Generator().manual_seed(D)
    x_BD, weight_DN, bias_N, grad_BN = (
        torch.randn(*shape, generator=generator) for shape in ((B, D), (D, N), (N,), (B, N))
    )
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    return x_BD.to(dtype), weight_DN.to(sums), bias_N.to(sums), grad_BN.to(sums)


def test_reference_is_a_linear_layer():
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["usual"], torch.float64)
    leaves = [t.clone().requires_grad_() for t in (x_BD, weight_DN, bias_N)]
    y_BN = leaves[0] @ leaves[1] + leaves[2]

    torch.testing.assert_close(reference.gate_mm(x_BD, weight_DN, bias_N), y_BN)
    wanted = torch.autograd.grad(y_BN, leaves, grad_BN)
    actual = reference.gate_mm_backward(grad_BN, x_BD, weight_DN, True, True, True)
    torch.testing.assert_close(actual, wanted)


def test_weights_are_not_rounded_beside_bfloat16_rows():
    weight_DN = torch.randn(70, 35)

    assert torch.equal(gate_mm(torch.eye(70).bfloat16(), weight_DN), weight_DN)


def test_weights_of_any_type_are_widened():
    x_BD, weight_DN, bias_N, _ = inputs(SIZES["usual"], torch.bfloat16)

    y_BN = gate_mm(x_BD, weight_DN.bfloat16(), bias_N.bfloat16())

    assert torch.equal(y_BN, gate_mm(x_BD, weight_DN.bfloat16().float(), bias_N.bfloat16().float()))


@needs_kernels
def test_a_rows_result_depends_on_that_row_alone(dtype, sizes):
    x_BD, weight_DN, bias_N, _ = inputs(sizes, dtype)
    y_BN = gate_mm(x_BD, weight_DN, bias_N)
    order = torch.randperm(len(x_BD), generator=torch.Generator().manual_seed(1))

    assert torch.equal(gate_mm(x_BD[order], weight_DN, bias_N), y_BN[order])
    assert torch.equal(gate_mm(x_BD[7:20], weight_DN, bias_N), y_BN[7:20])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x_BD": torch.zeros(3)}, "x_BD: expected 2 dimensions"),
        ({"x_BD": torch.zeros(3, 4).half()}, "x_BD: expected one of torch.float32"),
        ({"weight_DN": torch.zeros(5, 2)}, r"weight_DN: expected shape \[4, 2\] to fit the width"),
        ({"weight_DN": torch.zeros(4, 2).int()}, "weight_DN: expected one of torch.float32"),
        ({"bias_N": torch.zeros(3)}, r"bias_N: expected shape \[2\] to fit weight_DN"),
        ({"bias_N": torch.zeros(2, device="meta")}, "bias_N: expected device cpu"),
    ],
)
def test_refuses_what_does_not_fit(change, text):
    arguments = {"x_BD": torch.zeros(3, 4), "weight_DN": torch.zeros(4, 2)}
    arguments["bias_N"] = torch.zeros(2)

    with pytest.raises(ValueError, match=text):
        gate_mm(**arguments | change)

import pytest
import torch
from torch.library import opcheck

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


def gradients(x_BD, weight_DN, bias_N, grad_BN):
    leaves = [t.clone().requires_grad_() for t in (x_BD, weight_DN, bias_N)]
    return torch.autograd.grad(gate_mm(*leaves), leaves, grad_BN)


def check_near(actual, expected):
    """bfloat16 rows too are multiplied without rounding; only their gradient is rounded."""
    step = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 8e-3}[expected.dtype]
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=step, atol=step * scale)


def test_equals_reference(sizes, dtype):
    *arguments, _ = inputs(sizes, dtype)

    check_near(gate_mm(*arguments), reference.gate_mm(*arguments))
    check_near(gate_mm(*arguments[:2]), reference.gate_mm(*arguments[:2], None))


def test_gradients_equal_reference(sizes, dtype):
    x_BD, weight_DN, bias_N, grad_BN = inputs(sizes, dtype)

    expected = reference.gate_mm_backward(grad_BN, x_BD, weight_DN, True, True, True)

    for actual, wanted in zip(gradients(x_BD, weight_DN, bias_N, grad_BN), expected, strict=True):
        check_near(actual, wanted)


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


def test_gradcheck():
    *leaves, _ = inputs((5, 3, 4), torch.float64)

    assert torch.autograd.gradcheck(gate_mm, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("wanted", range(3))
def test_one_gradient_alone(wanted):
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["odd widths"], torch.bfloat16)
    together = gradients(x_BD, weight_DN, bias_N, grad_BN)
    leaves = [x_BD, weight_DN, bias_N]
    leaves[wanted].requires_grad_()

    gate_mm(*leaves).backward(grad_BN)

    assert torch.equal(leaves[wanted].grad, together[wanted])


@needs_kernels
def test_same_bits_with_any_number_of_threads_and_any_layout(dtype, threads):
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["many blocks"], dtype)
    threads(1)
    first = gradients(x_BD, weight_DN, bias_N, grad_BN)

    for count in (1, 2, 3, 7):
        threads(count)
        actual = gradients(x_BD.mT.contiguous().mT, weight_DN.mT.contiguous().mT, bias_N, grad_BN)
        assert all(map(torch.equal, actual, first))


@needs_kernels
def test_a_rows_result_depends_on_that_row_alone(dtype, sizes):
    x_BD, weight_DN, bias_N, _ = inputs(sizes, dtype)
    y_BN = gate_mm(x_BD, weight_DN, bias_N)
    order = torch.randperm(len(x_BD), generator=torch.Generator().manual_seed(1))

    assert torch.equal(gate_mm(x_BD[order], weight_DN, bias_N), y_BN[order])
    assert torch.equal(gate_mm(x_BD[7:20], weight_DN, bias_N), y_BN[7:20])


def test_opcheck(dtype):
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["usual"], dtype)
    opcheck(torch.ops.mmoe.gate_mm_backward.default, (grad_BN, x_BD, weight_DN, True, False, True))

    leaves = [t.requires_grad_() for t in (x_BD, weight_DN, bias_N)]
    opcheck(torch.ops.mmoe.gate_mm.default, tuple(leaves))


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


@needs_kernels
def test_the_operator_itself_refuses_too():
    x_BD, weight_DN, bias_N, grad_BN = inputs(SIZES["usual"], torch.bfloat16)

    for arguments, text in (
        ((x_BD[0], weight_DN, bias_N), "x_BD: expected 2 dimensions"),
        ((x_BD, weight_DN[1:], bias_N), "weight_DN: expected size 16 in dimension 0"),
        ((x_BD, weight_DN.bfloat16(), bias_N), "weight_DN: expected dtype"),
        ((x_BD, weight_DN, bias_N[1:]), "bias_N: expected size 24 in dimension 0"),
    ):
        with pytest.raises(ValueError, match=text):
            torch.ops.mmoe.gate_mm(*arguments)
    with pytest.raises(ValueError, match="grad_BN: expected size 37 in dimension 0"):
        torch.ops.mmoe.gate_mm_backward(grad_BN[1:], x_BD, weight_DN, True, True, True)

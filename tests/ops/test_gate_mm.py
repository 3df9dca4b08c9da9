import pytest
import torch

from mmoe.ops import gate_mm, reference


def inputs(dtype):
    """Rows, weights, bias, and a gradient."""
    generator = torch.Generator().manual_seed(16)
    x_BD, weight_DN, bias_N, grad_BN = (
        torch.randn(*shape, generator=generator) for shape in ((37, 16), (16, 24), (24,), (37, 24))
    )
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    return x_BD.to(dtype), weight_DN.to(sums), bias_N.to(sums), grad_BN.to(sums)


def test_reference_is_a_linear_layer():
    x_BD, weight_DN, bias_N, grad_BN = inputs(torch.float64)
    leaves = [t.clone().requires_grad_() for t in (x_BD, weight_DN, bias_N)]
    y_BN = leaves[0] @ leaves[1] + leaves[2]

    torch.testing.assert_close(reference.gate_mm(x_BD, weight_DN, bias_N), y_BN)
    wanted = torch.autograd.grad(y_BN, leaves, grad_BN)
    actual = reference.gate_mm_backward(grad_BN, x_BD, weight_DN, True, True, True)
    torch.testing.assert_close(actual, wanted)


def test_weights_are_widened_and_not_rounded_beside_bfloat16_rows():
    weight_DN = torch.randn(70, 35)
    assert torch.equal(gate_mm(torch.eye(70).bfloat16(), weight_DN), weight_DN)

    x_BD, weight_DN, bias_N, _ = inputs(torch.bfloat16)
    y_BN = gate_mm(x_BD, weight_DN.bfloat16(), bias_N.bfloat16())
    assert torch.equal(y_BN, gate_mm(x_BD, weight_DN.bfloat16().float(), bias_N.bfloat16().float()))


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
    given = {"x_BD": torch.zeros(3, 4), "weight_DN": torch.zeros(4, 2), "bias_N": torch.zeros(2)}
    with pytest.raises(ValueError, match=text):
        gate_mm(**given | change)

import pytest
import torch

from mmoe.ops import grouped_mm, reference
from tests.needs_kernels import needs_kernels
from tests.ops.conftest import LAYER_TYPES
from tests.ops.thin_layers import restrided

FP32, FP64 = LAYER_TYPES["fp32"], LAYER_TYPES["fp64"]
# Rows of each expert, rows past the last offset, input and output width
USUAL = ([5, 9, 2, 7], 3, 16, 24)
UNEVEN = ([21, 224, 1, 81, 0, 11, 46, 0], 17, 100, 67)


def inputs(layer, types, tail=float("nan")):
    """Rows (the tail is garbage), offsets, weights, biases and a gradient."""
    sizes, rest, D, H = layer
    generator = torch.Generator().manual_seed(len(sizes) + D)
    offsets_E1 = torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)
    x_PD = torch.randn(sum(sizes) + rest, D, generator=generator)
    grad_PH = torch.randn(sum(sizes) + rest, H, generator=generator)
    x_PD[sum(sizes) :] = grad_PH[sum(sizes) :] = tail
    weight_EDH = torch.randn(len(sizes), D, H, generator=generator) / D**0.5
    bias_EH = torch.randn(len(sizes), H, generator=generator)
    rows, weights = types
    layer = weight_EDH.to(weights), bias_EH.to(weights)
    return x_PD.to(rows), offsets_E1, *layer, grad_PH.to(rows)


def test_reference_is_a_loop_of_linear_layers():
    x_PD, offsets_E1, weight_EDH, bias_EH, grad_PH = inputs(USUAL, FP64, tail=0.0)
    leaves = [t.clone().requires_grad_() for t in (x_PD, weight_EDH, bias_EH)]
    parts = leaves[0].tensor_split(offsets_E1[1:].long())
    y = [
        torch.nn.functional.gelu(torch.nn.functional.linear(part, weight.t(), bias))
        for part, weight, bias in zip(parts[:-1], leaves[1], leaves[2], strict=True)
    ]
    y_PH, z_PH = reference.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, "gelu")
    torch.testing.assert_close(y_PH, torch.cat([*y, torch.zeros(3, 24, dtype=torch.float64)]))

    expected = torch.autograd.grad(torch.cat(y), leaves, grad_PH[: offsets_E1[-1]])

    actual = reference.grouped_mm_backward(
        grad_PH, x_PD, offsets_E1, weight_EDH, y_PH, z_PH, "gelu", True, True, True
    )
    for gradient, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_no_bias():
    x_PD, offsets_E1, weight_EDH, _, _ = inputs(UNEVEN, FP32)

    y_PH = grouped_mm(x_PD, offsets_E1, weight_EDH)

    expected, _ = reference.grouped_mm(x_PD, offsets_E1, weight_EDH, None, "none")
    torch.testing.assert_close(y_PH, expected, rtol=5e-5, atol=5e-5)


def both_ways(tensors, activation):
    """What the operator and its gradient give."""
    x_PD, offsets_E1, weight_EDH, bias_EH, grad_PH = tensors
    y_PH, z_PH = torch.ops.mmoe.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, activation)
    back = torch.ops.mmoe.grouped_mm_backward(
        grad_PH, x_PD, offsets_E1, weight_EDH, y_PH, z_PH, activation, True, True, True
    )
    return [y_PH, z_PH, *back]


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_strides_of_dimensions_of_size_1_are_not_read(thin_layer, layer_types, activation):
    rows, weights = layer_types
    types = (rows, torch.int32, weights, weights, rows)
    plain = [tensor.to(dtype) for tensor, dtype in zip(thin_layer, types, strict=True)]

    found = both_ways([restrided(tensor) for tensor in plain], activation)

    assert all(map(torch.equal, found, both_ways(plain, activation)))


@needs_kernels
def test_a_rows_result_depends_on_that_row_alone(layer_types):
    x_PD, _, weight_EDH, bias_EH, _ = inputs(([500], 0, 100, 67), layer_types)
    all_rows = torch.tensor([0, 500], dtype=torch.int32)
    together = grouped_mm(x_PD, all_rows, weight_EDH, bias_EH, "silu")
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))

    shuffled = grouped_mm(x_PD[order], all_rows, weight_EDH, bias_EH, "silu")
    few = grouped_mm(x_PD[7:20], all_rows.clamp(max=13), weight_EDH, bias_EH, "silu")

    assert torch.equal(shuffled, together[order])
    assert torch.equal(few, together[7:20])


def changed(**changes):
    names = "x_PD", "offsets_E1", "weight_EDH", "bias_EH"
    given = dict(zip(names, inputs(USUAL, FP32), strict=False), activation="relu")
    return {name: changes.get(name, lambda t: t)(value) for name, value in given.items()}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x_PD": lambda t: t[0]}, "x_PD: expected 2 dimensions"),
        ({"x_PD": lambda t: t.half()}, "x_PD: expected one of"),
        ({"x_PD": lambda t: t[:, 1:]}, r"weight_EDH: expected shape \[4, 15, 24\] to fit"),
        ({"weight_EDH": lambda t: t[0]}, "weight_EDH: expected 3 dimensions"),
        ({"weight_EDH": lambda t: t.double()}, "weight_EDH: expected dtype torch.float32 beside"),
        ({"weight_EDH": lambda t: t[:0]}, "weight_EDH: expected at least one expert"),
        ({"weight_EDH": lambda t: t.to("meta")}, "weight_EDH: expected device cpu"),
        ({"bias_EH": lambda t: t[:3]}, r"bias_EH: expected shape \[4, 24\] to fit weight_EDH"),
        ({"bias_EH": lambda t: t.double()}, "bias_EH: expected dtype torch.float32 as weight_EDH"),
        ({"offsets_E1": lambda t: t.long()}, "offsets_E1: expected dtype torch.int32"),
        ({"offsets_E1": lambda t: t[1:]}, r"offsets_E1: expected shape \[5\]"),
        ({"offsets_E1": lambda t: t.unsqueeze(0)}, r"offsets_E1: expected 1 dimension \[E \+ 1\]"),
        ({"activation": lambda _: "tanh"}, "activation: expected one of none, relu, gelu, silu"),
    ],
)
def test_refuses_what_does_not_fit(changes, text):
    with pytest.raises(ValueError, match=text):
        grouped_mm(**changed(**changes))


@needs_kernels
@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([1, 5, 14, 16, 23], "offsets_E1: expected the first offset to be 0, got 1"),
        ([0, 5, 4, 16, 23], "offsets_E1: expected offsets that rise up to at most 26 rows, got 5"),
        ([0, 5, 14, 16, 27], "at most 26 rows, got 16 and then 27 for expert 3"),
        ([0, -(2**31), 14, 16, 23], "at most 26 rows"),
    ],
)
def test_refuses_offsets_that_leave_the_rows(offsets, text):
    arguments = changed(offsets_E1=lambda _: torch.tensor(offsets, dtype=torch.int32))

    with pytest.raises(ValueError, match=text):
        grouped_mm(**arguments)

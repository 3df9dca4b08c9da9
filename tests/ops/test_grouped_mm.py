import pytest
import torch

from mmoe.ops import grouped_mm, reference
from tests.needs_kernels import needs_kernels
from tests.ops.thin_layers import restrided

# Rows of each expert, rows past the last offset, input and output width. The variable and empty
# sizes are those of grouped_gemm's ops_test (tgale96/grouped_gemm), scaled down; widths 100 and 67
# are no multiple of a register, as in ScatterMoE's tests (shawntan/scattermoe).
LAYERS = {
    "usual": ([5, 9, 2, 7], 3, 16, 24),
    "empty experts": ([0, 4, 0, 0, 11, 0], 0, 8, 8),
    "all rows on one expert": ([0, 0, 41], 0, 12, 20),
    "no rows": ([0, 0], 0, 4, 6),
    "only a tail": ([0, 0], 5, 4, 6),
    "one row": ([1], 0, 7, 5),
    "uneven": ([21, 224, 1, 81, 0, 11, 46, 0], 17, 100, 67),
    "width 1": ([6, 3], 1, 1, 1),
    "many blocks": ([700, 13], 0, 70, 300),
    "deep": ([30, 2], 0, 1500, 33),
    "odd depth": ([13, 25], 0, 33, 48),
}
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "bf16 rows": (torch.bfloat16, torch.float32),
    "fp64": (torch.float64, torch.float64),
}


@pytest.fixture(params=DTYPES, ids=lambda name: name.replace(" ", "-"))
def dtypes(request):
    return DTYPES[request.param]


def inputs(layer, dtypes, tail=float("nan")):
    """Rows (the tail is garbage), offsets, weights, biases and a gradient."""
    sizes, rest, D, H = layer
    generator = torch.Generator().manual_seed(len(sizes) + D)
    rows_dtype, weight_dtype = dtypes
    offsets_E1 = torch.tensor([0, *sizes]).cumsum(0).to(torch.int32)
    x_PD = torch.randn(sum(sizes) + rest, D, generator=generator)
    grad_PH = torch.randn(sum(sizes) + rest, H, generator=generator)
    x_PD[sum(sizes) :] = grad_PH[sum(sizes) :] = tail
    weight_EDH = torch.randn(len(sizes), D, H, generator=generator) / D**0.5
    bias_EH = torch.randn(len(sizes), H, generator=generator)
    return (
        x_PD.to(rows_dtype),
        offsets_E1,
        weight_EDH.to(weight_dtype),
        bias_EH.to(weight_dtype),
        grad_PH.to(rows_dtype),
    )


@pytest.fixture
def near():
    # Sums of up to 1,500 products, in another order than the reference's; bfloat16 results differ
    # by a place, and a weight gradient adds up to 700 of them.
    tolerance = {torch.float32: 5e-5, torch.bfloat16: 2e-2, torch.float64: 1e-11}

    def check(actual, expected, dtype):
        assert torch.isfinite(actual).all()
        assert actual.dtype == expected.dtype
        step = tolerance[dtype]
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(actual, expected, rtol=step, atol=step * scale)

    return check


def test_reference_is_a_loop_of_linear_layers():
    x_PD, offsets_E1, weight_EDH, bias_EH, grad_PH = inputs(
        LAYERS["usual"], DTYPES["fp64"], tail=0.0
    )
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


def test_no_bias(near):
    x_PD, offsets_E1, weight_EDH, _, _ = inputs(LAYERS["uneven"], DTYPES["fp32"])

    y_PH = grouped_mm(x_PD, offsets_E1, weight_EDH)

    near(y_PH, reference.grouped_mm(x_PD, offsets_E1, weight_EDH, None, "none")[0], torch.float32)


def both_ways(tensors, activation):
    """What the operator and its gradient give."""
    x_PD, offsets_E1, weight_EDH, bias_EH, grad_PH = tensors
    y_PH, z_PH = torch.ops.mmoe.grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, activation)
    back = torch.ops.mmoe.grouped_mm_backward(
        grad_PH, x_PD, offsets_E1, weight_EDH, y_PH, z_PH, activation, True, True, True
    )
    return [y_PH, z_PH, *back]


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_strides_of_dimensions_of_size_1_are_not_read(thin_layer, dtypes, activation):
    rows, weights = dtypes
    types = (rows, torch.int32, weights, weights, rows)
    plain = [tensor.to(dtype) for tensor, dtype in zip(thin_layer, types, strict=True)]

    found = both_ways([restrided(tensor) for tensor in plain], activation)

    assert all(map(torch.equal, found, both_ways(plain, activation)))


def test_a_weight_made_by_transposing_is_read_right(near):
    weight_EH1 = torch.randn(3, 24, 1, generator=torch.Generator().manual_seed(0))
    weight_E1H = weight_EH1.transpose(1, 2)
    assert weight_E1H.is_contiguous()
    assert weight_E1H.stride() == (24, 1, 1)
    x_P1, offsets_E1 = torch.arange(5.0).view(5, 1), torch.tensor([0, 2, 3, 5], dtype=torch.int32)

    y_PH = grouped_mm(x_P1, offsets_E1, weight_E1H)

    experts = torch.tensor([0, 0, 1, 2, 2])
    near(y_PH, x_P1 * weight_EH1[experts, :, 0], torch.float32)


@needs_kernels
def test_a_rows_result_depends_on_that_row_alone(dtypes):
    x_PD, _, weight_EDH, bias_EH, _ = inputs(([500], 0, 100, 67), dtypes)
    all_rows = torch.tensor([0, 500], dtype=torch.int32)
    together = grouped_mm(x_PD, all_rows, weight_EDH, bias_EH, "silu")
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))

    shuffled = grouped_mm(x_PD[order], all_rows, weight_EDH, bias_EH, "silu")
    few = grouped_mm(x_PD[7:20], all_rows.clamp(max=13), weight_EDH, bias_EH, "silu")

    assert torch.equal(shuffled, together[order])
    assert torch.equal(few, together[7:20])


def changed(**changes):
    x_PD, offsets_E1, weight_EDH, bias_EH, _ = inputs(LAYERS["usual"], DTYPES["fp32"])
    arguments = dict(
        x_PD=x_PD, offsets_E1=offsets_E1, weight_EDH=weight_EDH, bias_EH=bias_EH, activation="relu"
    )
    return {name: changes.get(name, lambda t: t)(value) for name, value in arguments.items()}


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

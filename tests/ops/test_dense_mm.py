import pytest
import torch
from torch.library import opcheck

from mmoe.ops import dense_mm, grouped_mm, reference
from tests.needs_kernels import needs_kernels

# Experts, rows, input and output width.
LAYERS = {
    "usual": (5, 37, 16, 24),
    "one expert": (1, 20, 8, 8),
    "no rows": (3, 0, 4, 6),
    "one row": (4, 1, 7, 5),
    "odd widths": (3, 61, 33, 67),
    "width 1": (2, 9, 1, 1),
    "many blocks": (2, 700, 70, 300),
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


@pytest.fixture(params=[True, False], ids=["shared", "own-rows"])
def shared(request):
    return request.param


def inputs(layer, dtypes, shared):
    """Rows of all experts or one for all, weights, biases, and a gradient for each output."""
    E, B, D, H = layer
    generator = torch.Generator().manual_seed(E + D)
    rows_dtype, weight_dtype = dtypes
    x = [torch.randn(B, D, generator=generator).to(rows_dtype) for _ in range(1 if shared else E)]
    weight_EDH = (torch.randn(E, D, H, generator=generator) / D**0.5).to(weight_dtype)
    bias_EH = torch.randn(E, H, generator=generator).to(weight_dtype)
    grad = [torch.randn(B, H, generator=generator).to(rows_dtype) for _ in range(E)]
    return x, weight_EDH, bias_EH, grad


def gradients(x, weight_EDH, bias_EH, activation, grad):
    leaves = [t.clone().requires_grad_() for t in (*x, weight_EDH, bias_EH)]
    y = dense_mm(leaves[:-2], leaves[-2], leaves[-1], activation)
    return torch.autograd.grad(y, leaves, grad)


def test_reference_is_a_loop_of_linear_layers():
    x, weight_EDH, bias_EH, grad = inputs(LAYERS["usual"], DTYPES["fp64"], shared=True)
    leaves = [t.clone().requires_grad_() for t in (*x, weight_EDH, bias_EH)]
    expected = [
        torch.nn.functional.silu(leaves[0] @ weight + bias)
        for weight, bias in zip(leaves[1], leaves[2], strict=True)
    ]

    y, z = reference.dense_mm(x, weight_EDH, bias_EH, "silu")

    torch.testing.assert_close(y, expected)
    grad_x, *others = reference.dense_mm_backward(
        grad, x, weight_EDH, y, z, "silu", True, True, True
    )
    wanted = torch.autograd.grad(expected, leaves, grad)
    torch.testing.assert_close([*grad_x, *others], list(wanted))


def test_an_output_that_nobody_uses():
    x, weight_EDH, bias_EH, grad = inputs(LAYERS["usual"], DTYPES["fp32"], shared=True)
    weight_EDH.requires_grad_()

    dense_mm(x, weight_EDH, bias_EH, "relu")[1].backward(grad[1])

    assert (weight_EDH.grad[1] != 0).any()
    assert (weight_EDH.grad[[0, 2, 3, 4]] == 0).all()


@needs_kernels
def test_a_rows_result_depends_on_that_row_alone(dtypes):
    x, weight_EDH, bias_EH, _ = inputs(LAYERS["many blocks"], dtypes, shared=True)
    together = torch.stack(dense_mm(x, weight_EDH, bias_EH, "silu"))
    order = torch.randperm(700, generator=torch.Generator().manual_seed(1))

    shuffled = torch.stack(dense_mm(x[0][order], weight_EDH, bias_EH, "silu"))
    few = torch.stack(dense_mm(x[0][7:20], weight_EDH, bias_EH, "silu"))

    assert torch.equal(shuffled, together[:, order])
    assert torch.equal(few, together[:, 7:20])


@needs_kernels
def test_a_row_is_the_same_dense_and_grouped(dtypes):
    x, weight_EDH, bias_EH, _ = inputs(LAYERS["odd widths"], dtypes, shared=False)
    offsets_E1 = torch.tensor([0, 61, 122, 183], dtype=torch.int32)

    grouped = grouped_mm(torch.cat(x), offsets_E1, weight_EDH, bias_EH, "gelu")

    assert torch.equal(grouped, torch.cat(dense_mm(x, weight_EDH, bias_EH, "gelu")))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("name", LAYERS)
def test_one_tensor_of_all_experts_rows_has_the_bits_of_a_list(name, dtypes, activation):
    x, weight_EDH, bias_EH, grad = inputs(LAYERS[name], dtypes, shared=False)
    x_BED = torch.stack(x, dim=1)
    for x_EBD in (torch.stack(x), x_BED.transpose(0, 1)):
        leaves = [t.clone().requires_grad_() for t in (x_EBD, weight_EDH, bias_EH)]

        y = dense_mm(*leaves, activation)

        assert all(map(torch.equal, y, dense_mm(x, weight_EDH, bias_EH, activation)))
        grad_x_EBD, *others = torch.autograd.grad(y, leaves, grad)
        *grad_x, grad_weight, grad_bias = gradients(x, weight_EDH, bias_EH, activation, grad)
        assert torch.equal(grad_x_EBD, torch.stack(grad_x))
        assert torch.equal(others[0], grad_weight)
        assert torch.equal(others[1], grad_bias)
        expected, _ = reference.dense_mm([x_EBD], weight_EDH, bias_EH, activation)
        assert [part.shape for part in y] == [part.shape for part in expected]


def test_gradcheck_and_opcheck_of_one_tensor_of_all_experts_rows():
    x, weight_EDH, bias_EH, _ = inputs((3, 4, 3, 2), DTYPES["fp64"], shared=False)
    leaves = [t.requires_grad_() for t in (torch.stack(x), weight_EDH, bias_EH)]

    assert torch.autograd.gradcheck(lambda *of: tuple(dense_mm(*of, "relu")), leaves)
    opcheck(torch.ops.mmoe.dense_mm.default, (leaves[:1], leaves[1], leaves[2], "relu"))
    x_EBD, weight_EDH, bias_EH = (leaf.detach() for leaf in leaves)
    y, z = torch.ops.mmoe.dense_mm([x_EBD], weight_EDH, bias_EH, "silu")
    arguments = (y, [x_EBD], weight_EDH, y, z, "silu", True, True, True)
    opcheck(torch.ops.mmoe.dense_mm_backward.default, arguments)
    expected = reference.dense_mm_backward(*arguments)
    torch.testing.assert_close(torch.ops.mmoe.dense_mm_backward(*arguments), expected)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: a | {"x": a["x"][:2]}, "x: expected one tensor or 5, one per expert, got 2"),
        (lambda a: a | {"x": []}, "x: expected one tensor or 5, one per expert, got 0"),
        (lambda a: a | {"x": a["x"][0][0]}, r"x\[0\]: expected 2 dimensions"),
        (lambda a: a | {"x": a["x"][0].half()}, r"x\[0\]: expected one of"),
        (
            lambda a: a | {"x": [*a["x"][:4], a["x"][4][1:]]},
            r"x\[4\]: expected shape \[37, 16\] to fit x\[0\]",
        ),
        (
            lambda a: a | {"x": [*a["x"][:4], a["x"][4].double()]},
            r"x\[4\]: expected dtype torch.float32 as x\[0\]",
        ),
        (lambda a: a | {"weight_EDH": a["weight_EDH"][:, 1:]}, "weight_EDH: expected shape"),
        (lambda a: a | {"bias_EH": a["bias_EH"][1:]}, "bias_EH: expected shape"),
        (lambda a: a | {"activation": "Relu"}, "activation: expected one of none, relu"),
    ],
)
def test_refuses_what_does_not_fit(change, text):
    x, weight_EDH, bias_EH, _ = inputs(LAYERS["usual"], DTYPES["fp32"], shared=False)
    arguments = {"x": x, "weight_EDH": weight_EDH, "bias_EH": bias_EH, "activation": "relu"}

    with pytest.raises(ValueError, match=text):
        dense_mm(**change(arguments))

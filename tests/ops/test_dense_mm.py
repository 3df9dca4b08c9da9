import pytest
import torch
from torch.library import opcheck

from mmoe.ops import dense_mm, grouped_mm, reference
from tests.needs_kernels import needs_kernels

# Experts, rows, input and output width
LAYERS = {
    "usual": (5, 37, 16, 24),
    "no rows": (3, 0, 4, 6),
    "one row": (4, 1, 7, 5),
    "odd widths": (3, 61, 33, 67),
    "width 1": (2, 9, 1, 1),
    "many blocks": (2, 700, 70, 300),
}


def inputs(layer, types=(torch.float32, torch.float32), *, shared):
    """Rows of all experts or one for all, weights, biases, and a gradient for each output."""
    E, B, D, H = layer
    generator = torch.Generator().manual_seed(E + D)
    rows, weights = types
    x = [torch.randn(B, D, generator=generator).to(rows) for _ in range(1 if shared else E)]
    weight_EDH = (torch.randn(E, D, H, generator=generator) / D**0.5).to(weights)
    bias_EH = torch.randn(E, H, generator=generator).to(weights)
    grad = [torch.randn(B, H, generator=generator).to(rows) for _ in range(E)]
    return x, weight_EDH, bias_EH, grad


def test_reference_is_a_loop_of_linear_layers():
    types = torch.float64, torch.float64
    x, weight_EDH, bias_EH, grad = inputs(LAYERS["usual"], types, shared=True)
    leaves = [t.clone().requires_grad_() for t in (*x, weight_EDH, bias_EH)]
    expected = [
        torch.nn.functional.silu(leaves[0] @ weight + bias)
        for weight, bias in zip(leaves[1], leaves[2], strict=True)
    ]

    y, z = reference.dense_mm(x, weight_EDH, bias_EH, "silu")

    torch.testing.assert_close(y, expected)
    needs = "silu", True, True, True
    grad_x, *others = reference.dense_mm_backward(grad, x, weight_EDH, y, z, *needs)
    wanted = torch.autograd.grad(expected, leaves, grad)
    torch.testing.assert_close([*grad_x, *others], list(wanted))


def test_an_output_that_nobody_uses():
    x, weight_EDH, bias_EH, grad = inputs(LAYERS["usual"], shared=True)
    weight_EDH.requires_grad_()

    dense_mm(x, weight_EDH, bias_EH, "relu")[1].backward(grad[1])

    assert (weight_EDH.grad[1] != 0).any()
    assert (weight_EDH.grad[[0, 2, 3, 4]] == 0).all()


@needs_kernels
def test_a_row_is_the_same_dense_and_grouped(layer_types):
    x, weight_EDH, bias_EH, _ = inputs(LAYERS["odd widths"], layer_types, shared=False)
    offsets_E1 = torch.tensor([0, 61, 122, 183], dtype=torch.int32)

    grouped = grouped_mm(torch.cat(x), offsets_E1, weight_EDH, bias_EH, "gelu")

    assert torch.equal(grouped, torch.cat(dense_mm(x, weight_EDH, bias_EH, "gelu")))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("name", LAYERS)
def test_one_tensor_of_all_experts_rows_has_the_bits_of_a_list(name, layer_types, activation):
    x, weight_EDH, bias_EH, grad = inputs(LAYERS[name], layer_types, shared=False)
    x_BED = torch.stack(x, dim=1)
    leaves = [t.clone().requires_grad_() for t in (*x, weight_EDH, bias_EH)]
    expected = dense_mm(leaves[:-2], *leaves[-2:], activation)
    *grad_x, grad_weight, grad_bias = torch.autograd.grad(expected, leaves, grad)
    for x_EBD in (torch.stack(x), x_BED.transpose(0, 1)):
        leaves = [t.clone().requires_grad_() for t in (x_EBD, weight_EDH, bias_EH)]

        y = dense_mm(*leaves, activation)

        assert all(map(torch.equal, y, expected))
        found = torch.autograd.grad(y, leaves, grad)
        assert all(map(torch.equal, found, (torch.stack(grad_x), grad_weight, grad_bias)))
        of_reference, _ = reference.dense_mm([x_EBD], weight_EDH, bias_EH, activation)
        assert [part.shape for part in y] == [part.shape for part in of_reference]


def test_gradcheck_and_opcheck_of_one_tensor_of_all_experts_rows():
    types = torch.float64, torch.float64
    x, weight_EDH, bias_EH, _ = inputs((3, 4, 3, 2), types, shared=False)
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
    ("name", "change", "text"),
    [
        ("x", lambda x: x[:2], "x: expected one tensor or 5, one per expert, got 2"),
        ("x", lambda x: [], "x: expected one tensor or 5, one per expert, got 0"),
        ("x", lambda x: x[0][0], r"x\[0\]: expected 2 dimensions"),
        ("x", lambda x: x[0].half(), r"x\[0\]: expected one of"),
        ("x", lambda x: [*x[:4], x[4][1:]], r"x\[4\]: expected shape \[37, 16\] to fit x\[0\]"),
        ("x", lambda x: [*x[:4], x[4].double()], r"x\[4\]: expected dtype torch.float32 as x\[0"),
        ("weight_EDH", lambda w: w[:, 1:], "weight_EDH: expected shape"),
        ("bias_EH", lambda b: b[1:], "bias_EH: expected shape"),
        ("activation", lambda _: "Relu", "activation: expected one of none, relu"),
    ],
)
def test_refuses_what_does_not_fit(name, change, text):
    x, weight_EDH, bias_EH, _ = inputs(LAYERS["usual"], shared=False)
    given = {"x": x, "weight_EDH": weight_EDH, "bias_EH": bias_EH, "activation": "relu"}

    with pytest.raises(ValueError, match=text):
        dense_mm(**given | {name: change(given[name])})

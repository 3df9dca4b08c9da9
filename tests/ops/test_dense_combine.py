import pytest
import torch

from mmoe.ops import dense_combine, reference
from tests.ops.conftest import Case, distinct


def inputs(case, dtype):
    y_EBO = case.random(case.E, case.B, case.O, seed=1).to(dtype)
    weights_BGE = case.random(case.B, case.G, case.E, seed=2)
    return y_EBO, weights_BGE.to(torch.float64 if dtype == torch.float64 else torch.float32)


def sliced(y_EBO):
    """Each expert a slice of one wide product, [B, E * O]."""
    E, B, O = y_EBO.shape  # noqa: E741
    return list(y_EBO.transpose(0, 1).reshape(B, E * O).split(O, dim=1)) if O else list(y_EBO)


def transposed(y_EBO):
    """Stacked the other way round, [B, E, O]."""
    return y_EBO.transpose(0, 1).contiguous().transpose(0, 1)


def columns(y_EBO):
    """The numbers of a row lie apart."""
    return [part.t().contiguous().t() for part in y_EBO]


LAYOUTS = [sliced, transposed, columns]


def test_reference_is_the_formula(usual):
    y_EBO, weights_BGE = inputs(usual, torch.float64)

    out_BGO = reference.dense_combine(list(y_EBO), weights_BGE)

    for b in range(usual.B):
        for g in range(usual.G):
            mixed = sum(weights_BGE[b, g, e] * y_EBO[e, b] for e in range(usual.E))
            torch.testing.assert_close(out_BGO[b, g], torch.as_tensor(mixed))


def test_narrow_weights_are_widened(usual, close):
    y_EBO, weights_BGE = inputs(usual, torch.bfloat16)
    narrow_BGE = weights_BGE.bfloat16().requires_grad_()

    out_BGO = dense_combine(y_EBO, narrow_BGE)
    out_BGO.float().sum().backward()

    assert out_BGO.dtype == torch.bfloat16
    assert narrow_BGE.grad is not None
    assert narrow_BGE.grad.dtype == torch.bfloat16
    close(out_BGO, reference.dense_combine([y_EBO], narrow_BGE.detach().float()))


def test_a_gates_rows_lie_side_by_side(case, dtype):
    y_EBO, weights_BGE = inputs(case, dtype)

    out_BGO = dense_combine(y_EBO, weights_BGE)

    assert out_BGO.transpose(0, 1).is_contiguous()


def test_gradients_may_lie_as_they_like(case, dtype):
    """As towers leave them, as `stack` does, or with the numbers of a row apart."""
    y_EBO, weights_BGE = inputs(case, dtype)
    grad_BGO = case.random(case.B, case.G, case.O, seed=3).to(dtype)
    expected = torch.ops.mmoe.dense_combine_backward(grad_BGO, [y_EBO], weights_BGE)

    for order in ((1, 0, 2), (2, 0, 1), (0, 2, 1)):
        back = [order.index(dim) for dim in range(3)]
        lying = grad_BGO.permute(order).contiguous().permute(back)
        actual = torch.ops.mmoe.dense_combine_backward(lying, [y_EBO], weights_BGE)
        assert torch.equal(actual[0][0], expected[0][0])
        assert torch.equal(actual[1], expected[1])


ROWS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        ([], (2, 1, 1), r"y: expected at least one expert, got none"),
        (torch.zeros(0, 2, 3), (2, 1, 0), r"y: expected at least one expert, got none"),
        (ROWS, (2, 1, 1), r"y: expected 3 dimensions \[E, B, O\]"),
        ([ROWS[None]] * 2, (2, 1, 2), r"y\[0\]: expected 2 dimensions \[B, O\]"),
        ([ROWS.int()], (2, 1, 1), r"y\[0\]: expected one of torch.float32"),
        (
            [ROWS, ROWS[:, 1:]],
            (2, 1, 2),
            r"y\[1\]: expected shape \[2, 3\] to fit y\[0\], got \[2, 2",
        ),
        ([ROWS, ROWS.double()], (2, 1, 2), r"y\[1\]: expected dtype torch.float32 as y\[0\], got"),
        ([ROWS, ROWS.to("meta")], (2, 1, 2), r"y\[1\]: expected device cpu as y\[0\], got meta"),
        (
            torch.zeros(2, 4, 3),
            (4, 2, 3),
            r"weights_BGE: expected shape \[4, 2, 2\] to fit y .*, got",
        ),
        (torch.zeros(2, 4, 3), (4, 2), r"weights_BGE: expected 3 dimensions"),
    ],
)
def test_says_what_is_wrong(y, weights, message):
    with pytest.raises(ValueError, match=message):
        dense_combine(y, torch.zeros(weights))


@pytest.mark.parametrize("operators", [torch.ops.mmoe, reference], ids=["kernel", "reference"])
def test_no_experts_are_refused_not_read(operators):
    y, weights_BGE, grad_BGO = [torch.empty(0, 4, 8)], torch.empty(4, 2, 0), torch.ones(4, 2, 8)

    for call in (
        lambda: operators.dense_combine(y, weights_BGE),
        lambda: operators.dense_combine_backward(grad_BGO, y, weights_BGE),
    ):
        with pytest.raises(ValueError, match="y: expected at least one expert, got none"):
            call()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_every_width(case, layout):
    y_EBO, weights_BGE = inputs(case, torch.float32)

    assert torch.equal(dense_combine(layout(y_EBO), weights_BGE), dense_combine(y_EBO, weights_BGE))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("gates", [0, 8, 9, 12, 17, 33, 65, 130])
@pytest.mark.parametrize("width", [24, 19])
def test_any_number_of_gates(device, gates, width, dtype, close):
    """Without any, the gradient of y is 0, which has to be written too."""
    case = Case("", 5, gates, 1, 7, width, distinct)
    y_EBO, weights_BGE = inputs(case, dtype)
    grad_BGO = case.random(case.B, gates, width, seed=3).to(dtype)
    arguments = [tensor.to(device) for tensor in (grad_BGO, y_EBO, weights_BGE)]

    out_BGO = torch.ops.mmoe.dense_combine(list(arguments[1]), arguments[2])
    (grad_y,), grad_weights = torch.ops.mmoe.dense_combine_backward(
        arguments[0], [arguments[1]], arguments[2]
    )

    close(out_BGO.cpu(), reference.dense_combine([y_EBO], weights_BGE))
    (wanted_y,), wanted = reference.dense_combine_backward(grad_BGO, [y_EBO], weights_BGE)
    close(grad_y.cpu(), wanted_y)
    torch.testing.assert_close(grad_weights.cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert gates or not grad_y.any()

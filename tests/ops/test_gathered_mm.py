import pytest
import torch

from benchmarks.gpu_check.smoke import to_device
from mmoe.ops import RoutePlan, gathered_mm, grouped_mm, permute, route_plan
from mmoe.ops.product_choice import grouped_product
from tests.needs_kernels import needs_kernels

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def inputs(case, types=(torch.float32, torch.float32), D=35):
    """Rows, a plan with its tail, weights, biases, and the gradient that comes back."""
    plan = route_plan(case.experts_BGK(), case.E)
    rows, weights = types
    x_BD = case.random(case.B, D, seed=1).to(rows)
    weight_EDH = (case.random(case.E, D, case.O, seed=2) / D**0.5).to(weights)
    bias_EH = case.random(case.E, case.O, seed=3).to(weights)
    grad_PH = case.random(len(plan.rows_P), case.O, seed=4).to(rows)
    grad_PH[int(plan.offsets_E1[-1]) :] = torch.nan
    return x_BD, plan, weight_EDH, bias_EH, grad_PH


def permuted(x_BD, plan, weight_EDH, bias_EH, activation):
    x_PD = permute(x_BD, plan)
    return grouped_mm(x_PD, plan.offsets_E1, weight_EDH, bias_EH, activation)


def both_ways(layer, x_BD, plan, weight_EDH, bias_EH, grad_PH, activation):
    """What a layer gives, and its gradients."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x_BD, weight_EDH, bias_EH)]
    y_PH = layer(leaves[0], plan, leaves[1], leaves[2], activation)
    return [y_PH.detach(), *torch.autograd.grad(y_PH, leaves, grad_PH)]


@needs_kernels
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_the_bits_are_those_of_permuted_rows(case, layer_types, activation, device):
    x_BD, plan, *others = inputs(case, layer_types)
    plan = RoutePlan(*to_device(tuple(plan), device))
    tensors = to_device(x_BD, device), plan, *to_device(others, device)

    with grouped_product("own", device=device):
        found = both_ways(gathered_mm, *tensors, activation)
        expected = both_ways(permuted, *tensors, activation)

    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_pairs_of_no_row_read_zeros(device):
    rows_P = torch.tensor([1, -1, 0], dtype=torch.int32)
    slots_BGK = torch.tensor([[[2]], [[0]]], dtype=torch.int32)
    plan = rows_P, torch.tensor([0, 2, 3], dtype=torch.int32), slots_BGK
    plan = RoutePlan(*to_device(plan, device))
    x_BD, weight_EDH = torch.tensor([[1.0], [2.0]]), torch.tensor([[[1.0]], [[10.0]]])
    leaves = [tensor.to(device).requires_grad_() for tensor in (x_BD, weight_EDH)]

    y_PH = gathered_mm(leaves[0], plan, leaves[1], torch.tensor([[5.0], [0.0]]).to(device))
    y_PH.sum().backward()

    assert y_PH.flatten().tolist() == [7.0, 5.0, 10.0]
    assert [leaf.grad.flatten().tolist() for leaf in leaves] == [[10.0, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x_BD": lambda t: t[0]}, "x_BD: expected 2 dimensions"),
        ({"x_BD": lambda t: t.half()}, "x_BD: expected one of"),
        ({"x_BD": lambda t: t[:, 1:]}, r"weight_EDH: expected shape \[5, 34, 24\] to fit the wid"),
        ({"x_BD": lambda t: t[1:]}, r"slots_BGK: expected shape \[36, 3, 2\] to fit x_BD"),
        ({"rows_P": lambda t: t.long()}, "rows_P: expected dtype torch.int32"),
        ({"rows_P": lambda t: t.view(-1, 1)}, "rows_P: expected 1 dimension"),
        ({"slots_BGK": lambda t: t.to("meta")}, "slots_BGK: expected device cpu"),
        ({"offsets_E1": lambda t: t.long()}, "offsets_E1: expected dtype torch.int32"),
        ({"offsets_E1": lambda t: t[1:]}, r"offsets_E1: expected shape \[6\] to fit the experts"),
        ({"weight_EDH": lambda t: t.double()}, "weight_EDH: expected dtype torch.float32 beside x"),
        ({"bias_EH": lambda t: t[1:]}, r"bias_EH: expected shape \[5, 24\] to fit weight_EDH"),
        ({"activation": lambda _: "tanh"}, "activation: expected one of none, relu, gelu, silu"),
    ],
)
def test_refuses_what_does_not_fit(usual, changes, text):
    x_BD, plan, weight_EDH, bias_EH, _ = inputs(usual)
    values = {"x_BD": x_BD, **plan._asdict(), "weight_EDH": weight_EDH, "bias_EH": bias_EH}
    values["activation"] = "relu"
    changed = {name: changes.get(name, lambda t: t)(value) for name, value in values.items()}
    plan = RoutePlan(*(changed.pop(name) for name in RoutePlan._fields))

    with pytest.raises(ValueError, match=text):
        gathered_mm(plan=plan, **changed)


@pytest.mark.parametrize("row", [-2, 37])
def test_refuses_rows_that_are_not_there(usual, row):
    x_BD, plan, weight_EDH, _, _ = inputs(usual)
    plan.rows_P[3] = row

    with pytest.raises(ValueError, match=rf"rows_P: expected rows in \[0, 37\) or -1, got {row}"):
        gathered_mm(x_BD, plan, weight_EDH)

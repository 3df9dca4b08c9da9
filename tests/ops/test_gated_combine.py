import pytest
import torch

from mmoe.ops import gated_combine, reference, route_plan
from tests.needs_kernels import needs_kernels


def inputs(case, dtype):
    """Expert outputs in the order of the plan, with garbage in the tail, and the gates' weights."""
    plan = route_plan(case.experts_BGK(), case.E)
    y_PO = case.random(plan.rows_P.numel(), case.O, seed=1)
    y_PO[plan.offsets_E1[-1] :] = torch.nan
    weights_BGK = case.random(case.B, case.G, case.K, seed=2)
    weights_BGK = weights_BGK.masked_fill(plan.slots_BGK < 0, torch.nan)
    weights_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return y_PO.to(dtype), plan.slots_BGK, weights_BGK.to(weights_dtype)


def test_reference_is_the_formula(usual):
    y_PO, slots_BGK, weights_BGK = inputs(usual, torch.float64)

    out_BGO = reference.gated_combine(y_PO, slots_BGK, weights_BGK)

    for b in range(usual.B):
        for g in range(usual.G):
            mixed = sum(
                weights_BGK[b, g, k] * y_PO[slots_BGK[b, g, k]]
                for k in range(usual.K)
                if slots_BGK[b, g, k] >= 0
            )
            torch.testing.assert_close(out_BGO[b, g], torch.as_tensor(mixed))


def test_wide_weights_for_narrow_experts(usual, close):
    y_PO, slots_BGK, weights_BGK = inputs(usual, torch.bfloat16)
    narrow_BGK = weights_BGK.bfloat16().requires_grad_()

    out_BGO = gated_combine(y_PO, slots_BGK, narrow_BGK)
    out_BGO.float().sum().backward()

    assert out_BGO.dtype == torch.bfloat16
    assert narrow_BGK.grad is not None
    assert narrow_BGK.grad.dtype == torch.bfloat16
    close(out_BGO, reference.gated_combine(y_PO, slots_BGK, narrow_BGK.detach().float()))


def test_rows_of_no_pick_may_be_anything_and_get_no_gradient():
    y_PO = torch.tensor([[1.0], [torch.inf], [3.0]], requires_grad=True)
    slots_BGK = torch.tensor([[[0, -1]], [[2, 2]]], dtype=torch.int32)

    out_BGO = gated_combine(y_PO, slots_BGK, torch.ones(2, 1, 2))
    out_BGO.sum().backward()

    assert out_BGO.flatten().tolist() == [1.0, 6.0]
    assert y_PO.grad is not None
    assert y_PO.grad.flatten().tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", torch.zeros(4), r"y_PO: expected 2 dimensions \[P, O\], got shape \[4\]"),
        ("y", torch.zeros(4, 2).half(), r"y_PO: expected one of torch.float32.*torch.float16"),
        (
            "slots",
            torch.zeros(2, 1, 2),
            r"slots_BGK: expected dtype torch.int32, got torch.float32",
        ),
        ("slots", torch.zeros(2, 2).int(), r"slots_BGK: expected 3 dimensions"),
        ("weights", torch.zeros(2, 2, 1), r"weights_BGK: expected shape \[2, 1, 2\] to fit slots"),
        ("weights", torch.zeros(2, 1, 2).int(), r"weights_BGK: expected one of torch.float32"),
        ("weights", torch.zeros(2, 1, 2).to("meta"), r"weights_BGK: expected device cpu as y_PO"),
    ],
)
def test_says_what_is_wrong(name, value, message):
    given = {"y": torch.zeros(4, 3), "slots": torch.zeros(2, 1, 2).int()}
    with pytest.raises(ValueError, match=message):
        gated_combine(*(given | {"weights": torch.zeros(2, 1, 2)} | {name: value}).values())


@needs_kernels
@pytest.mark.parametrize("slot", [4, -2])
def test_refuses_a_slot_that_is_not_there(slot):
    slots_BGK = torch.full((2, 1, 2), slot, dtype=torch.int32)

    message = rf"slots_BGK: expected slots in \[0, 4\) or -1, got {slot}"
    with pytest.raises(ValueError, match=message):
        gated_combine(torch.zeros(4, 3), slots_BGK, torch.zeros(2, 1, 2))


@needs_kernels
def test_refuses_the_gradient_of_a_pair_with_two_samples():
    y_PO = torch.zeros(2, 3, requires_grad=True)
    out_BGO = gated_combine(y_PO, torch.ones(2, 1, 1).int(), torch.ones(2, 1, 1))

    with pytest.raises(ValueError, match=r"slots_BGK: .* belong to one sample, got pair 1 in two"):
        out_BGO.sum().backward()

import subprocess
import sys

import pytest
import torch

from mmoe.ops import reference, route_plan

# The operators around the experts' products, with the reference in the kernels' place.
WITHOUT_EXTENSION = """
import sys, warnings
sys.modules["mmoe._C"] = None
warnings.simplefilter("ignore")
import torch
from torch.library import opcheck
import mmoe.ops as ops
from mmoe.ops import permute, topk_gate, unpermute
assert not ops.extension_status().built

logits = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
logits.requires_grad_()
visible = torch.tensor([[True] * 4, [True, False, True, False]])
for softmax in ("after", "before"):
    assert torch.autograd.gradcheck(lambda x: topk_gate(x, visible, 2, softmax=softmax)[0], logits)
opcheck(torch.ops.mmoe.topk_gate.default, (logits, visible, 2, True))
weights, experts = topk_gate(logits, visible, 2)
plan = ops.route_plan(experts, 4)
x = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda x: unpermute(permute(x, plan).exp(), plan), x)
opcheck(torch.ops.mmoe.permute.default, (x, plan.rows_P, plan.slots_BGK))
compiled = torch.compile(
    lambda x, plan: unpermute(permute(x, plan), plan), fullgraph=True, backend="aot_eager"
)
assert torch.equal(compiled(x, plan), unpermute(permute(x, plan), plan))

for call, words in [
    (lambda: topk_gate(logits, visible, 3), "k: expected at most 2, what gate 1 sees, got 3"),
    (lambda: topk_gate(logits / 0 * 0, visible, 2), "gate 0: 6 rows have NaN logits"),
    (lambda: permute(x, plan._replace(rows_P=plan.rows_P + 1)), "rows_P: expected rows in [0, 6)"),
    (lambda: unpermute(x, plan._replace(rows_P=plan.rows_P[:6])), "slots_BGK: expected slots in"),
]:
    try:
        call()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
print("all fine")
"""


def test_the_operators_work_without_the_extension(repository):
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTENSION],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout.strip() == "all fine", result.stderr


def test_topk_gate_picks_the_largest_and_the_first_of_equals():
    logits_BGE = torch.tensor([[[1.0, 3.0, 3.0, 2.0]]])
    visibility_GE = torch.ones(1, 4, dtype=torch.bool)

    weights_BGK, experts_BGK = reference.topk_gate(logits_BGE, visibility_GE, 2)

    assert experts_BGK.flatten().tolist() == [1, 2]
    assert experts_BGK.dtype == torch.int32
    torch.testing.assert_close(weights_BGK.flatten(), torch.tensor([0.5, 0.5]))


def test_topk_gate_with_softmax_before_the_selection():
    logits_BGE = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(0))
    visibility_GE = torch.tensor([[True] * 6, [True, False, True, False, True, False]])

    weights_BGK, experts_BGK = reference.topk_gate(
        logits_BGE, visibility_GE, 2, softmax_after=False
    )

    masked_BGE = logits_BGE.masked_fill(~visibility_GE, -torch.inf)
    expected = masked_BGE.softmax(-1).topk(2)
    torch.testing.assert_close(weights_BGK, expected.values)
    assert torch.equal(experts_BGK.long(), expected.indices)
    assert set(experts_BGK[:, 1].flatten().tolist()) <= {0, 2, 4}


@pytest.mark.parametrize("softmax_after", [True, False])
def test_topk_gate_leaves_picks_unused_where_logits_are_minus_infinity(softmax_after):
    hidden = torch.tensor([[True, False, True], [True, True, True]])

    weights_BGK, experts_BGK = reference.topk_gate(
        torch.randn(4, 2, 3).masked_fill(hidden, -torch.inf),
        torch.ones(2, 3, dtype=torch.bool),
        2,
        softmax_after,
    )

    assert experts_BGK[:, 0].tolist() == [[1, -1]] * 4
    assert experts_BGK[:, 1].tolist() == [[-1, -1]] * 4
    assert weights_BGK[:, 0].tolist() == [[1.0, 0.0]] * 4
    assert weights_BGK[:, 1].tolist() == [[0.0, 0.0]] * 4


def test_permute_and_unpermute_are_adjoint(case):
    plan = route_plan(case.experts_BGK(), case.E)
    x_BO = case.random(case.B, case.O, seed=4).double().requires_grad_()
    y_PO = case.random(plan.rows_P.numel(), case.O, seed=5).double()

    x_PO = reference.permute(x_BO, plan.rows_P, plan.slots_BGK)
    x_PO.backward(y_PO)

    pairs = int(plan.offsets_E1[-1])
    assert torch.equal(x_PO[:pairs], x_BO[plan.rows_P[:pairs].long()])
    assert not x_PO[pairs:].any()
    y_PO[pairs:] = torch.nan
    added_BO = reference.unpermute(y_PO, plan.rows_P, plan.slots_BGK)
    torch.testing.assert_close(added_BO, x_BO.grad)


def test_grouped_mm_is_each_experts_own_layer(usual):
    plan = route_plan(usual.experts_BGK(), usual.E)
    x_PD = usual.random(plan.rows_P.numel(), 4, seed=1)
    weights_EDH, bias_EH = usual.random(usual.E, 4, 3, seed=2), usual.random(usual.E, 3, seed=3)

    y_PH, _ = reference.grouped_mm(x_PD, plan.offsets_E1, weights_EDH, bias_EH, "relu")

    bounds = plan.offsets_E1.tolist()
    for e in range(usual.E):
        for row in range(bounds[e], bounds[e + 1]):
            expected = torch.relu(x_PD[row] @ weights_EDH[e] + bias_EH[e])
            torch.testing.assert_close(y_PH[row], expected)
    assert not y_PH[bounds[-1] :].any()

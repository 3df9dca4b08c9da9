"""What `topk_gate` refuses, and in which words: the wrapper, the kernel and the reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mmoe.ops import reference, topk_gate
from mmoe.ops._checks import accumulate_dtype
from tests.thinning import examples


@pytest.mark.parametrize("softmax", ["after", "before"])
def test_refuses_nan_and_names_the_gate(softmax, dtype):
    logits_BGE = torch.zeros(50, 3, 20, dtype=dtype)
    visibility_GE = torch.ones(3, 20, dtype=torch.bool)
    visibility_GE[1, 4] = False
    logits_BGE[:, 1, 4] = math.nan
    for ops in (torch.ops.mmoe.topk_gate, reference.topk_gate):
        ops(logits_BGE, visibility_GE, 2, softmax == "after")

    logits_BGE[[3, 30, 49], 2, 19] = math.nan
    logits_BGE[3, 2, 0] = math.nan

    for ops in (torch.ops.mmoe.topk_gate, reference.topk_gate):
        with pytest.raises(ValueError, match=r"^logits_BGE: .* gate 2: 3 rows have NaN logits;"):
            ops(logits_BGE, visibility_GE, 2, softmax == "after")


def test_nothing_is_looked_up_where_there_are_no_values():
    """A trace has no values, and a GPU's would have to be waited for."""
    with FakeTensorMode():
        logits_BGE, visibility_GE = torch.empty(4, 2, 3), torch.empty(2, 3, dtype=torch.bool)
        rows_P, slots_BGK = torch.empty(8, dtype=torch.int32), torch.empty(4, 2, 2).int()

        weights_BGK, experts_BGK = reference.topk_gate(logits_BGE, visibility_GE, 2)
        grad_BGE = reference.topk_gate_backward(
            weights_BGK, logits_BGE, visibility_GE, experts_BGK, True
        )
        x_PD = reference.permute(torch.empty(4, 5), rows_P, slots_BGK)
        y_BD = reference.unpermute(x_PD, rows_P, slots_BGK)

    assert weights_BGK.shape == experts_BGK.shape == (4, 2, 2)
    assert grad_BGE.shape == (4, 2, 3)
    assert (x_PD.shape, y_BD.shape) == ((8, 5), (4, 5))


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_expert_picked_again_counts_once_in_the_softmax(device, after, dtype, close):
    """Its picks add their gradients up; the weights of the others stay what they were."""
    experts_BGK = torch.tensor([[[2, 0, 2, -1], [1, 1, 1, 1]], [[0, 3, 3, 0], [4, 1, 0, 3]]]).int()
    logits_BGE = torch.linspace(-2, 2, 20).view(2, 2, 5).to(dtype)
    exact_BGE = logits_BGE.double().requires_grad_()
    grad_BGK = torch.arange(1.0, 17.0).view(2, 2, 4).to(accumulate_dtype(dtype))
    expected_BGE = torch.zeros_like(exact_BGE)
    for b, g in ((0, 0), (0, 1), (1, 0), (1, 1)):
        picks = [expert for expert in experts_BGK[b, g].tolist() if expert >= 0]
        base = sorted(set(picks)) if after else list(range(5))
        p = exact_BGE[b, g, base].softmax(0)
        total = sum(grad_BGK[b, g, k] * p[base.index(expert)] for k, expert in enumerate(picks))
        expected_BGE[b, g] = torch.autograd.grad(total, exact_BGE)[0][b, g]
    visibility_GE = torch.ones(2, 5, dtype=torch.bool)
    arguments = [grad_BGK, logits_BGE, visibility_GE, experts_BGK]

    grad_BGE = torch.ops.mmoe.topk_gate_backward(*(t.to(device) for t in arguments), after).cpu()

    close(grad_BGE, expected_BGE.to(dtype))
    close(reference.topk_gate_backward(*arguments, after), expected_BGE.to(dtype))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(
    picks=st.lists(st.one_of(st.integers(-2, 6), st.just(2**31 - 1)), min_size=12, max_size=12),
    after=st.booleans(),
)
def test_any_picks_have_a_gradient_or_are_refused(picks, after):
    """Picks that no gate made: hidden experts, one twice, none that are there."""
    experts_BGK = torch.tensor(picks, dtype=torch.int32).view(2, 2, 3)
    logits_BGE = torch.linspace(-1, 1, 20).view(2, 2, 5)
    visibility_GE = torch.tensor([[True] * 5, [True, False, True, False, True]])
    arguments = (torch.arange(12.0).view(2, 2, 3), logits_BGE, visibility_GE, experts_BGK, after)

    if all(-1 <= pick < 5 for pick in picks):
        actual = torch.ops.mmoe.topk_gate_backward(*arguments)
        torch.testing.assert_close(actual, reference.topk_gate_backward(*arguments))
        return
    for backward in (torch.ops.mmoe.topk_gate_backward, reference.topk_gate_backward):
        with pytest.raises(ValueError, match=r"experts_BGK: expected experts in \[0, 5\) or -1, "):
            backward(*arguments)


LOGITS, SEEN = torch.zeros(2, 1, 3), torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": LOGITS[0]}, r"logits_BGE: expected 3 dimensions \[B, G, E\], got shape"),
        ({"logits": LOGITS.half()}, r"logits_BGE: expected one of torch.float32"),
        ({"logits": LOGITS[..., :0]}, r"logits_BGE: expected at least one expert, got none"),
        ({"seen": SEEN[0]}, r"visibility_GE: expected shape \[1, 3\] to fit logits_BGE, got \[3\]"),
        ({"seen": SEEN.expand(2, 3)}, r"visibility_GE: expected shape \[1, 3\] .*, got \[2, 3\]"),
        ({"seen": SEEN.float()}, r"visibility_GE: expected dtype torch.bool, .*; use .bool\(\)"),
        ({"seen": SEEN.to("meta")}, r"visibility_GE: expected device cpu as logits_BGE, got meta"),
        ({"k": 0}, r"k: expected at least 1 pick per gate, got 0"),
        ({"softmax": "both"}, r"softmax: expected 'after' or 'before', got 'both'"),
    ],
)
def test_says_what_is_wrong(changed, message):
    given = {"logits": LOGITS, "seen": SEEN, "k": 1, "softmax": "after"} | changed

    with pytest.raises(ValueError, match=message):
        topk_gate(given["logits"], given["seen"], given["k"], softmax=given["softmax"])

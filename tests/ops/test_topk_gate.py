import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.ops import reference, topk_gate
from tests.thinning import examples

softmaxes = pytest.mark.parametrize("softmax", ["after", "before"])


def inputs(case, dtype):
    """Logits in steps of a quarter, so that some are equal; every gate sees K experts or more."""
    logits_BGE = (case.random(case.B, case.G, case.E, seed=1) * 4).round() / 4
    visibility_GE = case.random(case.G, case.E, seed=2) > -0.5
    visibility_GE[0] = True
    visibility_GE[:, : case.K] = True
    return logits_BGE.to(dtype), visibility_GE


def with_infinite(case, dtype):
    """The same, and some rows have fewer logits above -inf than picks."""
    logits_BGE, visibility_GE = inputs(case, dtype)
    hidden_BGE = case.random(case.B, case.G, case.E, seed=4) > 0
    return logits_BGE.masked_fill(hidden_BGE, -math.inf), visibility_GE


def by_hand(logits, visible, k, softmax):
    """The contract for one row, word for word, in Python's floats: weights and experts."""
    largest = torch.finfo(torch.float32).max
    seen = {
        expert: min(logit, largest)
        for expert, logit in enumerate(logits)
        if visible[expert] and logit > -math.inf
    }
    picks = sorted(seen, key=lambda expert: (-seen[expert], expert))[:k]
    base = picks if softmax == "after" else list(seen)
    top = max(seen.values(), default=0)
    total = sum(math.exp(seen[expert] - top) for expert in base)
    weights = [math.exp(seen[expert] - top) / total for expert in picks]
    unused = min(k, len(logits)) - len(picks)
    return weights + [0.0] * unused, picks + [-1] * unused


def rows_by_hand(logits_BGE, visibility_GE, k, softmax):
    visible = visibility_GE.tolist()
    rows = [
        by_hand(row, visible[gate], k, softmax)
        for sample in logits_BGE.tolist()
        for gate, row in enumerate(sample)
    ]
    B, G, E = logits_BGE.shape
    weights = torch.tensor([weights for weights, _ in rows], dtype=torch.float64)
    experts = torch.tensor([experts for _, experts in rows], dtype=torch.int32)
    return weights.view(B, G, min(k, E)), experts.view(B, G, min(k, E))


@softmaxes
@pytest.mark.parametrize("make", [inputs, with_infinite])
def test_is_the_contract(case, dtype, softmax, make):
    logits_BGE, visibility_GE = make(case, dtype)

    weights_BGK, experts_BGK = topk_gate(logits_BGE, visibility_GE, case.K, softmax=softmax)

    expected = rows_by_hand(logits_BGE.double(), visibility_GE, case.K, softmax)
    assert experts_BGK.dtype == torch.int32
    assert torch.equal(experts_BGK, expected[1])
    assert weights_BGK.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    rounding = 1e-14 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(weights_BGK.double(), expected[0], rtol=rounding, atol=1e-12)


@softmaxes
@pytest.mark.parametrize("E", [2, 7, 16, 17, 64, 100, 1024])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_widths_and_picks(E, k, softmax, dtype):
    """Ends of vectors, of the buffer and of the tensor; forward and backward."""
    generator, k = torch.Generator().manual_seed(E + k), min(k, E)
    logits_BGE = torch.randn(9, 3, E, generator=generator).to(dtype)
    visibility_GE = torch.rand(3, E, generator=generator) < 0.8
    visibility_GE[:, -k:] = True
    expected = rows_by_hand(logits_BGE.double(), visibility_GE, k, softmax)
    after = softmax == "after"

    weights_BGK, experts_BGK = topk_gate(logits_BGE, visibility_GE, k, softmax=softmax)

    assert torch.equal(experts_BGK, expected[1])
    torch.testing.assert_close(weights_BGK.double(), expected[0], rtol=1e-5, atol=1e-7)
    grad_BGK = torch.randn(weights_BGK.shape, generator=generator).to(weights_BGK.dtype)
    arguments = (grad_BGK, logits_BGE, visibility_GE, experts_BGK, after)
    torch.testing.assert_close(
        torch.ops.mmoe.topk_gate_backward(*arguments), reference.topk_gate_backward(*arguments)
    )


@softmaxes
def test_equal_logits_go_to_the_lower_number(softmax):
    logits_BGE = torch.zeros(2, 1, 40)
    logits_BGE[0, 0, 1::2] = -0.0
    logits_BGE[1, 0, 35:] = 1.0
    everything = torch.ones(1, 40, dtype=torch.bool)

    weights_BGK, experts_BGK = topk_gate(logits_BGE, everything, 6, softmax=softmax)

    assert experts_BGK[:, 0].tolist() == [[0, 1, 2, 3, 4, 5], [35, 36, 37, 38, 39, 0]]
    share = 1 / 6 if softmax == "after" else 1 / 40
    torch.testing.assert_close(weights_BGK[0, 0], torch.full((6,), share))


INFINITE = [
    [0.0, -math.inf, 1.0],
    [math.inf, 5.0, 0.0],
    [math.inf, 1.0, math.inf],
    [-math.inf, -math.inf, -math.inf],
    [-math.inf, 3.0, -math.inf],
]


@softmaxes
@pytest.mark.parametrize("ops", [torch.ops.mmoe, reference], ids=["operator", "reference"])
def test_infinite_logits(ops, softmax, dtype):
    """-inf counts as not seen; +inf takes all the weight, and several share it."""
    logits_BGE = torch.tensor(INFINITE, dtype=dtype).unsqueeze(1)
    everything, after = torch.ones(1, 3, dtype=torch.bool), softmax == "after"

    weights_BGK, experts_BGK = ops.topk_gate(logits_BGE, everything, 3, after)
    grad_BGK = torch.tensor([1.0, 0.0, 0.0]).expand_as(weights_BGK).to(weights_BGK.dtype)
    grad_BGE = ops.topk_gate_backward(grad_BGK, logits_BGE, everything, experts_BGK, after)

    assert experts_BGK[:, 0].tolist() == [[2, 0, -1], [0, 1, 2], [0, 2, 1], [-1] * 3, [1, -1, -1]]
    part = 1 / (1 + math.exp(-1))
    expected = [[part, 1 - part, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 0, 0], [1, 0, 0]]
    weights_BK = torch.tensor(expected, dtype=weights_BGK.dtype)
    torch.testing.assert_close(weights_BGK[:, 0], weights_BK, rtol=1e-6, atol=1e-7)
    assert torch.isfinite(grad_BGE).all()
    assert grad_BGE[0].any()
    assert not grad_BGE[[1, 3, 4]].any()


@softmaxes
def test_large_logits_neither_overflow_nor_lose_the_rest(softmax):
    logits_BGE = torch.tensor([[[3e38, -3e38, 2.9e38], [1e4, 1e4 - 1, 0.0]]])
    everything = torch.ones(2, 3, dtype=torch.bool)

    weights_BGK, _ = topk_gate(logits_BGE, everything, 2, softmax=softmax)

    part = 1 / (1 + math.exp(-1))
    expected = torch.tensor([[[1.0, 0.0], [part, 1 - part]]])
    torch.testing.assert_close(weights_BGK, expected)


def test_experts_have_no_gradient(usual):
    logits_BGE, visibility_GE = inputs(usual, torch.float32)

    weights_BGK, experts_BGK = topk_gate(logits_BGE.requires_grad_(), visibility_GE, usual.K)

    assert weights_BGK.requires_grad
    assert not experts_BGK.requires_grad


LOGIT = st.one_of(
    st.floats(-4, 4, width=16), st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(data=st.data())
def test_any_logits_work_or_are_refused(data):
    B, G, E = (data.draw(st.integers(low, high)) for low, high in [(0, 4), (1, 3), (1, 20)])
    numbers = st.lists(LOGIT, min_size=B * G * E, max_size=B * G * E)
    logits_BGE = torch.tensor(data.draw(numbers), dtype=torch.float32).view(B, G, E)
    shown = data.draw(st.lists(st.booleans(), min_size=G * E, max_size=G * E))
    visibility_GE = torch.tensor(shown).view(G, E)
    k = data.draw(st.integers(1, min(E, 4) + 2))
    softmax = data.draw(st.sampled_from(["after", "before"]))

    if (visibility_GE.sum(1) < k).any():
        for function in (topk_gate, reference.topk_gate):
            with pytest.raises(ValueError, match=rf"k: expected at most \d+, what gate .* got {k}"):
                function(logits_BGE, visibility_GE, k)
        return
    if (logits_BGE.isnan() & visibility_GE).any():
        with pytest.raises(ValueError, match=r"gate \d: \d rows have NaN logits"):
            topk_gate(logits_BGE, visibility_GE, k, softmax=softmax)
        return
    weights_BGK, experts_BGK = topk_gate(logits_BGE, visibility_GE, k, softmax=softmax)

    expected = rows_by_hand(logits_BGE, visibility_GE, k, softmax)
    assert torch.equal(experts_BGK, expected[1])
    torch.testing.assert_close(weights_BGK.double(), expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3, 9])
def test_more_picks_than_a_gate_sees_are_refused(k):
    """On the CPU, where a look costs nothing; a traced program leaves the picks unused."""
    logits_BGE = torch.zeros(4, 2, 3)
    visibility_GE = torch.tensor([[True] * 3, [False, True, False]])
    seen, gate = (3, 0) if k == 9 else (1, 1)
    message = rf"^k: expected at most {seen}, what gate {gate} sees, got {k}$"
    for function in (topk_gate, reference.topk_gate):
        with pytest.raises(ValueError, match=message):
            function(logits_BGE, visibility_GE, k)
    with pytest.raises(ValueError, match=r"^k: expected at most 0, what gate 0 sees, got 1$"):
        topk_gate(logits_BGE, torch.zeros(2, 3, dtype=torch.bool), 1)

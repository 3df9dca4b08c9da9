"""Gates: weights, picks, visibility, precision."""

import pytest
import torch

from mmoe.mixture import FixedGate, SoftmaxGate, TopKGate
from mmoe.mixture.gate_logits import GateLogits

B, D, G, E = 7, 5, 3, 4
VISIBILITY = torch.tensor(
    [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
)


def test_softmax_gate_is_a_softmax_over_what_it_sees():
    torch.manual_seed(0)
    gate, x = SoftmaxGate(D, G, E, temperature=0.5), torch.randn(B, D)
    weights, experts, losses = gate([x] * G, VISIBILITY)
    assert experts is None
    assert losses == {}
    for g in range(G):
        seen = VISIBILITY[g]
        logits = x @ gate.logits.weights[0][g][seen].T / 0.5
        torch.testing.assert_close(weights[:, g, seen], logits.softmax(-1))
        assert (weights[:, g, ~seen] == 0).all()


@pytest.mark.parametrize("softmax", ["before", "after"])
def test_top_k_gate_against_a_loop(softmax):
    torch.manual_seed(0)
    gate, x = TopKGate(D, G, E, k=2, softmax=softmax), torch.randn(B, D)
    weights, experts, _ = gate([x] * G, VISIBILITY)
    assert weights.shape == experts.shape == (B, G, 2)
    assert experts.dtype == torch.int32
    for b in range(B):
        for g in range(G):
            logits = {e: float(x[b] @ gate.logits.weights[0][g, e].detach()) for e in range(E)}
            logits = {e: logit for e, logit in logits.items() if VISIBILITY[g, e]}
            best = sorted(logits, key=lambda e: -logits[e])[:2]
            assert experts[b, g].tolist() == best
            among = best if softmax == "after" else list(logits)
            total = sum(torch.tensor(logits[e]).exp() for e in among)
            expected = torch.stack([torch.tensor(logits[e]).exp() / total for e in best])
            torch.testing.assert_close(weights[b, g], expected)


def test_top_k_gate_leaves_picks_unused_where_too_few_experts_are_visible():
    gate, x = TopKGate(D, G, E, k=3), torch.randn(B, D)
    weights, experts, _ = gate([x] * G, VISIBILITY)
    assert (experts[:, 2, 2] == -1).all()
    assert (weights[:, 2, 2] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, G))


def test_gate_mlp_equals_its_formula_for_shared_and_for_different_inputs():
    torch.manual_seed(0)
    logits = GateLogits(D, G, E, hidden=[6, 3], temperature=2.0)
    with torch.no_grad():
        for bias in logits.biases:
            bias.normal_()
    xs = [torch.randn(B, D) for _ in range(G)]
    for inputs in (xs, [xs[0]] * G):
        for mode in (True, False):
            out = logits.train(mode)(inputs)
            for g, x in enumerate(inputs):
                h = torch.relu(x @ logits.weights[0][g].T + logits.biases[0][g])
                h = torch.relu(h @ logits.weights[1][g].T + logits.biases[1][g])
                torch.testing.assert_close(out[:, g], h @ logits.weights[2][g].T / 2.0)


def test_gates_start_nearly_even():
    torch.manual_seed(0)
    gate, x = SoftmaxGate(64, 2, 8), torch.randn(500, 64)
    weights = gate([x, x], torch.ones(2, 8, dtype=torch.bool)).weights
    torch.testing.assert_close(weights.mean(0), torch.full((2, 8), 1 / 8), atol=0.02, rtol=0)
    assert weights.std() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_router_arithmetic_is_in_fp32(dtype):
    torch.manual_seed(0)
    gate, x = SoftmaxGate(D, G, E).to(dtype), torch.randn(B, D, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        weights = gate([x] * G, VISIBILITY).weights
    assert weights.dtype == torch.float32
    exact = torch.einsum("bd,ged->bge", x.double(), gate.logits.weights[0].double())
    exact = exact.masked_fill(~VISIBILITY, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights.double(), exact, atol=1e-6, rtol=1e-5)


def test_fixed_gate_normalises_and_honours_visibility():
    gate = FixedGate(torch.tensor([[1.0, 3.0], [0.0, 2.0]]))
    x = torch.zeros(2, D)
    weights, experts, _ = gate([x, x], torch.tensor([[True, True], [True, False]]))
    assert experts is None
    assert weights[1].tolist() == [[0.25, 0.75], [0.0, 0.0]]
    assert not list(gate.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxGate(0, 2, 4), "input_dim: expected 1 or more, got 0"),
        (lambda: SoftmaxGate(5, 0, 4), "num_gates: expected 1 or more, got 0"),
        (lambda: SoftmaxGate(5, 2, 0), "num_experts: expected 1 or more, got 0"),
        (lambda: SoftmaxGate(5, 2, 4, hidden=[3, 0]), r"hidden\[1\]: expected 1 or more, got 0"),
        (lambda: SoftmaxGate(5, 2, 4, temperature=0.0), "temperature: expected .* above 0, got 0"),
        (lambda: TopKGate(5, 2, 4, k=5), "k: expected 1 to 4 .*, got 5"),
        (lambda: TopKGate(5, 2, 4, k=0), "k: expected 1 to 4 .*, got 0"),
        (lambda: TopKGate(5, 2, 4, k=1, softmax="both"), "softmax: expected 'before' or 'after'"),
        (lambda: FixedGate(torch.zeros(2, 2)), "weights_GE: expected .* positive sum"),
        (lambda: FixedGate(torch.ones(2)), r"weights_GE: expected .* got shape \[2\]"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_inputs():
    gate = SoftmaxGate(D, 2, E)
    visible = torch.ones(2, E, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"inputs: expected 2 tensors, one per gate, got 1"):
        gate([torch.zeros(3, D)], visible)
    with pytest.raises(ValueError, match=r"inputs\[1\]: expected shape \[rows, 5\], got \[3, 4\]"):
        gate([torch.zeros(3, D), torch.zeros(3, 4)], visible)

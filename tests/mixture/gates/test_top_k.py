"""Sparse gates."""

import pytest
import torch

from mmoe.mixture import TopKGate

B, D, G, E = 7, 5, 3, 4
VISIBILITY = torch.tensor(
    [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
)


@pytest.mark.parametrize("softmax", ["before", "after"])
def test_against_a_loop(softmax):
    torch.manual_seed(0)
    gate, x = TopKGate(D, G, E, k=2, softmax=softmax), torch.randn(B, D)
    weights, experts, _ = gate([x] * G, VISIBILITY)
    assert weights.shape == experts.shape == (B, G, 2)
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


def test_more_picks_than_a_gate_sees_are_refused():
    gate, x = TopKGate(D, G, E, k=3), torch.randn(B, D)
    with pytest.raises(ValueError, match="k: expected at most 2, what gate 2 sees, got 3"):
        gate([x] * G, VISIBILITY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 5}, r"k: expected 1 to 4 \(the number of experts\), got 5"),
        ({"k": 0}, "k: expected 1 to 4 .*, got 0"),
        ({"k": 1, "softmax": "both"}, "softmax: expected 'before' or 'after', got 'both'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        TopKGate(5, 2, 4, **settings)

"""Dense gates."""

import pytest
import torch

from mmoe.mixture import SoftmaxGate

D, G, E = 5, 3, 4
VISIBILITY = torch.tensor(
    [[True, True, True, False], [True, False, True, True], [False, True, True, False]]
)


def test_a_softmax_over_what_it_sees():
    torch.manual_seed(0)
    gate, x = SoftmaxGate(D, G, E, temperature=0.5), torch.randn(7, D)
    weights, experts, losses = gate([x] * G, VISIBILITY)
    assert experts is None
    assert losses == {}
    for g in range(G):
        seen = VISIBILITY[g]
        logits = x @ gate.logits.weights[0][g][seen].T / 0.5
        torch.testing.assert_close(weights[:, g, seen], logits.softmax(-1))
        assert (weights[:, g, ~seen] == 0).all()


def test_logits_in_full_precision():
    torch.manual_seed(0)
    gate = SoftmaxGate(D, G, E).bfloat16()
    x = torch.randn(7, D, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        weights = gate([x] * G, VISIBILITY).weights
    exact = torch.einsum("bd,ged->bge", x.double(), gate.logits.weights[0].double())
    exact = exact.masked_fill(~VISIBILITY, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights.double(), exact, atol=1e-6, rtol=1e-5)


def test_a_gate_that_sees_nothing_is_refused():
    blind = VISIBILITY.clone()
    blind[1] = False
    with pytest.raises(ValueError, match="visibility_GE: gate 1 sees no expert"):
        SoftmaxGate(D, G, E)([torch.zeros(3, D)] * G, blind)


def test_infinite_logits_are_refused():
    x = torch.zeros(6, D)
    x[2:4] = torch.inf
    gate = SoftmaxGate(D, 1, E)
    torch.nn.init.ones_(gate.logits.weights[0])
    with pytest.raises(ValueError, match="gate 0: 2 rows have infinite logits"):
        gate([x], VISIBILITY[:1])

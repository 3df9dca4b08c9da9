"""Fixed gates."""

import pytest
import torch

from mmoe.mixture import FixedGate


def test_normalises_over_the_experts_that_a_gate_sees():
    gate = FixedGate(torch.tensor([[1.0, 3.0, 4.0], [5.0, 2.0, 3.0]]))
    x = torch.zeros(2, 5)
    visible = torch.tensor([[True, True, False], [True, False, False]])
    weights, experts, losses = gate([x, x], visible)
    assert experts is None
    assert losses == {}
    torch.testing.assert_close(weights[1], torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]))
    assert not list(gate.parameters())


def test_a_gate_without_weight_on_what_it_sees():
    gate, x = FixedGate(torch.tensor([[1.0, 3.0], [0.0, 2.0]])), torch.zeros(2, 5)
    message = "weights_GE: expected a positive weight of gate 1 on an expert that it sees, got none"
    with pytest.raises(ValueError, match=message):
        gate([x, x], torch.tensor([[True, True], [True, False]]))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(2, 2), "weights_GE: expected .* positive sum"),
        (torch.tensor([[2.0, -1.0]]), "weights_GE: expected .* non-negative"),
        (torch.tensor([[torch.inf, 1.0]]), "weights_GE: expected"),
        (torch.ones(2), r"weights_GE: expected .* got shape \[2\]"),
    ],
)
def test_wrong_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        FixedGate(weights)

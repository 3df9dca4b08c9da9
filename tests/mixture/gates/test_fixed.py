"""Fixed gates."""

import pytest
import torch

from mmoe.mixture import FixedGate


def test_normalises_and_honours_visibility():
    gate = FixedGate(torch.tensor([[1.0, 3.0], [0.0, 2.0]]))
    x = torch.zeros(2, 5)
    weights, experts, losses = gate([x, x], torch.tensor([[True, True], [True, False]]))
    assert experts is None
    assert losses == {}
    assert weights[1].tolist() == [[0.25, 0.75], [0.0, 0.0]]
    assert not list(gate.parameters())


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

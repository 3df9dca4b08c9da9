"""Static gates."""

import pytest
import torch

from mmoe.mixture import StaticGate

G, E = 2, 4
VISIBILITY = torch.tensor([[True, True, True, False], [True, True, True, True]])


def test_one_mix_per_task_whatever_the_input():
    torch.manual_seed(0)
    gate = StaticGate(G, E, temperature=0.5)
    torch.nn.init.normal_(gate.logits_GE)
    weights, experts, losses = gate([torch.randn(7, 3), torch.randn(7, 5)], VISIBILITY)
    assert experts is None
    assert losses == {}
    for g in range(G):
        seen = VISIBILITY[g]
        expected = (gate.logits_GE[g, seen] / 0.5).softmax(-1)
        torch.testing.assert_close(weights[:, g, seen], expected.expand(7, -1))


@pytest.mark.parametrize("softmax", ["before", "after"])
def test_top_k(softmax):
    gate = StaticGate(G, E, k=2, softmax=softmax)
    with torch.no_grad():
        gate.logits_GE.copy_(torch.tensor([[0.0, 1.0, 2.0, 9.0], [3.0, 1.0, 2.0, 0.0]]))
    weights, experts, _ = gate([torch.zeros(5, 1)] * G, VISIBILITY)
    assert experts.tolist() == [[[2, 1], [0, 2]]] * 5
    among = [[2.0, 1.0], [3.0, 2.0]]
    if softmax == "before":
        among = [[2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]]
    expected = torch.stack([torch.tensor(logits).softmax(-1)[:2] for logits in among])
    torch.testing.assert_close(weights, expected.expand(5, -1, -1))


def test_gates_start_apart():
    """Sparse gates that all start at the same experts would never see the others."""
    torch.manual_seed(0)
    visible = torch.ones(8, 16, dtype=torch.bool)
    experts = StaticGate(8, 16, k=2)([torch.zeros(1, 1)] * 8, visible).experts
    assert len(experts.unique()) > 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 5}, "k: expected 1 to 4"),
        ({"hidden": [8]}, r"hidden: expected \[\] for a gate without input, got \[8\]"),
        ({"softmax": "no"}, "softmax: expected 'before' or 'after'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        StaticGate(G, E, **settings)
    with pytest.raises(ValueError, match="num_experts: expected 1 or more, got 0"):
        StaticGate(G, 0)


def test_broken_parameters_are_refused():
    gate = StaticGate(G, E)
    with torch.no_grad():
        gate.logits_GE[1, 2] = torch.nan
    with pytest.raises(ValueError, match="gate 1: 5 rows have NaN logits"):
        gate([torch.zeros(5, 1)] * G, VISIBILITY)

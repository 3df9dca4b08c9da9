"""GShard gates."""

import pytest
import torch

from mmoe.mixture import Capacity, GShardGate

D, G, E = 5, 2, 4
VISIBILITY = torch.tensor([[True, True, True, False], [True, True, True, True]])


def test_the_second_expert_is_taken_by_chance():
    """With probability min(1, 2 w₂), for many draws of a few rows."""
    torch.manual_seed(0)
    gate, x = GShardGate(D, G, E), 2 * torch.randn(6, D)
    full = gate.eval()([x] * G, VISIBILITY)
    assert (full.experts >= 0).all(), "in evaluation both are"
    torch.testing.assert_close(full.weights.sum(-1), torch.ones(6, G))
    weights, experts, _ = gate.train()([x.repeat(4_000, 1)] * G, VISIBILITY)
    weights, experts = weights.view(4_000, 6, G, 2), experts.view(4_000, 6, G, 2)
    assert (experts[..., 0] == full.experts[..., 0]).all()
    torch.testing.assert_close(weights[..., 0], full.weights[..., 0].expand(4_000, -1, -1))
    taken = experts[..., 1] >= 0
    assert (experts[..., 1][taken] == full.experts[..., 1].expand(4_000, -1, -1)[taken]).all()
    assert (weights[..., 1][~taken] == 0).all()
    expected = (2 * full.weights[..., 1].detach()).clamp(max=1)
    assert float(expected.min()) < 0.1 < 0.8 < float(expected.max()), "no easy case"
    torch.testing.assert_close(taken.float().mean(0), expected, atol=0.03, rtol=0)


def test_the_loss_counts_first_picks():
    torch.manual_seed(0)
    gate, x = GShardGate(D, G, E, balance_loss=1.0), torch.randn(30, D)
    loss = gate([x] * G, VISIBILITY).auxiliary_losses["balance_loss"]
    p = torch.einsum("bd,ged->bge", x, gate.logits.weights[0].detach())
    p = p.masked_fill(~VISIBILITY, -torch.inf).softmax(-1)
    expected = 0.0
    for g, seen in ((0, 3), (1, 4)):
        for e in range(E):
            c = float((p[:, g].argmax(-1) == e).float().mean())
            expected += seen * c * float(p[:, g, e].mean()) / 2
    assert float(loss.detach()) == pytest.approx(expected)


def test_a_gate_with_one_visible_expert_is_refused():
    gate, x = GShardGate(D, 1, 3), torch.randn(4, D)
    with pytest.raises(ValueError, match="k: expected at most 1, what gate 0 sees, got 2"):
        gate([x], torch.tensor([[False, True, False]]))


def test_settings():
    assert GShardGate(D, G, E).capacity is None
    assert GShardGate(D, G, E, capacity=Capacity(2.0)).capacity == Capacity(2.0)
    with pytest.raises(ValueError, match=r"num_experts: expected 2 or more, .* got 1"):
        GShardGate(D, G, 1)

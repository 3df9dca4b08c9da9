"""Switch gates."""

import pytest
import torch

from mmoe.mixture import Capacity, SwitchGate

D, G, E = 5, 2, 4
VISIBILITY = torch.tensor([[True, True, True, False], [True, True, True, True]])


def test_the_best_expert_with_its_probability():
    torch.manual_seed(0)
    gate, x = SwitchGate(D, G, E), torch.randn(30, D)
    weights, experts, losses = gate([x] * G, VISIBILITY)
    p = torch.einsum("bd,ged->bge", x, gate.logits.weights[0].detach())
    p = p.masked_fill(~VISIBILITY, -torch.inf).softmax(-1)
    best = p.max(-1, keepdim=True)
    torch.testing.assert_close(weights, best.values)
    assert torch.equal(experts, best.indices.int())
    expected = 0.0
    for g, seen in ((0, 3), (1, 4)):
        for e in range(E):
            f = float((best.indices[:, g] == e).float().mean())
            expected += 0.01 * seen * f * float(p[:, g, e].mean()) / 2
    assert float(losses["balance_loss"].detach()) == pytest.approx(expected)


def test_jitter():
    torch.manual_seed(0)
    gate, x = SwitchGate(1, 1, 2, jitter=0.25), torch.full((5_000, 1), 2.0)
    with torch.no_grad():
        gate.logits.weights[0].copy_(torch.tensor([[[1.0], [0.0]]]))
    visible = torch.ones(1, 2, dtype=torch.bool)
    noisy = gate([x], visible).weights.flatten().logit() / 2
    assert float(noisy.min().detach()) == pytest.approx(0.75, abs=0.01)
    assert float(noisy.max().detach()) == pytest.approx(1.25, abs=0.01)
    assert float(noisy.mean().detach()) == pytest.approx(1.0, abs=0.01)
    quiet = gate.eval()([x], visible).weights
    torch.testing.assert_close(quiet, torch.full_like(quiet, 2.0).sigmoid())


def test_gates_with_one_input_share_its_jitter():
    gate, x = SwitchGate(D, 3, E, jitter=0.5), torch.randn(20, D)
    with torch.no_grad():
        gate.logits.weights[0][1:] = gate.logits.weights[0][:1]
    visible = torch.ones(3, E, dtype=torch.bool)
    weights = gate([x, x, x.clone()], visible).weights
    torch.testing.assert_close(weights[:, 0], weights[:, 1])
    assert not torch.allclose(weights[:, 0], weights[:, 2])


def test_settings():
    assert SwitchGate(D, G, E).capacity is None
    assert SwitchGate(D, G, E, capacity=Capacity(1.25)).capacity == Capacity(1.25)
    x = torch.randn(3, D)
    assert SwitchGate(D, G, E, balance_loss=0.0)([x] * G, VISIBILITY).auxiliary_losses == {}
    with pytest.raises(ValueError, match=r"jitter: expected a number in \[0, 1\), got -0.1"):
        SwitchGate(D, G, E, jitter=-0.1)

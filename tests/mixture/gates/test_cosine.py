"""Cosine gates."""

import math

import pytest
import torch

from mmoe.mixture import CosineGate

D, G, E = 5, 2, 4
ALL = torch.ones(G, E, dtype=torch.bool)


@pytest.mark.parametrize("softmax", ["before", "after"])
def test_against_a_loop(softmax):
    torch.manual_seed(0)
    gate = CosineGate(D, G, E, k=2, projection_dim=3, softmax=softmax, temperature=0.8)
    torch.nn.init.normal_(gate.log_scale_G)
    x = torch.randn(9, D)
    weights, experts, _ = gate([x] * G, ALL)
    for b in range(9):
        for g in range(G):
            projected = gate.projection.weights[0][g] @ x[b]
            logits = []
            for e in range(E):
                direction = gate.directions_GEP[g, e]
                cosine = projected @ direction / projected.norm() / direction.norm()
                logits.append(float((cosine * gate.log_scale_G[g].exp() / 0.8).detach()))
            best = sorted(range(E), key=lambda e: -logits[e])[:2]
            assert experts[b, g].tolist() == best
            among = best if softmax == "after" else range(E)
            total = sum(math.exp(logits[e]) for e in among)
            for j, e in enumerate(best):
                assert float(weights[b, g, j].detach()) == pytest.approx(
                    math.exp(logits[e]) / total, 1e-4
                )


def test_length_does_not_matter():
    gate, x = CosineGate(D, G, E, k=2), torch.randn(9, D)
    short, long = gate([x] * G, ALL), gate([100 * x] * G, ALL)
    assert torch.equal(short.experts, long.experts)
    torch.testing.assert_close(short.weights, long.weights)
    zero = gate([0 * x] * G, ALL)
    torch.testing.assert_close(zero.weights, torch.full((9, G, 2), 0.5))


def test_the_temperature_is_learned_within_its_bounds():
    gate, x = CosineGate(D, 1, E, k=E, projection_dim=8), torch.randn(50, D)
    assert float(gate.log_scale_G.detach().exp()) == pytest.approx(2), "1 / 0.5"
    weights = []
    for log_scale in (0.0, math.log(100), 9.0):
        torch.nn.init.constant_(gate.log_scale_G, log_scale)
        weights.append(gate([x], ALL[:1]).weights)
    assert not torch.equal(weights[0], weights[1])
    torch.testing.assert_close(weights[1], weights[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 5}, "k: expected 1 to 4"),
        ({"k": 2, "projection_dim": 0}, "projection_dim: expected 1 or more, got 0"),
        ({"k": 2, "softmax": "none"}, "softmax: expected 'before' or 'after'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CosineGate(D, G, E, **settings)

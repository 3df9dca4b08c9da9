"""Noisy top-k gates: the noise, the smooth load, the two losses."""

import math

import pytest
import torch

from mmoe.mixture import NoisyTopKGate, TopKGate
from mmoe.mixture.gates import noisy_top_k
from mmoe.mixture.gates.noisy_top_k import NOISE_FLOOR, selection_probability

D, G, E = 5, 2, 6
VISIBILITY = torch.tensor([[True] * 5 + [False], [True] * 6])


def normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def random_logits(rows: int):
    torch.manual_seed(0)
    clean = torch.randn(rows, G, E, dtype=torch.float64)
    scale = torch.rand(rows, G, E, dtype=torch.float64) + 0.3
    noisy = clean + scale * torch.randn(rows, G, E, dtype=torch.float64)
    return clean, noisy.masked_fill(~VISIBILITY, -torch.inf), scale


@pytest.mark.parametrize("k", [1, 2, 4])
def test_selection_probability_is_equation_9(k):
    clean, noisy, scale = random_logits(10)
    got = selection_probability(clean, noisy, scale, k)
    for b in range(10):
        for g in range(G):
            for e in range(E):
                others = [float(noisy[b, g, i]) for i in range(E) if i != e]
                kth = sorted(others, reverse=True)[k - 1]
                expected = normal_cdf((float(clean[b, g, e]) - kth) / float(scale[b, g, e]))
                expected = expected if VISIBILITY[g, e] else 0.0
                assert float(got[b, g, e]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [5, 6])
def test_too_few_others_make_a_pick_certain(k):
    clean, noisy, scale = (x.requires_grad_() for x in random_logits(4))
    probability = selection_probability(clean, noisy, scale, k)
    certain = VISIBILITY if k == 6 else VISIBILITY & torch.tensor([[True], [False]])
    assert (probability[:, certain] == 1).all()
    assert (probability[:, ~VISIBILITY] == 0).all()
    gradients = torch.autograd.grad(probability.sum(), [clean, noisy, scale])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_gradients_of_the_selection_probability():
    clean, noisy, scale = (x[:, 1:].clone().requires_grad_() for x in random_logits(3))
    assert torch.autograd.gradcheck(
        lambda *tensors: selection_probability(*tensors, 2), (clean, noisy, scale)
    )


def test_both_losses():
    """From the noisy logits, which are drawn again here with the same seed."""
    gate, x = NoisyTopKGate(D, G, E, k=2, importance_loss=0.3, load_loss=0.7), torch.randn(40, D)
    torch.nn.init.normal_(gate.noise.weights[0])
    torch.manual_seed(4)
    weights, experts, losses = gate([x] * G, VISIBILITY)
    torch.manual_seed(4)
    clean = gate.logits([x] * G)
    scale = torch.nn.functional.softplus(gate.noise([x] * G)) + NOISE_FLOOR
    noisy = (clean + scale * torch.randn_like(clean)).masked_fill(~VISIBILITY, -torch.inf)
    best = noisy.topk(2, dim=-1)
    assert torch.equal(experts, best.indices.int())
    torch.testing.assert_close(weights, best.values.softmax(-1))

    def mean_cv_squared(amounts_GE) -> float:
        parts = []
        for g in range(G):
            seen = amounts_GE[g][VISIBILITY[g]]
            parts.append(float(seen.var(correction=0) / seen.mean() ** 2))
        return sum(parts) / G

    importance = torch.zeros(G, E)
    for b in range(40):
        for g in range(G):
            for j in range(2):
                importance[g, experts[b, g, j]] += weights[b, g, j].detach()
    load = selection_probability(clean, noisy, scale, 2).sum(0).detach()
    got = {name: float(loss.detach()) for name, loss in losses.items()}
    assert got["importance_loss"] == pytest.approx(0.3 * mean_cv_squared(importance), rel=1e-4)
    assert got["load_loss"] == pytest.approx(0.7 * mean_cv_squared(load), rel=1e-4)


def test_noise_in_training_only():
    gate, x = NoisyTopKGate(D, G, E, k=2), torch.randn(300, D)
    plain = TopKGate(D, G, E, k=2)
    plain.logits.load_state_dict(gate.logits.state_dict())
    quiet, expected = gate.eval()([x] * G, VISIBILITY), plain.eval()([x] * G, VISIBILITY)
    assert torch.equal(quiet.experts, expected.experts)
    assert torch.equal(quiet.weights, expected.weights)
    noisy = gate.train()([x] * G, VISIBILITY)
    assert float((noisy.experts != expected.experts).float().mean()) > 0.2


@pytest.mark.parametrize("name", ["importance_loss", "load_loss"])
def test_wrong_settings(name):
    with pytest.raises(ValueError, match=f"{name}: expected a finite number of 0 or more, got -1"):
        NoisyTopKGate(D, G, E, k=2, **{name: -1.0})
    with pytest.raises(ValueError, match="k: expected 1 to 6"):
        NoisyTopKGate(D, G, E, k=7)


@pytest.mark.parametrize(("steepness", "deviation"), [(0.0, math.log(2) + 0.01), (-9.0, 0.01)])
def test_the_noise_has_the_deviation_of_the_authors_code(steepness, deviation, monkeypatch):
    """softplus(V x) + 0.01, as tensor2tensor's noise_epsilon."""
    gate = NoisyTopKGate(D, 1, E, k=2)
    torch.nn.init.zeros_(gate.logits.weights[0])
    torch.nn.init.constant_(gate.noise.weights[0], steepness)
    seen = []

    def record(clean_BGE, noisy_BGE, scale_BGE, k):
        seen.append(scale_BGE)
        return selection_probability(clean_BGE, noisy_BGE, scale_BGE, k)

    monkeypatch.setattr(noisy_top_k, "selection_probability", record)
    gate([torch.full((3, D), 10.0)], torch.ones(1, E, dtype=torch.bool))
    torch.testing.assert_close(seen[0], torch.full((3, 1, E), deviation))

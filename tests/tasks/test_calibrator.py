"""The calibrator of AITM: its formula, parts of a batch, gradients."""

import torch

from mmoe.tasks.transfer import calibrator_loss

PAIRS = [(0, 2), (2, 1)]


def rows(count=40):
    chance = torch.Generator().manual_seed(2)
    logits, weights = torch.randn(2, count, 3, generator=chance, dtype=torch.float64)
    observed = torch.rand(count, 3, generator=chance) < 0.7
    return logits, observed, weights.abs().where(observed, torch.nan)


def test_it_is_the_formula():
    logits, observed, weights = rows()
    out_of = weights.where(observed, 0).sum(0)
    expected = 0.0
    for former, later in PAIRS:
        for row in range(len(logits)):
            if observed[row, later]:
                p, q = logits[row, former].sigmoid(), logits[row, later].sigmoid()
                expected += weights[row, later] * max(float(q - p), 0.0) / out_of[later]
    torch.testing.assert_close(
        calibrator_loss(logits.unbind(1), observed, weights, PAIRS, out_of), expected
    )


def test_parts_of_a_batch_add_up_and_none_adds_nothing():
    logits, observed, weights = rows()
    out_of = weights.where(observed, 0).sum(0)
    whole = calibrator_loss(logits.unbind(1), observed, weights, PAIRS, out_of)
    parts = [
        calibrator_loss(logits[cut].unbind(1), observed[cut], weights[cut], PAIRS, out_of)
        for cut in (slice(0, 5), slice(5, 5), slice(5, 40))
    ]
    torch.testing.assert_close(sum(parts), whole)
    nothing = torch.zeros_like(observed)
    assert calibrator_loss(logits.unbind(1), nothing, weights, PAIRS, torch.zeros(3).double()) == 0


def test_gradients():
    logits, observed, weights = rows(8)
    out_of = weights.where(observed, 0).sum(0)
    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: calibrator_loss(z.unbind(1), observed, weights, PAIRS, out_of), leaf
    )

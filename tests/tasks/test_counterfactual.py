"""ESCM²: formulas against plain ones, no bias where propensities are right, gradients that stay."""

import pytest
import torch
import torch.nn.functional as F

from mmoe.config import TaskConfig
from mmoe.tasks import multi_task_loss
from mmoe.tasks.kinds.binary import (
    doubly_robust,
    doubly_robust_loss,
    imputation_loss,
    imputed_error,
    inverse_propensity,
)
from mmoe.tasks.masked_loss import TaskLosses, loss_sums

CLICK = TaskConfig(name="click", label="c", weight=0.5)
FLOOR, WEIGHT = 0.3, 0.7


def buy(counterfactual):
    return TaskConfig(
        name="buy",
        label="b",
        kind="entire_space",
        after="click",
        **({"counterfactual": counterfactual} if counterfactual else {}),
        **({"counterfactual_weight": WEIGHT, "propensity_floor": FLOOR} if counterfactual else {}),
    )


def funnel(rows=60, dtype=torch.float64):
    """Some labels of either are missing; what is not observed holds NaN."""
    chance = torch.Generator().manual_seed(3)
    logits, weights = 2 * torch.randn(2, rows, 2, generator=chance, dtype=dtype)
    labels = (torch.rand(rows, 2, generator=chance) < 0.5).to(dtype)
    observed = torch.rand(rows, 2, generator=chance) < 0.8
    observed[:, 1] &= observed[:, 0] & (labels[:, 0] == 1)
    imputed = torch.randn(rows, generator=chance, dtype=dtype)
    return logits, labels.where(observed, torch.nan), observed, weights.abs(), imputed


def naive(logits, labels, observed, weights, imputed, counterfactual):
    """The task's loss, row by row as the paper writes it."""
    total, whole = 0.0, 0.0
    for row in range(len(logits)):
        if not observed[row, 0] or (labels[row, 0] == 1 and not observed[row, 1]):
            continue
        click, given = logits[row].sigmoid()
        event = float(labels[row, 0] == 1)
        both = event * float(labels[row, 1] == 1)
        loss = -(both * (click * given).log() + (1 - both) * (1 - click * given).log())
        error = -(given.log() if both else (1 - given).log()) if event else 0.0
        share = max(float(click), FLOOR)
        if counterfactual == "ips":
            loss += WEIGHT * event * error / share
        elif counterfactual == "dr":
            guess = imputed[row].sigmoid()
            thought = -guess * given.log() - (1 - guess) * (1 - given).log()
            loss += WEIGHT * (thought + event * (error - thought) / share)
            loss += WEIGHT * event * (error - thought) ** 2 / share
        total, whole = total + weights[row, 1] * loss, whole + weights[row, 1]
    return total / whole


@pytest.mark.parametrize("counterfactual", [None, "ips", "dr"])
def test_the_loss_is_that_of_the_formulas(counterfactual):
    *batch, imputed = funnel()
    _, found = multi_task_loss(*batch, [CLICK, buy(counterfactual)], imputed={1: imputed})
    torch.testing.assert_close(found[1], naive(*batch, imputed, counterfactual))
    _, swapped = multi_task_loss(
        *(tensor.flip(1) for tensor in batch), [buy(counterfactual), CLICK], imputed={0: imputed}
    )
    torch.testing.assert_close(swapped, found.flip(0))


@pytest.mark.parametrize("counterfactual", ["ips", "dr"])
def test_parts_of_a_batch_add_up(counterfactual):
    *batch, imputed = funnel()
    tasks = [CLICK, buy(counterfactual)]
    whole = multi_task_loss(*batch, tasks, imputed={1: imputed})[0]
    out_of = TaskLosses(tasks).observed_weights(*batch[1:])
    parts = [
        multi_task_loss(
            *(tensor[cut] for tensor in batch), tasks, out_of_T=out_of, imputed={1: imputed[cut]}
        )[0]
        for cut in (slice(0, 7), slice(7, 7), slice(7, 8), slice(8, 60))
    ]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("counterfactual", ["ips", "dr"])
def test_the_event_learns_nothing_from_it(counterfactual):
    logits, labels, observed, weights, imputed = funnel()
    gradients = []
    for asked in (None, counterfactual):
        leaf = logits.clone().requires_grad_()
        sums = loss_sums(leaf, labels, observed, weights, [CLICK, buy(asked)], {1: imputed})
        sums.losses_T.sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0][:, 0], gradients[1][:, 0])
    assert not torch.allclose(gradients[0][:, 1], gradients[1][:, 1])


def test_imputation_and_consequence_learn_each_with_the_other_held_fixed():
    chance = torch.Generator().manual_seed(0)
    logit, z = torch.randn(2, 8, generator=chance, dtype=torch.float64).requires_grad_().unbind()
    event, label = (torch.rand(2, 8, generator=chance) < 0.5).double()
    p = torch.full_like(event, 0.4)
    error = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
    estimate = doubly_robust(error, imputed_error(logit, z.detach()), event, p).sum()
    fit = imputation_loss(error.detach(), imputed_error(logit.detach(), z), event, p).sum()
    both = doubly_robust_loss(logit, label, z, event, p).sum()
    torch.testing.assert_close(both, estimate + fit)
    found = torch.autograd.grad(both, [logit, z], retain_graph=True)
    (of_logit,) = torch.autograd.grad(estimate, [logit], retain_graph=True)
    (of_z,) = torch.autograd.grad(fit, [z])
    torch.testing.assert_close(found, (of_logit, of_z))
    assert of_logit[event == 0].all(), "rows without the event teach it too"


@pytest.mark.parametrize("function", [inverse_propensity, doubly_robust, imputation_loss])
def test_gradients(function):
    chance = torch.Generator().manual_seed(0)
    error, imputed = torch.rand(2, 9, generator=chance, dtype=torch.float64).requires_grad_()
    event, p = (torch.rand(9, generator=chance) < 0.5).double(), torch.full((9,), 0.3).double()
    values = (error,) if function is inverse_propensity else (error, imputed)
    assert torch.autograd.gradcheck(lambda *given: function(*given, event, p), values)
    assert torch.autograd.gradcheck(imputed_error, (error, imputed))


@pytest.mark.parametrize("logit", [-1e4, 1e4])
@pytest.mark.parametrize("counterfactual", ["ips", "dr"])
def test_extreme_logits_stay_finite(logit, counterfactual):
    _, labels, observed, weights, _ = funnel()
    logits = torch.full_like(labels, logit).requires_grad_()
    imputed = {1: torch.full_like(labels[:, 1], -logit)}
    total, _ = multi_task_loss(
        logits, labels, observed, weights, [CLICK, buy(counterfactual)], imputed=imputed
    )
    total.backward()
    assert total.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


def simulated():
    """Rows whose chance of an event and whose error go together, with the events drawn."""
    chance = torch.Generator().manual_seed(11)
    x = torch.randn(400_000, generator=chance, dtype=torch.float64)
    p, error = torch.sigmoid(1.5 * x).clamp(min=0.05), torch.exp(-x) + 0.1
    event = (torch.rand(len(x), generator=chance, dtype=torch.float64) < p).double()
    return x, p, error, event


def of_mean(terms, truth):
    """How many standard errors the mean of the terms is off."""
    return abs(float((terms.mean() - truth.mean()) / (terms - truth).std() * len(terms) ** 0.5))


def test_with_true_propensities_neither_is_biased_and_clicked_rows_alone_are():
    x, p, error, event = simulated()
    assert of_mean(event * error / event.mean(), error) > 50
    assert of_mean(inverse_propensity(error, event, p), error) < 3
    wrong = torch.cos(x) + 1
    assert of_mean(doubly_robust(error, wrong, event, p), error) < 3
    # A true imputation forgives propensities that are wrong
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    halved = (p / 2).clamp(min=0.05)
    assert of_mean(inverse_propensity(error + noise, event, halved), error) > 50
    assert of_mean(doubly_robust(error + noise, error, event, halved), error) < 3


def test_without_imputed_errors_doubly_robust_says_what_it_needs():
    *batch, _ = funnel()
    with pytest.raises(ValueError, match=r"counterfactual is dr, which needs `imputed`.*\(1\)"):
        multi_task_loss(*batch, [CLICK, buy("dr")])

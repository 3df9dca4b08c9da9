"""The multi-task loss against loops and naive probabilities."""

import math

import pytest
import torch

from mmoe.config import TaskConfig
from mmoe.tasks import loss_sums, multi_task_loss

BINARY = [TaskConfig(name="click", label="c", weight=0.5), TaskConfig(name="buy", label="b")]
MIXED = [
    TaskConfig(name="click", label="c", weight=2.0),
    TaskConfig(name="minutes", label="m", kind="regression", weight=0.25),
    TaskConfig(name="like", label="l"),
]


def batch(rows: int, tasks: list[TaskConfig]):
    torch.manual_seed(0)
    shape = (rows, len(tasks))
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 2, shape).double()
    for t, task in enumerate(tasks):
        if task.kind == "regression":
            labels[:, t] = 3 * torch.randn(rows)
    observed = torch.rand(shape) < 0.7
    weights = 2 * torch.rand(shape)
    return logits, labels, observed, weights


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_equals_a_loop_over_rows_and_tasks():
    logits, labels, observed, weights = batch(23, MIXED)
    total, per_task = multi_task_loss(logits, labels, observed, weights, MIXED)
    expected_total = 0.0
    for t, task in enumerate(MIXED):
        losses = norm = 0.0
        for b in range(23):
            if not observed[b, t]:
                continue
            z, y, w = logits[b, t].item(), labels[b, t].item(), weights[b, t].item()
            p = sigmoid(z)
            cross_entropy = -(y * math.log(p) + (1 - y) * math.log(1 - p))
            losses += w * (cross_entropy if task.kind == "binary" else (z - y) ** 2)
            norm += w
        assert per_task[t].item() == pytest.approx(losses / norm, rel=1e-6)
        expected_total += task.weight * losses / norm
    assert total.item() == pytest.approx(expected_total, rel=1e-6)
    assert not per_task.requires_grad


def test_what_is_unobserved_changes_nothing_not_even_nan():
    logits, labels, observed, weights = batch(23, MIXED)
    (grad,) = torch.autograd.grad(
        multi_task_loss(logits, labels, observed, weights, MIXED)[0], logits
    )
    labels, weights = labels.clone(), weights.clone()
    labels[~observed], weights[~observed] = math.nan, math.nan
    total, per_task = multi_task_loss(logits, labels, observed, weights, MIXED)
    assert total.isfinite()
    assert per_task.isfinite().all()
    (same,) = torch.autograd.grad(total, logits)
    assert torch.equal(same, grad)
    assert (grad[~observed] == 0).all()
    assert (grad[observed] != 0).all()


@pytest.mark.parametrize("entire_space", [False, True])
@pytest.mark.parametrize("rows", [0, 5])
def test_a_task_without_observed_rows_adds_exactly_nothing(rows, entire_space):
    logits, labels, observed, weights = batch(rows, BINARY)
    observed[:] = False
    total, per_task = multi_task_loss(
        logits, labels, observed, weights, BINARY, entire_space=entire_space
    )
    assert total == 0
    assert per_task.tolist() == [0, 0]
    (grad,) = torch.autograd.grad(total, logits)
    assert (grad == 0).all()


def test_rows_of_weight_zero_count_as_little_as_unobserved_ones():
    logits, labels, observed, weights = batch(23, BINARY)
    dropped = torch.arange(23) % 3 == 0
    weights[dropped] = 0
    total = multi_task_loss(logits, labels, observed, weights, BINARY)[0]
    kept = [tensor[~dropped] for tensor in (logits, labels, observed, weights)]
    torch.testing.assert_close(total, multi_task_loss(*kept, BINARY)[0])


def test_sums_of_two_halves_are_the_sums_of_the_whole():
    tensors = batch(20, MIXED)
    whole = loss_sums(*tensors, MIXED)
    first = loss_sums(*(tensor[:7] for tensor in tensors), MIXED)
    second = loss_sums(*(tensor[7:] for tensor in tensors), MIXED)
    torch.testing.assert_close(whole.losses_T, first.losses_T + second.losses_T)
    torch.testing.assert_close(whole.weights_T, first.weights_T + second.weights_T)


def funnel(rows: int):
    """Purchase labels exist where there was a click, and one of them is missing."""
    logits, labels, observed, weights = batch(rows, BINARY)
    observed[:, 0] = torch.rand(rows) < 0.8
    observed[:, 1] = observed[:, 0] & (labels[:, 0] == 1)
    observed[observed[:, 1].nonzero()[0], 1] = False
    return logits, torch.where(observed, labels, 0), observed, weights


def test_entire_space_equals_naive_probabilities():
    logits, labels, observed, weights = funnel(40)
    total, per_task = multi_task_loss(logits, labels, observed, weights, BINARY, entire_space=True)
    sums, norms = [0.0, 0.0], [0.0, 0.0]
    for b in range(40):
        if not observed[b, 0]:
            continue
        click, buy = labels[b, 0].item(), labels[b, 1].item()
        p_click = sigmoid(logits[b, 0].item())
        p_both = p_click * sigmoid(logits[b, 1].item())
        w_click, w_both = weights[b].tolist()
        sums[0] -= w_click * math.log(p_click if click else 1 - p_click)
        norms[0] += w_click
        if click and not observed[b, 1]:
            continue  # bought or not: nobody knows
        sums[1] -= w_both * math.log(p_both if click and buy else 1 - p_both)
        norms[1] += w_both
    means = [s / n for s, n in zip(sums, norms, strict=True)]
    torch.testing.assert_close(per_task, torch.tensor(means, dtype=torch.float64))
    assert total.item() == pytest.approx(0.5 * means[0] + 1.0 * means[1])
    assert torch.autograd.gradcheck(
        lambda z: multi_task_loss(z, labels, observed, weights, BINARY, entire_space=True)[0],
        logits,
    )


@pytest.mark.parametrize("entire_space", [False, True])
@pytest.mark.parametrize("value", [200.0, -200.0, 1e4, -1e4])
def test_extreme_logits_stay_finite(value, entire_space):
    logits = torch.full((4, 2), value, requires_grad=True)
    labels = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    observed = torch.ones(4, 2, dtype=torch.bool)
    total, _ = multi_task_loss(
        logits, labels, observed, torch.ones(4, 2), BINARY, entire_space=entire_space
    )
    (grad,) = torch.autograd.grad(total, logits)
    assert total.isfinite()
    assert total > 10
    assert grad.isfinite().all()


def test_narrow_logits_are_computed_in_fp32():
    logits, labels, observed, weights = batch(9, BINARY)
    narrow = logits.detach().bfloat16()
    total, per_task = multi_task_loss(narrow, labels, observed, weights, BINARY)
    assert total.dtype == per_task.dtype == torch.float32
    expected = multi_task_loss(narrow.float(), labels, observed, weights, BINARY)[0]
    assert torch.equal(total, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: torch.zeros(3, 3)}, r"logits_BT: expected shape \[rows, 2\].*got \[3, 3\]"),
        ({1: torch.zeros(2, 2)}, r"labels_BT: expected shape \[3, 2\] as logits_BT, got \[2, 2\]"),
        ({2: torch.zeros(3, 2)}, "observed_BT: expected dtype torch.bool, got torch.float32"),
        ({3: torch.zeros(3)}, r"weights_BT: expected shape \[3, 2\] as logits_BT, got \[3\]"),
    ],
)
def test_errors(change, message):
    tensors = list(batch(3, BINARY))
    for position, tensor in change.items():
        tensors[position] = tensor
    with pytest.raises(ValueError, match=message):
        multi_task_loss(*tensors, BINARY)


def test_entire_space_needs_two_binary_tasks():
    with pytest.raises(ValueError, match=r"esmm needs two binary tasks.*minutes \(regression\)"):
        multi_task_loss(*batch(3, MIXED), MIXED, entire_space=True)

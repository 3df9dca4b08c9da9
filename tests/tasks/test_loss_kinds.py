"""Losses and predictions of kinds beside binary and regression, beside naive versions of both."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mmoe.config import TaskConfig
from mmoe.tasks import loss_sums, multi_task_loss, predictions_from_logits
from mmoe.tasks.kinds import LossRows, objective_of
from mmoe.tasks.predictions import logit_widths, own_logits
from tests.tasks.kinds_log import TASKS

ROWS = 60


def task_of(kind: str, **keys) -> TaskConfig:
    papers = {"negatives": "unwatched"} if kind == "watch_time" else {}
    return TaskConfig(name=kind, kind=kind, **{**TASKS[kind], **papers, **keys})


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def naive_thresholds(z: np.ndarray) -> list[float]:
    """Of a row's logits, the first of which is its own."""
    raw, levels = z[1:], len(z)
    start = [math.log(k / (levels - k)) for k in range(1, levels)]
    theta = [raw[0] + start[0]]
    for j in range(1, levels - 1):
        offset = math.log(math.exp(start[j] - start[j - 1]) - 1)
        theta.append(theta[-1] + math.log(1 + math.exp(raw[j] + offset)))
    return theta


def naive_levels(z: np.ndarray) -> list[float]:
    above = [1, *(sigmoid(z[0] - theta) for theta in naive_thresholds(z)), 0]
    return [above[k] - above[k + 1] for k in range(len(z))]


def softmax(z: np.ndarray) -> list[float]:
    return [math.exp(each) / sum(math.exp(other) for other in z) for each in z]


def naive_ziln(z: np.ndarray, y: float) -> float:
    p, sigma = sigmoid(z[0]), math.log(1 + math.exp(z[2]))
    if y == 0:
        return -math.log(1 - p)
    return -math.log(p) - stats.lognorm.logpdf(y, sigma, scale=math.exp(z[1]))


def naive_huber(z: float, y: float, delta: float = 0.5) -> float:
    error = abs(z - y)
    return error**2 if error <= delta else delta * (2 * error - delta)


def naive_watch(z: float, y: float) -> float:
    return -y * math.log(sigmoid(z)) if y > 0 else -math.log(sigmoid(-z))


# By kind: labels, the loss of a row, its predictions
NAIVE = {
    "huber": (
        lambda g: g.normal(size=ROWS) * 3,
        lambda z, y: naive_huber(z[0], y),
        lambda z: [z[0]],
    ),
    "watch_time": (
        lambda g: g.exponential(20, ROWS) * (g.random(ROWS) < 0.5),
        lambda z, y: naive_watch(z[0], y),
        lambda z: [math.exp(z[0])],
    ),
    "ziln": (
        lambda g: g.exponential(20, ROWS) * (g.random(ROWS) < 0.5),
        naive_ziln,
        lambda z: [
            sigmoid(z[0]) * math.exp(z[1] + math.log(1 + math.exp(z[2])) ** 2 / 2),
            sigmoid(z[0]),
        ],
    ),
    "multiclass": (
        lambda g: g.integers(0, 3, ROWS).astype(float),
        lambda z, y: -math.log(softmax(z)[int(y)]),
        lambda z: [float(np.argmax(z)), *softmax(z)],
    ),
    "ordinal": (
        lambda g: g.integers(1, 6, ROWS).astype(float),
        lambda z, y: -math.log(naive_levels(z)[int(y) - 1]),
        lambda z: [sum(k * p for k, p in enumerate(naive_levels(z), 1)), *naive_levels(z)],
    ),
}


def drawn(kind: str):
    generator = np.random.default_rng(3)
    width = sum(logit_widths([task_of(kind)]))
    logits = torch.from_numpy(generator.normal(size=(ROWS, width)))
    return logits, NAIVE[kind][0](generator)


@pytest.mark.parametrize("kind", NAIVE)
def test_loss_and_predictions_are_the_formula(kind):
    logits, labels = drawn(kind)
    task = task_of(kind)
    [own] = own_logits(logits, [task])
    label_N = torch.from_numpy(labels)
    rows = LossRows([own], label_N, torch.ones(ROWS), label_N[:, None], None, {})
    found = objective_of(kind).loss(0, rows, [task])
    expected = [NAIVE[kind][1](z, y) for z, y in zip(logits.numpy(), labels, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    predicted = predictions_from_logits(logits, [task])
    expected = [NAIVE[kind][2](z) for z in logits.numpy()]
    np.testing.assert_allclose(predicted.numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", NAIVE)
def test_gradients_in_float64(kind):
    logits, labels = drawn(kind)
    task, y = task_of(kind), torch.from_numpy(labels)[:12, None]
    ones, seen = torch.ones_like(y), torch.ones_like(y, dtype=torch.bool)
    logits = logits[:12].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: loss_sums(z, y, seen, ones, [task]).losses_T, (logits,)
    )


@pytest.mark.parametrize("kind", NAIVE)
@pytest.mark.parametrize("size", [80.0])
def test_large_logits_keep_loss_and_gradient_finite(kind, size):
    logits, labels = drawn(kind)
    logits = (logits.sign() * size).float().requires_grad_()
    y = torch.from_numpy(labels)[:, None].float()
    seen, ones = torch.ones_like(y, dtype=torch.bool), torch.ones_like(y)
    total, _ = multi_task_loss(logits, y, seen, ones, [task_of(kind)])
    total.backward()
    assert total.isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("kind", NAIVE)
def test_unobserved_rows_add_nothing(kind):
    logits, labels = drawn(kind)
    y, ones = torch.from_numpy(labels)[:, None], torch.ones(ROWS, 1, dtype=torch.float64)
    seen = torch.arange(ROWS)[:, None] % 3 > 0
    broken = torch.where(seen, y, float("nan"))
    logits.requires_grad_()
    total, _ = multi_task_loss(logits, broken, seen, ones, [task_of(kind)])
    total.backward()
    kept = seen[:, 0]
    part, _ = multi_task_loss(logits[kept], y[kept], seen[kept], ones[kept], [task_of(kind)])
    assert torch.allclose(total, part)
    assert logits.grad.isfinite().all()
    assert (logits.grad[~kept] == 0).all()


def test_watch_time_is_the_mean_time_where_the_docstring_says_so():
    """Of rows alike: the logit that is best, by both negatives."""
    times = torch.tensor([[40.0], [0.0], [0.0], [20.0]], dtype=torch.float64)
    seen, ones = torch.ones_like(times, dtype=torch.bool), torch.ones_like(times)
    for negatives, expected in (("unwatched", 60 / 2), ("all", 60 / 4)):
        task = task_of("watch_time", weight=1, negatives=negatives)
        z = torch.tensor(math.log(expected), dtype=torch.float64, requires_grad=True)
        loss_sums(z.expand(4, 1), times, seen, ones, [task]).losses_T.sum().backward()
        assert abs(float(z.grad)) < 1e-9
        predicted = predictions_from_logits(z.detach().view(1, 1), [task])
        assert float(predicted) == pytest.approx(expected)


def test_ordinal_of_two_levels_is_a_binary_task():
    logits = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task = task_of("ordinal", lowest=0, highest=1)
    like = TaskConfig(name="like", label="like")
    moved = logits[:, :1] - logits[:, 1:]
    predicted = predictions_from_logits(logits, [task])[:, 0]
    assert torch.allclose(predicted, predictions_from_logits(moved, [like])[:, 0])
    y = (torch.arange(20)[:, None] % 2).double()
    seen, ones = torch.ones_like(y, dtype=torch.bool), torch.ones_like(y)
    both = [loss_sums(z, y, seen, ones, [t]).losses_T for z, t in ((logits, task), (moved, like))]
    assert torch.allclose(*both)


def test_ordinal_starts_with_levels_that_are_alike():
    predicted = predictions_from_logits(torch.zeros(1, 5), [task_of("ordinal")])
    assert torch.allclose(predicted[0, 1:], torch.full((5,), 0.2))


def test_several_tasks_are_each_what_they_are_alone():
    tasks = [task_of(kind) for kind in ("ziln", "binary", "ordinal", "regression", "multiclass")]
    widths = logit_widths(tasks)
    assert widths == [3, 1, 5, 1, 3]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, sum(widths), generator=generator)
    together = predictions_from_logits(logits, tasks)
    alone = [
        predictions_from_logits(part, [task])
        for part, task in zip(logits.split(widths, 1), tasks, strict=True)
    ]
    assert torch.equal(together[:, :5], torch.cat([each[:, :1] for each in alone], 1))
    assert torch.equal(together[:, 5:], torch.cat([each[:, 1:] for each in alone], 1))
    with pytest.raises(ValueError, match=r"expected shape \[rows, 13\]"):
        predictions_from_logits(logits[:, 1:], tasks)


@pytest.mark.parametrize(
    ("kind", "logits"),
    [("ziln", (0.0, 5.0, 14.0)), ("ziln", (-200.0, 5.0, 14.0)), ("watch_time", (89.0,))],
)
def test_predictions_far_out_are_numbers(kind, logits):
    tasks = [task_of(kind)]
    assert predictions_from_logits(torch.tensor([logits]), tasks).isfinite().all()


@pytest.mark.parametrize("number", [2**53 + 1, -(2**70)])
def test_classes_that_float64_cannot_tell_apart_are_refused(number):
    with pytest.raises(ValueError, match="told apart up to 2\\^53 alone; write such classes"):
        TaskConfig(name="a", label="a", kind="multiclass", classes=[number, 3])

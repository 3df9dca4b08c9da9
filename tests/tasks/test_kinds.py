"""Kinds of tasks in training: the registry, and a consequence learnt over the entire space."""

import pytest
import torch

from mmoe.config import TASKS, TaskConfig
from mmoe.config.relations import entire_space_tasks
from mmoe.metrics import KINDS
from mmoe.tasks import loss_sums, multi_task_loss, predictions_from_logits
from mmoe.tasks.kinds import objective_of
from mmoe.tasks.masked_loss import TaskLosses

CLICK = TaskConfig(name="click", label="c", weight=0.5)
BUY = TaskConfig(name="buy", label="b", kind="entire_space", observed_when="click")
MINUTES = TaskConfig(name="minutes", label="m", kind="regression")


def funnel(rows: int = 50):
    generator = torch.Generator().manual_seed(1)
    logits, weights = torch.randn(2, rows, 2, generator=generator)
    labels = (torch.rand(rows, 2, generator=generator) < 0.5).float()
    observed = torch.rand(rows, 2, generator=generator) < 0.9
    observed[:, 1] &= observed[:, 0] & (labels[:, 0] == 1)
    return logits, labels.where(observed, 0), observed, weights.abs()


def test_every_kind_can_be_trained():
    assert set(TASKS.names()) == set(KINDS)
    assert objective_of("binary") is objective_of("binary")


def test_entire_space_is_esmm_wherever_its_column_is():
    logits, labels, observed, weights = funnel()
    tasks = entire_space_tasks([CLICK, TaskConfig(name="buy", label="b")])
    expected = loss_sums(logits, labels, observed, weights, tasks)
    order = [1, 0]
    found = loss_sums(
        *(tensor[:, order] for tensor in (logits, labels, observed, weights)), [BUY, CLICK]
    )
    assert torch.equal(found.losses_T[order], expected.losses_T)
    assert torch.equal(found.weights_T[order], expected.weights_T)
    whole_T = TaskLosses([CLICK, BUY]).observed_weights(labels, observed, weights)
    assert torch.equal(whole_T, expected.weights_T)


def test_its_prediction_is_conditional_on_the_event():
    logits = torch.tensor([[0.0, 2.0, 3.0]])
    click, buy, minutes = predictions_from_logits(logits, [CLICK, BUY, MINUTES])[0].tolist()
    assert (click, minutes) == (0.5, 3.0)
    assert buy == pytest.approx(torch.sigmoid(torch.tensor(2.0)).item())


def test_entire_space_without_its_event_is_refused():
    with pytest.raises(ValueError, match=r"task 'buy': kind is entire_space.*got 'click'"):
        multi_task_loss(*(tensor[:, 1:] for tensor in funnel()), [BUY])


def test_entire_space_leaves_other_tasks_alone():
    logits, labels, observed, weights = (
        torch.cat([tensor, tensor[:, :1]], dim=1) for tensor in funnel()
    )
    tasks = [CLICK, BUY, MINUTES]
    _, three_T = multi_task_loss(logits, labels, observed, weights, tasks)
    two = (tensor[:, :2] for tensor in (logits, labels, observed, weights))
    assert torch.equal(three_T[:2], multi_task_loss(*two, tasks[:2])[1])
    alone = (tensor[:, 2:] for tensor in (logits, labels, observed, weights))
    assert torch.equal(three_T[2:], multi_task_loss(*alone, tasks[2:])[1])

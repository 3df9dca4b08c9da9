"""Losses within groups: beside naive loops, in float64, in parts, and what is refused."""

import math

import pytest
import torch

from mmoe.config import TASKS
from mmoe.tasks import multi_task_loss
from mmoe.tasks.kinds import objective_of
from mmoe.tasks.kinds.base import LossRows
from mmoe.tasks.masked_loss import TaskLosses

KINDS = ["bpr", "softmax", "jrc"]
ROWS = 40


def case(seed=0):
    g = torch.Generator().manual_seed(seed)
    z, s = torch.randn(2, ROWS, generator=g, dtype=torch.float64)
    label = (torch.rand(ROWS, generator=g) < 0.4).double()
    weight = torch.rand(ROWS, generator=g, dtype=torch.float64)
    weight[torch.rand(ROWS, generator=g) < 0.2] = 0
    groups = torch.randint(0, 8, (ROWS,), generator=g)
    groups[:3] = torch.tensor([20, 21, 21])  # a group of one, and one of one class
    label[1:3] = 1
    return z, s, label, weight, groups


def naive(kind, z, s, label, weight, groups):
    """The loss of each row's group, by loops over rows."""
    out = [0.0] * len(z)
    for group in set(groups.tolist()):
        rows = [n for n in range(len(z)) if groups[n] == group]
        told = [n for n in rows if weight[n] > 0]
        pos, neg = ([n for n in told if label[n] == y] for y in (1, 0))
        total = weights = 0.0
        if kind == "bpr":
            for i in pos:
                for j in neg:
                    w = float(weight[i] * weight[j])
                    total -= w * math.log(1 / (1 + math.exp(-float(z[i] - z[j]))))
                    weights += w
        elif kind == "softmax" and pos and neg:
            below = sum(math.exp(float(z[n])) for n in told)
            for i in pos:
                total -= float(weight[i]) * math.log(math.exp(float(z[i])) / below)
                weights += float(weight[i])
        elif kind == "jrc":
            for b in told:
                side = 0.5 if label[b] == 1 else -0.5
                f = {n: math.exp(float(s[n] + side * z[n])) for n in told}
                total -= float(weight[b]) * math.log(f[b] / sum(f.values()))
                weights += float(weight[b])
        for n in rows:
            out[n] = total / weights if weights else 0.0
    return torch.tensor(out, dtype=torch.float64)


def task(kind, **keys):
    return TASKS.validate({"kind": kind, "name": "click", "label": "click", **keys})


def logits_of(kind, z, s):
    """What the tower of such a task gives."""
    return torch.stack([z, s], dim=1) if kind == "jrc" else z


def row_losses(kind, logits, label, weight, groups, **keys):
    """As training computes them, of one task."""
    rows = LossRows([logits], label, weight, label[:, None], groups, {})
    return objective_of(kind).loss(0, rows, [task(kind, **keys)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_loops(kind, seed):
    z, s, label, weight, groups = case(seed)
    logits = logits_of(kind, z, s)
    found = objective_of(kind).group_loss(logits, label > 0.5, weight, groups)
    torch.testing.assert_close(found, naive(kind, z, s, label, weight, groups))
    mixed = row_losses(kind, logits, label, weight, groups, pointwise_weight=0.3)
    of_row = torch.nn.functional.binary_cross_entropy_with_logits(z, label, reduction="none")
    torch.testing.assert_close(mixed, 0.3 * of_row + 0.7 * found)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    z, s, label, weight, groups = case()

    def total(z, s):
        logits = logits_of(kind, z, s)
        loss = row_losses(kind, logits, label, weight, groups, pointwise_weight=0.2)
        return (weight * loss).sum()

    z.requires_grad_()
    s.requires_grad_()
    assert torch.autograd.gradcheck(total, (z, s))
    total(z, s).backward()
    assert not z.grad[weight == 0].any(), "rows without a weight take no part"


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_logits_stay_finite(kind):
    z = torch.tensor([1e4, -1e4, 0.0, 88.0, -1e4], requires_grad=True)
    label = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    groups = torch.tensor([0, 0, 0, 1, 1])
    logits = logits_of(kind, z, torch.zeros(5))
    loss = row_losses(kind, logits, label, torch.ones(5), groups)
    loss.sum().backward()
    assert loss.isfinite().all() and z.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_groups_that_tell_nothing(kind, groups):
    """Of one row, or of one class (which tells JRC a little): a loss of 0."""
    z, label = torch.randn(4, requires_grad=True), torch.tensor([1.0, 1.0, 0.0, 0.0])
    logits = logits_of(kind, z, torch.zeros(4))
    loss = objective_of(kind).group_loss(logits, label > 0.5, torch.ones(4), torch.tensor(groups))
    if kind != "jrc" or groups == [0, 1, 2, 3]:
        assert not loss.any()
        loss.sum().backward()
        assert not z.grad.any()


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_whole(kind):
    """As accumulated batches, and as ranks: groups are whole in a part."""
    z, s, label, weight, groups = case()
    order = groups.argsort(stable=True)
    z, s, label, weight, groups = (x[order] for x in (z, s, label, weight, groups))
    cut = int((groups <= 3).sum())
    tasks = [task(kind, pointwise_weight=0.4), TASKS.validate({"name": "b", "label": "b"})]
    observed = (weight > 0)[:, None].expand(-1, 2).contiguous()
    logits = torch.stack([z, s, s] if kind == "jrc" else [z, s], dim=1)
    labels = torch.stack([label, 1 - label], dim=1)
    weights = torch.stack([weight, weight], dim=1)

    def loss(rows, whole=None):
        return multi_task_loss(
            logits[rows], labels[rows], observed[rows], weights[rows], tasks,
            out_of_T=whole, groups_B=groups[rows] - groups[rows].min(),
        )  # fmt: skip

    everything = slice(0, ROWS)
    whole = TaskLosses(tasks).observed_weights(labels, observed, weights)
    total, per_task = loss(everything)
    one, two = loss(slice(0, cut), whole), loss(slice(cut, ROWS), whole)
    torch.testing.assert_close(one[0] + two[0], total)
    torch.testing.assert_close(one[1] + two[1], per_task)


def test_groups_are_asked_for():
    tasks = [task("bpr")]
    rows = torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1).bool(), torch.ones(2, 1)
    with pytest.raises(ValueError, match="task 'click': kind bpr compares rows of one group"):
        multi_task_loss(*rows, tasks)


def test_a_probability_is_that_of_the_first_logit():
    logits = torch.tensor([[0.0, 7.0], [2.0, -3.0]])
    found = objective_of("jrc").predictions(logits, task("jrc"))
    torch.testing.assert_close(found, torch.sigmoid(logits[:, :1]))

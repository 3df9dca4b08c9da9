"""A step on one process asks nobody; a batch may be without rows."""

import pytest
import torch
import torch.distributed as dist

from mmoe.config import config_from_dict, set_values
from mmoe.models.build import build_ranker
from mmoe.parallel import ensure_process_group
from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train.prepare import prepare
from mmoe.train.step import ONE_PROCESS, Step, StepRanks, backward, forward


@pytest.fixture(name="step")
def _step(funnel_config, splits):
    """Losses and gradients of a step with batches of the sizes given."""
    gate = ["model.gate.kind=top_k", "model.gate.balance_loss=0.1", "model.gate.z_loss=0.1"]
    overrides = [*gate, "training.embedding_backend=plain", "model.expert.dropout=0"]
    config = config_from_dict(set_values(funnel_config, overrides))
    data = prepare(config, splits=splits)

    def compute(sizes, ranks=None):
        torch.manual_seed(0)
        ranker = build_ranker(config, data.encoder).train()
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        batches = [
            data.train.held.batch(slice(a, a + n)) for a, n in zip(starts, sizes, strict=True)
        ]
        joined = ONE_PROCESS if ranks is None else ranks(ranker.network)
        step = Step.of(batches)
        forward(ranker, step, TaskLosses(config.trained_tasks), joined)
        losses = backward(step, TaskLosses(config.trained_tasks), joined)
        return losses, [weight.grad for weight in ranker.network.parameters()]

    return compute


def test_a_world_of_one_sends_nothing(step, monkeypatch):
    ensure_process_group()
    expected_losses, expected = step([40])

    def fails(*_, **__):
        raise AssertionError("a collective on one process")

    for name in ("all_reduce", "all_to_all_single", "new_group", "broadcast"):
        monkeypatch.setattr(dist, name, fails)
    losses, found = step([40], StepRanks.of)
    assert losses == expected_losses
    assert all(map(torch.equal, found, expected))


def test_a_batch_without_rows_adds_nothing(step):
    one_losses, one = step([40])
    losses, found = step([0, 40, 0])
    assert losses == one_losses
    assert all(map(torch.equal, found, one))


def test_a_step_without_rows_has_gradients_of_zero(step):
    """As the rank of several needs it whose part of a batch is empty."""
    for sizes in ([0], [0, 0]):
        losses, found = step(sizes)
        assert losses.losses == losses.rows == [0.0, 0.0]
        assert all(grad is not None and not grad.any() for grad in found)

"""Tasks' gradients on shared layers: against autograd by hand, and what they must not touch."""

import copy

import numpy as np
import pyarrow as pa
import pytest
import torch

from mmoe.config import config_from_dict, set_values
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.explain.gradients import gradient_cosines
from mmoe.models.build import build_ranker
from mmoe.run.console import SilentReporter
from mmoe.tasks import multi_task_loss


def _made(funnel_config, table, *settings):
    """A model with fresh weights, its config and rows."""
    config = config_from_dict(set_values(funnel_config, list(settings)))
    encoder = FeatureEncoder.fit(config, table, "log")
    torch.manual_seed(4)
    ranker = build_ranker(config, encoder).eval()
    return ranker, config, BatchSource.of_table(table, encoder, "log", config)


def _loss(ranker, config, batch, task):
    """The mean loss of one task alone, from the whole ranker."""
    output = ranker(batch)
    only = torch.zeros_like(batch.observed_BT)
    only[:, task] = batch.observed_BT[:, task]
    total, _ = multi_task_loss(
        output.logits_BT, batch.labels_BT, only, batch.weights_BT, config.trained_tasks
    )
    return total


def test_numbers_are_those_of_gradients_taken_by_hand(funnel_config, funnel_table):
    table = funnel_table[:600]
    ranker, config, rows = _made(funnel_config, table, "training.batch_size=75")
    found = gradient_cosines(ranker, config, rows, SilentReporter())
    data, size = rows.held, 75
    model = copy.deepcopy(ranker)
    shared = [
        weight
        for name, weight in model.network.named_parameters()
        if name.startswith("levels.0.mixture.experts.")
    ]
    cosines = []
    for start in range(0, 600, size):
        batch = data.batch(slice(start, start + size))
        grads = [torch.autograd.grad(_loss(model, config, batch, t), shared) for t in range(2)]
        flat = [torch.cat([g.flatten() for g in of_task]) for of_task in grads]
        cosines.append(float(torch.cosine_similarity(flat[0], flat[1], dim=0)))
    assert found["batches"] == len(cosines) == 8
    assert found["cosine"][0][1] == pytest.approx(np.mean(cosines), abs=1e-4)
    assert found["cosine"][0][0] == pytest.approx(1, abs=1e-6)


def test_nothing_of_the_model_is_changed(funnel_config, funnel_table):
    ranker, config, rows = _made(funnel_config, funnel_table[:400], "model.kind=ple")
    before = copy.deepcopy(ranker.state_dict())
    asked = [weight.requires_grad for weight in ranker.parameters()]
    one, two = (gradient_cosines(ranker, config, rows, SilentReporter()) for _ in range(2))
    assert one == two
    assert all(torch.equal(value, before[name]) for name, value in ranker.state_dict().items())
    assert [weight.requires_grad for weight in ranker.parameters()] == asked
    assert all(weight.grad is None for weight in ranker.parameters())


def test_experts_that_one_task_reads_alone_are_no_shared_layer(funnel_config, funnel_table):
    """Of CGC's experts the shared ones count: the others would make any cosine smaller."""
    ranker, config, rows = _made(
        funnel_config, funnel_table[:800], "model.kind=cgc", "model.shared_experts=1"
    )
    found = gradient_cosines(ranker, config, rows, SilentReporter())
    model, size = copy.deepcopy(ranker), 100
    weights = [
        weight
        for name, weight in model.network.named_parameters()
        if name.startswith("levels.0.mixture.experts.")
    ]
    of_all, of_shared = [], []
    for start in range(0, 800, size):
        batch = rows.held.batch(slice(start, start + size))
        grads = [torch.autograd.grad(_loss(model, config, batch, t), weights) for t in range(2)]
        for found_by, last in ((of_all, 0), (of_shared, 4)):  # four are own ones, the fifth shared
            flat = [torch.cat([g[last:].flatten() for g in of_task]) for of_task in grads]
            found_by.append(float(torch.cosine_similarity(*flat, dim=0)))
    assert found["cosine"][0][1] == pytest.approx(np.mean(of_shared), abs=1e-4)
    assert abs(np.mean(of_all) - np.mean(of_shared)) > 1e-3


def test_a_task_without_labels_or_alone_has_no_numbers(funnel_config, funnel_table):
    table = funnel_table[:400]
    table = table.set_column(table.column_names.index("click"), "click", pa.array([0] * 400))
    ranker, config, rows = _made(funnel_config, table)
    found = gradient_cosines(ranker, config, rows, SilentReporter())
    assert found["cosine"][1] == [None, None] and found["cosine"][0][0] is not None
    raw = {**funnel_config, "tasks": funnel_config["tasks"][:1]}
    ranker, config, rows = _made(raw, funnel_table[:400])
    with pytest.raises(ValueError, match="expected two tasks or more that share a layer, got 1"):
        gradient_cosines(ranker, config, rows, SilentReporter())

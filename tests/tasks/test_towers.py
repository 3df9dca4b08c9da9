"""Towers: formula, start, precision."""

import pytest
import torch

from mmoe.config import ModelConfig, TaskConfig
from mmoe.models import build_network
from mmoe.models.build import widen_towers
from mmoe.tasks import TaskTowers, Tower


@pytest.mark.parametrize("hidden", [[], [5], [5, 3]])
def test_tower_equals_its_formula(hidden):
    torch.manual_seed(0)
    tower, x = Tower(4, hidden), torch.randn(6, 4)
    torch.nn.init.constant_(tower.logit.bias, 0.5)
    h = x
    for layer in tower.mlp.layers:
        h = torch.relu(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(tower(x), (h @ tower.logit.weight.T)[:, 0] + 0.5)


def test_last_layer_starts_without_bias_and_with_logits_of_order_one():
    torch.manual_seed(0)
    towers = [Tower(64, [64]) for _ in range(200)]
    assert all((tower.logit.bias == 0).all() for tower in towers)
    logits = torch.stack([tower(torch.randn(1, 64)) for tower in towers])
    assert 0.5 < logits.std() < 2


def test_logits_keep_fp32_under_autocast():
    torch.manual_seed(0)
    tower, x = Tower(64, [64]), torch.randn(1000, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits = tower(x)
    assert logits.dtype == torch.float32
    assert logits.unique().numel() > 990


def test_task_towers_are_separate():
    torch.manual_seed(0)
    towers = TaskTowers(2, 4, [3])
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    torch.testing.assert_close(towers([a, b]), torch.stack([towers[0](a), towers[1](b)], 1))
    towers([a, b])[:, 1].sum().backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in towers[0].parameters())
    with pytest.raises(ValueError, match="inputs: expected 2 tensors, one per task, got 1"):
        towers([a])


def test_columns_of_several_towers():
    towers = TaskTowers(3, 16, [8])
    assert towers.columns.is_plain
    towers[0].widen(3)
    towers[2].widen(1, 2)
    assert towers.columns == ([0, 3, 4], [[0, 1, 2], [3], [4]], 7)
    assert not towers.columns.is_plain
    h = torch.randn(5, 16)
    logits = towers([h, h, h])
    assert logits.shape == (5, 7)
    assert torch.equal(logits[:, 3], towers[1](h))
    assert (logits[:, 5:] == 0).all()  # constants, not trained yet
    logits[:, 6].sum().backward()
    assert towers[2].constants_J.grad.tolist() == [0, 5]


def test_a_tower_of_ones_own_cannot_be_widened():
    network = build_network(ModelConfig(), 3, ["click", "stars"])
    network.towers = TaskTowers.of([torch.nn.Identity(), torch.nn.Identity()])
    tasks = [
        TaskConfig(name="click", label="click"),
        TaskConfig(name="stars", label="stars", kind="ordinal", lowest=1, highest=5),
    ]
    message = "task 'stars': kind ordinal needs 5 logits of a row, but model.tower makes a Identity"
    with pytest.raises(ValueError, match=message):
        widen_towers(network, tasks)

"""Towers: formula, start, precision."""

import pytest
import torch

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


@pytest.mark.parametrize("hidden", [[], [5]])
def test_a_row_keeps_its_bits_at_any_height(hidden):
    torch.manual_seed(0)
    tower, x = Tower(66, hidden, activation="silu").eval(), torch.randn(300, 66)
    with torch.no_grad():
        logits = tower(x)
        for rows in (1, 2, 3, 5, 100):
            assert torch.equal(tower(x[:rows]), logits[:rows])
            assert torch.equal(tower(x[-rows:]), logits[-rows:])

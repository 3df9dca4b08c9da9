"""Towers computed together: what a loop over them gives, whatever they are."""

import pytest
import torch
from torch import nn

from mmoe.tasks import TaskTowers, Tower
from mmoe.tasks import towers as alike
from mmoe.tasks.towers import logits_of_towers
from tests.needs_kernels import needs_kernels


class OwnLinear(nn.Linear):
    """A layer that a user has put into a tower."""

    def forward(self, x):
        return 2 * super().forward(x)


def made(tasks=5, hidden=(7,), dtype=torch.float32, **settings):
    torch.manual_seed(0)
    towers = TaskTowers(tasks, 6, hidden, **settings).to(dtype)
    for parameter in towers.parameters():
        nn.init.normal_(parameter, std=0.5)  # biases too
    return towers


def rows(tasks=5, height=9, dtype=torch.float32):
    """`h_BTO` as a mixture leaves it: a task's rows side by side."""
    torch.manual_seed(1)
    return torch.randn(tasks, height, 6, dtype=dtype).transpose(0, 1)


def looped(towers, inputs):
    return towers.joined([tower(h) for tower, h in zip(towers, inputs, strict=True)])


def gradients(logits, towers, h_BTO):
    wanted = [h_BTO, *towers.parameters()]
    torch.manual_seed(2)
    return torch.autograd.grad(logits, wanted, torch.randn_like(logits))


@pytest.fixture
def calls(monkeypatch):
    """How many towers each call of the shared way had."""
    counted, real = [], alike._logits_of_alike

    def counting(towers, inputs):
        counted.append(len(towers))
        return real(towers, inputs)

    monkeypatch.setattr(alike, "_logits_of_alike", counting)
    return counted


@needs_kernels
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("hidden", [[], [7], [7, 4]])
def test_outputs_and_gradients_are_those_of_a_loop(hidden, activation, training, calls):
    towers = made(hidden=hidden, dtype=torch.float64, activation=activation).train(training)
    h_BTO = rows(dtype=torch.float64).requires_grad_()
    expected = looped(towers, h_BTO.unbind(1))
    wanted = gradients(expected, towers, h_BTO)

    for inputs in (h_BTO, h_BTO.unbind(1)):
        logits = towers(inputs)

        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(gradients(logits, towers, h_BTO), wanted)
    assert calls == [5, 5]


@needs_kernels
@pytest.mark.parametrize("hidden", [[], [4]])
def test_gradcheck(hidden):
    towers = made(3, hidden, torch.float64)
    h_BTO = rows(3, 4, torch.float64).requires_grad_()
    names = [name for name, _ in towers.named_parameters()]

    def logits(h_BTO, *values):
        return torch.func.functional_call(towers, dict(zip(names, values, strict=True)), (h_BTO,))

    assert torch.autograd.gradcheck(logits, (h_BTO, *towers.parameters()))


@needs_kernels
def test_a_score_has_the_bits_of_its_tower_alone_at_any_height():
    towers, h_BTO = made(hidden=[67]).eval(), rows(height=131)
    with torch.inference_mode():
        logits = towers(h_BTO)
        assert torch.equal(logits, looped(towers, h_BTO.unbind(1)))
        for height in (1, 2, 63):
            assert torch.equal(towers(h_BTO[:height]), logits[:height])
            assert torch.equal(towers(h_BTO[-height:]), logits[-height:])


@needs_kernels
def test_rows_of_all_tasks_that_are_one_tensor_are_read_once(calls):
    towers, h_BO = made(dtype=torch.float64), rows(1, dtype=torch.float64)[:, 0].requires_grad_()
    expected = looped(towers, [h_BO] * 5)

    logits = towers([h_BO] * 5)

    torch.testing.assert_close(logits, expected)
    wanted = gradients(expected, towers, h_BO)
    torch.testing.assert_close(gradients(logits, towers, h_BO), wanted)
    assert calls == [5]


@needs_kernels
def test_autocast_rounds_hidden_layers_and_no_logits(calls):
    towers, h_BTO = made(hidden=[64]), rows(height=500)
    with torch.autocast("cpu", torch.bfloat16):
        logits = towers(h_BTO)
        expected = looped(towers, h_BTO.unbind(1))
    assert logits.dtype == torch.float32
    assert logits[:, 0].unique().numel() > 490
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    logits.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in towers.parameters())
    assert calls == [5]


@needs_kernels
def test_other_towers_are_computed_one_by_one(calls):
    """Of their own class, form or columns, watched by a hook, or with a layer of another kind."""
    towers = made(10)
    towers[1] = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    towers[2] = Tower(6, [3])
    towers[3].widen(2)
    towers[9].widen(2)
    towers[4].widen(1, 2)
    seen = []
    towers[5].mlp.register_forward_hook(lambda *_: seen.append(1))
    towers[6].mlp.layers[0] = OwnLinear(6, 7)
    h_BTO = rows(10)
    expected = looped(towers, h_BTO.unbind(1))
    seen.clear()

    logits = towers(h_BTO)

    torch.testing.assert_close(logits, expected)
    assert logits.shape == (9, 10 + 1 + 1 + 2)
    assert seen == [1]
    assert calls == [3]


def test_without_kernels_towers_are_computed_one_by_one(monkeypatch, calls):
    monkeypatch.setattr(alike, "HAS_KERNELS", False)
    towers, h_BTO = made(), rows()
    assert torch.equal(towers(h_BTO), looped(towers, h_BTO.unbind(1)))
    assert calls == []


@needs_kernels
def test_frozen_towers_stay_and_the_others_learn():
    towers, h_BTO = made(), rows()
    towers[1].requires_grad_(False)
    towers(h_BTO).sum().backward()
    assert [all(p.grad is not None for p in tower.parameters()) for tower in towers] == [
        True, False, True, True, True,
    ]  # fmt: skip
    assert all(parameter.grad is None for parameter in towers[1].parameters())


@needs_kernels
def test_dropout_drops_units_of_each_tower_and_repeats_with_its_seed():
    towers, h_BTO = made(hidden=[64], dropout=0.5), rows()
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(towers(h_BTO))
    assert torch.equal(*found)
    assert not torch.equal(found[0], towers(h_BTO))
    towers.eval()
    assert torch.equal(towers(h_BTO), towers(h_BTO))


def test_another_number_of_inputs_is_refused():
    with pytest.raises(ValueError, match="inputs: expected 5 tensors, one per task, got 4"):
        made()(rows(4))


def test_no_rows_give_no_logits():
    assert made()(rows(height=0)).shape == (0, 5)
    assert len(logits_of_towers([], [])) == 0

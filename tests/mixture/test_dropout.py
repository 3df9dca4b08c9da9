"""Dropout of the library's own: as torch's, but for which entries are drawn."""

import pytest
import torch

from mmoe.mixture.experts.mlp import fast_dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_share_and_the_scale(probability, dtype):
    torch.manual_seed(0)
    y = fast_dropout(torch.full((200, 501), 2.0, dtype=dtype), probability, training=True)
    assert y.dtype == dtype
    zero = y == 0
    assert zero.double().mean().item() == pytest.approx(probability, abs=0.005)
    assert (y[~zero] == y[~zero][0]).all()
    assert y[~zero][0].item() == pytest.approx(2 / (1 - probability), rel=0.01)
    for lane in range(4):  # four entries share a draw
        share = zero.flatten()[lane::4].double().mean().item()
        assert share == pytest.approx(probability, abs=0.01)
    flat = zero.flatten().double() - probability
    for apart in (1, 2, 3, 4):
        assert abs((flat[apart:] * flat[:-apart]).mean().item()) < 0.005


def test_the_gradient_is_that_of_the_entries_kept():
    x = torch.randn(31, 7, dtype=torch.float64, requires_grad=True)
    y = fast_dropout(x, 0.3, training=True)
    y.sum().backward()
    expected = torch.where(y == 0, 0.0, torch.tensor(1 / 0.7, dtype=torch.float64))
    torch.testing.assert_close(x.grad, expected)


def test_the_same_seed_draws_the_same():
    x = torch.ones(50, 3)
    first, second = (
        (torch.manual_seed(3), fast_dropout(x, 0.5, training=True))[1] for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, fast_dropout(x, 0.5, training=True))


@pytest.mark.parametrize("shape", [(0, 4), (1,), (3, 0)])
def test_shapes_of_few_entries(shape):
    assert fast_dropout(torch.ones(shape), 0.5, training=True).shape == shape


def test_without_training_nothing_is_drawn():
    x, before = torch.ones(5), torch.get_rng_state()
    assert fast_dropout(x, 0.5, training=False) is x
    assert fast_dropout(x, 0.0, training=True) is x
    assert torch.equal(before, torch.get_rng_state())


def test_next_to_all_are_zeroed_where_the_probability_is_next_to_1():
    torch.manual_seed(0)
    assert (fast_dropout(torch.ones(100_000), 0.99999, training=True) > 0).float().mean() < 0.001

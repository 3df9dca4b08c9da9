"""Which tensors are pieces, and of what."""

import pytest
import torch

from mmoe.mixture import ExpertPool, MultiGateMixture, mlp_experts
from mmoe.parallel import (
    AllToAllDispatcher,
    ExpertPlacement,
    ensure_process_group,
    expert_shards,
    replicated_parameters,
    spread_parameters,
)


@pytest.fixture(name="layer")
def _layer():
    """All experts on one rank, which computes them in an order of its own."""
    ensure_process_group()
    placement = ExpertPlacement(((2, 3, 0, 1),))
    pool = mlp_experts(4, 6, [5, 3], norm="batch")
    return MultiGateMixture(
        6, 2, pool.part(placement.on(0)), dispatcher=AllToAllDispatcher(placement)
    )


def test_experts_that_are_no_neighbours_are_several_pieces(layer):
    described = expert_shards(layer, layer.state_dict())
    assert list(described) == list(layer.state_dict())
    for name, value in described.items():
        if name.startswith("experts."):
            tensor = layer.state_dict()[name]
            first, second = value
            assert first.shape == second.shape == tuple(tensor.shape)
            assert (first.offsets[0], second.offsets[0]) == (2, 0)
            assert {*first.offsets[1:], *second.offsets[1:]} <= {0}
            assert torch.equal(torch.cat([first.tensor, second.tensor]), tensor)
        else:
            assert isinstance(value, torch.Tensor), name
    assert described["experts.norms.0.running_mean"][0].shape == (4, 5)


def test_what_is_loaded_into_a_piece_is_loaded_into_the_network(layer):
    described = expert_shards(layer, layer.state_dict())
    for shard in described["experts.weights.0"]:
        shard.tensor.fill_(shard.offsets[0])
    assert layer.experts.weights[0][:, 0, 0].tolist() == [2, 2, 0, 0]


def test_moments_are_pieces_and_their_step_is_not(layer):
    weight = layer.experts.weights[0]
    moments = {
        "experts.weights.0/exp_avg": torch.zeros_like(weight),
        "experts.weights.0/step": torch.tensor(3.0),
        "gate.logits.weights.0/exp_avg": torch.zeros(2, 4, 6),
    }
    described = expert_shards(layer, moments)
    assert [isinstance(value, list) for value in described.values()] == [True, False, False]


def test_parameters_are_spread_or_replicated(layer):
    spread, replicated = spread_parameters(layer), replicated_parameters(layer)
    assert {id(w) for w in spread} == {id(w) for w in layer.experts.parameters()}
    assert len(spread) + len(replicated) == len(list(layer.parameters()))


def test_modules_as_experts_have_no_pieces():
    ensure_process_group()
    pool = ExpertPool([torch.nn.Linear(6, 3) for _ in range(4)])
    layer = MultiGateMixture(6, 2, pool, dispatcher=AllToAllDispatcher(ExpertPlacement.even(4, 1)))
    with pytest.raises(ValueError, match="experts: expected a pool that says along which dim"):
        expert_shards(layer, layer.state_dict())

"""Which tensors are pieces, and of what."""

import pytest
import torch

from mmoe.mixture import ExpertPool, MixedExperts, MLPExperts, MultiGateMixture, Pool
from mmoe.mixture.axes import axes_of
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
    pool = MLPExperts(4, 6, [5, 3], norm="batch")
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


@pytest.fixture(name="modules")
def _modules():
    """Experts with a single number, an integer and a matrix of their own shape each."""
    return ExpertPool([Scaled(width) for width in (2, 5, 3, 4)])


class Scaled(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, width), torch.nn.Linear(width, 3)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("seen", torch.tensor(width))

    def forward(self, x):
        return self.scale * self.last(self.first(x).relu())


def _on_one_rank(pool, *order):
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement((order,)))
    return MultiGateMixture(6, 2, pool, dispatcher=dispatcher)


def test_tensors_of_one_expert_are_whole_pieces_under_its_number(modules):
    layer = _on_one_rank(modules.part([2, 3, 0, 1]), 2, 3, 0, 1)
    described = expert_shards(layer, layer.state_dict())
    for name, tensor in modules.state_dict().items():
        (shard,) = described[f"experts.{name}"]
        assert torch.equal(shard.tensor, tensor) and tuple(shard.shape) == tuple(tensor.shape)
        assert not any(shard.offsets)
    moments = {"experts.3.scale/step": torch.tensor(2.0), "gate.bias/step": torch.tensor(2.0)}
    described = expert_shards(layer, moments)
    assert [isinstance(value, list) for value in described.values()] == [True, False]


def test_a_mixed_pool_has_both_kinds_of_pieces(modules):
    pool = MixedExperts([MLPExperts(2, 6, [3]), ExpertPool(modules, output_dim=3)])
    axes = axes_of(pool, {"experts": range(6)}).values()
    assert {own.owner("experts") for own in axes} == {None, 2, 3, 4, 5}
    layer = _on_one_rank(pool.part([1, 0, 5, 3, 2, 4]), 1, 0, 5, 3, 2, 4)
    described = expert_shards(layer, layer.state_dict())
    assert [s.offsets[0] for s in described["experts.pools.0.weights.0"]] == [1, 0]
    assert list(described["experts.pools.1.3.first.weight"][0].shape) == [4, 6]


def test_experts_under_numbers_of_others_are_refused(modules):
    layer = _on_one_rank(ExpertPool(modules, numbers=[2, 3, 4, 5]), 0, 1, 2, 3)
    with pytest.raises(ValueError, match=r"numbers=placement.on\(rank\)") as error:
        expert_shards(layer, layer.state_dict())
    assert "[0, 1, 2, 3], which the dispatcher places on this rank, got those of [4, 5]" in str(
        error.value
    )


def test_a_pool_that_does_not_tell_is_refused():
    class Silent(Pool):
        output_dim = 3

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 3)

        def __len__(self):
            return 4

        def dense(self, inputs):
            return [self.linear(x) for x in inputs] * 4

        def grouped(self, rows, offsets_E1):
            return self.linear(rows)

    layer = _on_one_rank(Silent(), 0, 1, 2, 3)
    with pytest.raises(ValueError, match="experts: expected a pool that says along which dim"):
        expert_shards(layer, layer.state_dict())

"""What pools, gates and dispatchers say of themselves, and what of them is missing."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    DispatcherTraits,
    ExpertPool,
    GateOutput,
    GateTraits,
    LocalDispatcher,
    MLPExperts,
    MultiGateMixture,
    PoolTraits,
)
from mmoe.mixture.traits import traits_of

D, G, E = 4, 2, 3


class FirstTwo(nn.Module):
    """A gate of somebody's own."""

    def forward(self, inputs, visibility_GE):
        picks = torch.tensor([0, 1], dtype=torch.int32).expand(len(inputs[0]), G, 2)
        return GateOutput(torch.full(picks.shape, 0.5), picks)


def gate_with(**said) -> FirstTwo:
    gate = FirstTwo()
    for name, value in said.items():
        setattr(gate, name, value)
    return gate


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, GateTraits()),
        ({"k": 2, "capacity": Capacity(2.0)}, GateTraits(k=2, capacity=Capacity(2.0))),
        ({"traits": GateTraits(k=2)}, GateTraits(k=2)),
        ({"traits": GateTraits(k=3), "k": 2}, GateTraits(k=2)),
        ({"traits": "of another kind"}, GateTraits()),
    ],
)
def test_a_gate_of_ones_own_may_say_how_it_picks(said, expected):
    gate = gate_with(**said)
    assert traits_of(gate, GateTraits) == expected
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [5]), gate=gate)
    assert (layer.policy.k, layer.capacity) == (expected.k, expected.capacity)
    assert layer(torch.zeros(3, D)).out_BGO.shape == (3, G, 5)


def test_a_k_that_is_no_number_is_something_else_of_the_gates():
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [5]), gate=gate_with(k=nn.Linear(1, 1)))
    assert layer.policy.k is None


def test_a_pool_of_ones_own_may_say_how_it_may_be_run():
    class Bound(ExpertPool):
        traits = PoolTraits(uses_batch=True)

    pool = Bound([nn.Linear(D, 5) for _ in range(E)])
    layer = MultiGateMixture(D, G, pool, gate=FirstTwo(), execution="dense")
    with pytest.raises(ValueError, match="execution: dense shows every expert all rows"):
        layer(torch.zeros(3, D))


def test_a_dispatcher_that_says_nothing_places_what_the_mixture_says():
    class Plain(LocalDispatcher):
        pass

    assert traits_of(Plain(), DispatcherTraits) == DispatcherTraits()
    layer = MultiGateMixture(
        D,
        G,
        MLPExperts(E, D, [5]),
        gate=FirstTwo(),
        dispatcher=Plain(),
        visibility=[[True] * E] * G,
    )
    assert layer.num_experts == E and not layer.policy.overlaps

"""What modules say of the dimensions of their tensors, put together."""

import pytest
import torch
from torch import nn

from mmoe.config import ModelConfig
from mmoe.config.gates import GATES
from mmoe.mixture import ExpertPool, MixedExperts, MLPExperts, MultiGateMixture
from mmoe.mixture.axes import Entry, axes_of
from mmoe.models import build_network


class Blind(nn.Module):
    """A gate that says nothing."""

    def __init__(self):
        super().__init__()
        self.scores, self.total = nn.Parameter(torch.zeros(2, 5)), nn.Parameter(torch.zeros(()))

    def forward(self, inputs, visibility_GE):
        raise AssertionError("not called")


class Told(Blind):
    """One that says what its dimensions are."""

    def axes(self):
        return {"scores": {0: "gates", 1: "experts"}}


@pytest.mark.parametrize("gate", [Blind, Told])
def test_a_gate_of_ones_own(gate):
    layer = MultiGateMixture(4, 2, MLPExperts(5, 4, [3]), gate=gate())
    axes = axes_of(layer, {"gates": ["a", "b"], "experts": range(5)})
    more = {1: ("experts", (0, 1, 2, 3, 4))} if gate is Told else {}
    assert axes["gate.scores"].dims == {0: ("gates", ("a", "b")), **more}
    assert axes["gate.scores"].said == axes["gate.total"].said == (gate is Told)
    assert not axes["gate.total"].dims


def test_pools_of_several_kinds_and_stages():
    modules = ExpertPool([nn.Linear(4, 3) for _ in range(2)])
    pool = MixedExperts([MLPExperts(2, 4, [3]), modules])
    names = {"experts": ["a", "b", "c", "d", "e"], "inputs": ["x", "y", "z", "u", "v"]}
    staged = MixedExperts([pool, MLPExperts(1, 5, [3])], columns=[[4, 0, 1, 2], None])
    axes = axes_of(staged, names)
    assert axes["pools.1.weights.0"].dims == {
        0: ("experts", ("e",)),
        1: ("inputs", ("x", "y", "z", "u", "v")),
    }
    first = axes["pools.0.pools.0.weights.0"]
    assert first.entries("experts") == ("a", "b")
    assert first.entries("inputs") == ("v", "x", "y", "z")
    # As it was called when it was a pool of its own
    assert first.path == axes_of(pool, names)["pools.0.weights.0"].path
    alone = axes["pools.0.pools.1.1.weight"]
    assert alone.owner("experts") == "d" and alone.dim("experts") is None
    assert alone.path == (Entry("experts", "d"), "weight")


@pytest.mark.parametrize("kind", GATES.names())
def test_every_gate_has_as_many_names_as_entries(kind):
    config = GATES.config_class(kind)
    gate = {"kind": kind, **({"k": 2} if "k" in config.model_fields else {})}
    model = ModelConfig(num_experts=4, gate=gate, tower={"hidden": []})
    network = build_network(model, 6, ["click", "like"])
    names = {"tasks": ["click", "like"], "inputs": list("abcdef"), "domains": ["m"]}
    for name, axes in axes_of(network, names).items():
        shape = network.state_dict()[name].shape
        assert {dim: len(own) for dim, (_, own) in axes.dims.items()}.items() <= dict(
            enumerate(shape)
        ).items(), name
        if ".gate." in name:
            assert axes.entries("gates") == ("click", "like")
            assert axes.dim("experts") is not None or kind in ("dselect_k", "cosine")
        if name.startswith("towers."):
            assert axes.owner("tasks") == ["click", "like"][int(name.split(".")[1])]

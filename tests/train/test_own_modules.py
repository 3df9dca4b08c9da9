"""Gates and towers of one's own in a warm start: what they have to say of their tensors."""

import math

import pytest
import torch
from torch import nn

from mmoe.config import ModelConfig, config_from_dict
from mmoe.models import build_network
from mmoe.tasks import TaskTowers
from mmoe.train.warm_start.places import NamedNetwork, tensor_sources
from mmoe.train.warm_start.transfer import bias_shifts


class SilentGate(nn.Module):
    """A gate of one's own, which does not say where it has its experts."""

    def __init__(self, num_gates, num_experts):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_gates, num_experts))


@pytest.mark.parametrize(("experts", "refused"), [(["shared", "own"], True), (["own"], False)])
def test_experts_of_a_gate_that_says_nothing_stay_as_they_are(experts, refused):
    """Of as many experts, one is another: by sizes alone it would get the earlier one's scores."""
    now, before = (build_network(ModelConfig(num_experts=len(experts)), 3, ["a"]) for _ in "xy")
    for network, names in ((now, experts), (before, ["own", "shared"][: len(experts)])):
        level = network.levels[0]
        level.mixture.gate, level.expert_names = SilentGate(1, len(experts)), tuple(names)
    pair = [
        NamedNetwork(network, {"tasks": ["a"], "inputs": list("xyz")}) for network in (now, before)
    ]
    if not refused:
        assert tensor_sources(*pair)["levels.0.mixture.gate.scores"].carries
        return
    with pytest.raises(
        ValueError, match=r"SilentGate does not say .* 'levels.0.mixture.gate.scores'"
    ):
        tensor_sources(*pair)


class OwnTower(nn.Linear):
    """A tower of one's own, which says what its bias is added to."""

    def axes(self):
        return {"bias": {0: "logits"}}


def test_another_sampling_rate_moves_the_bias_of_the_towers_logit():
    def config(rate):
        task = {"name": "a", "label": "a", "negative_sampling_rate": rate}
        other = {"name": "b", "label": "b"}
        return config_from_dict(
            {"features": [{"kind": "numeric", "name": "x"}], "tasks": [other, task]}
        )

    network = build_network(config(0.1).model, 1, ["b", "a"])
    named = NamedNetwork(network, {"tasks": ["b", "a"], "inputs": ["x"]})
    for towers, bias in ((None, "towers.1.logit.bias"), ([OwnTower(64, 1)] * 2, "towers.1.bias")):
        network.towers = network.towers if towers is None else TaskTowers.of(towers)
        shifts = bias_shifts(named, config(0.5), config(0.1))
        assert shifts == {bias: pytest.approx(math.log(5))}
    network.towers = TaskTowers.of([nn.Linear(64, 1) for _ in "ba"])
    with pytest.raises(
        ValueError, match=r"tasks\.a\.negative_sampling_rate changed, .* keep the rate"
    ):
        bias_shifts(named, config(0.5), config(0.1))

"""MultiGateMixture: other dispatchers, and what it refuses."""

import pytest
import torch
from torch import nn

from mmoe.mixture import MLP, GateOutput, MultiGateMixture, TopKGate, mlp_experts

B, D, H, G, E = 9, 6, 5, 3, 4
VISIBILITY = [[True, True, True, False], [True, False, True, True], [False, True, True, False]]


class TakesAll:
    """A dispatcher that is not the local one."""

    def dispatch(self, sources, plan):
        return sources[0], torch.tensor([0, len(sources[0])], dtype=torch.int32), plan

    def combine(self, y_RO, handle):
        return y_RO[:, None].expand(-1, handle.experts_BGK.shape[1], -1)


def test_another_dispatcher_may_keep_experts_elsewhere():
    expert = MLP(D, [H])
    layer = MultiGateMixture(
        D, G, [expert], dispatcher=TakesAll(), visibility=torch.ones(G, 8, dtype=torch.bool)
    )
    assert layer.num_experts == 8
    assert layer.execution == "grouped"
    x = torch.randn(B, D)
    torch.testing.assert_close(layer(x).out_BGO, expert(x)[:, None].expand(-1, G, -1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gates": 0}, "num_gates: expected 1 or more, got 0"),
        ({"experts": []}, "experts: expected at least one module"),
        ({"visibility": [[True] * 4]}, "visibility: expected .* with 3 rows.*got shape"),
        ({"visibility": [[True] * 3] * 3}, "visibility: expected 4 columns.*got 3"),
        (
            {"visibility": [[True] * 4, [False] * 4, [True] * 4]},
            "visibility: gate 1 sees no expert",
        ),
        ({"visibility": [[True, True, False, True]] * 3}, "visibility: no gate sees expert 2"),
        ({"expert_source": [0, 1]}, r"expert_source: expected 4 .* got \[0, 1\]"),
        ({"gate_source": [0, -1, 0]}, r"gate_source: expected 3 .* got \[0, -1, 0\]"),
        ({"execution": "fast"}, "execution: expected auto, dense or grouped, got 'fast'"),
        (
            {"gate": TopKGate(D, G, E, k=3), "visibility": VISIBILITY},
            "gate: gate 2 picks k = 3 experts, but sees 2",
        ),
        ({"dispatcher": TakesAll(), "execution": "dense"}, "execution: dense .* dispatcher"),
    ],
)
def test_wrong_settings(settings, message):
    settings = {"num_gates": G, "experts": mlp_experts(E, D, [H]), **settings}
    with pytest.raises(ValueError, match=message):
        MultiGateMixture(D, **settings)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, D + 1), r"x: expected shape \[rows, 6\] of source 0.*got \[3, 7\]"),
        (torch.zeros(3, 2, D), "x: expected 1 input source.*, got 2"),
        (torch.zeros(D), r"x: expected shape.*got \[6\]"),
        ([], "x: expected 1 input source.*, got 0"),
    ],
)
def test_wrong_inputs(x, message):
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]))
    with pytest.raises(ValueError, match=message):
        layer(x)


def test_sources_of_different_heights():
    layer = MultiGateMixture(D, 1, mlp_experts(2, D, [H]), expert_source=[0, 1])
    with pytest.raises(ValueError, match=r"of source 1, with the rows of source 0 \(3\)"):
        layer([torch.zeros(3, D), torch.zeros(4, D)])


class Returns(nn.Module):
    def __init__(self, weights, experts=None):
        super().__init__()
        self.decision = GateOutput(weights, experts, {})

    def forward(self, inputs, visibility_GE):
        return self.decision


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (Returns(torch.zeros(3, 1, E)), r"gate: expected weights of shape \[3, 3, …\]"),
        (Returns(torch.zeros(3, G, 2)), "gate: expected a weight for each of 4 experts.*got 2"),
        (
            Returns(torch.zeros(3, G, 2), torch.zeros(3, G, 1, dtype=torch.int32)),
            "gate: expected as many picks as weights",
        ),
    ],
)
def test_gates_that_return_nonsense(gate, message):
    layer = MultiGateMixture(D, G, mlp_experts(E, D, [H]), gate=gate)
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(3, D))

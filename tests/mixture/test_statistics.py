"""Statistics against loops over a small batch, in every execution."""

import math

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    ExpertPool,
    GateOutput,
    MLPExperts,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
)

B, D, G, E, K = 12, 5, 2, 4, 2


class Chooses(nn.Module):
    """Gate 0 takes experts 0 and 1, gate 1 experts 1 and, in every other row, 2. None takes 3."""

    def forward(self, inputs, visibility_GE):
        rows = len(inputs[0])
        experts = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32).repeat(rows, 1, 1)
        experts[::2, 1, 1] = -1
        weights = torch.tensor([[0.75, 0.25], [3.0, 1.0]]).expand(rows, -1, -1)
        return GateOutput(weights, experts, {})


def make_layer(execution, capacity=None, gate=None, pool=None):
    torch.manual_seed(0)
    pool = pool or MLPExperts(E, D, [6, 3])
    return MultiGateMixture(
        D, G, pool, gate=gate or Chooses(), execution=execution, capacity=capacity
    )


@pytest.mark.parametrize("execution", ["auto", "dense", "grouped"])
def test_counts_and_entropies(execution):
    statistics = make_layer(execution)(torch.randn(B, D), return_statistics=True).statistics
    assert statistics.picks_GE.tolist() == [[B, B, 0, 0], [0, B, B // 2, 0]]
    assert (statistics.dropped_GE == 0).all()
    # Distinct: experts 0 and 1 for all rows, 2 for half of them; asked for: twice as often 1.
    assert float(statistics.pair_ratio) == pytest.approx(2.5 / 3.5)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    # Gate 1: half of the rows have one expert, the others 3 : 1.
    torch.testing.assert_close(statistics.entropy_G, torch.tensor([entropy, entropy / 2]))
    mean = -(0.875 * math.log(0.875) + 0.125 * math.log(0.125))
    expected = torch.tensor([math.exp(entropy), math.exp(mean)])
    torch.testing.assert_close(statistics.effective_experts_of_mean_G, expected)
    assert not statistics.entropy_G.requires_grad


def test_drops_are_counted_by_gate_and_expert():
    layer = make_layer("grouped", Capacity(1.0, maximum=B // 4))
    output = layer(torch.randn(B, D), return_statistics=True)
    quarter = 3 * B // 4
    expected = [[quarter, quarter, 0, 0], [0, quarter, B // 4, 0]]
    assert output.statistics.dropped_GE.tolist() == expected
    assert int(output.dropped) == sum(map(sum, expected))
    assert output.statistics.picks_GE.tolist() == [[B, B, 0, 0], [0, B, B // 2, 0]]


@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_dead_units_are_those_that_no_row_of_their_expert_woke(execution):
    capacity = Capacity(10.0) if execution == "padded" else None
    layer = make_layer(execution, capacity)
    with torch.no_grad():
        # Always off, and on only for rows that no gate sends to expert 2.
        layer.experts.biases[0][0, :3] = -1e6
        layer.experts.weights[0][2, :, 0] = 0
        layer.experts.weights[0][2, 0, 0] = 1
    x = torch.rand(B, D)
    x[1::2, 0] = -1
    share_E = layer(x, return_statistics=True).statistics.dead_share_E
    rows = {0: x, 1: x, 2: x[1::2]}
    for e, part in rows.items():
        h = torch.relu(part @ layer.experts.weights[0][e] + layer.experts.biases[0][e])
        y = torch.relu(h @ layer.experts.weights[1][e] + layer.experts.biases[1][e])
        dead = [not bool(column.any()) for units in (h, y) for column in units.T]
        assert float(share_E[e]) == pytest.approx(sum(dead) / 9)
    assert share_E[0] > 0.3 and share_E[2] > 0.1
    assert share_E[3].isnan()


@pytest.mark.parametrize(
    "pool",
    [
        MLPExperts(E, D, [3], activation="silu"),
        MLPExperts(E, D, [3], activation="swiglu"),
        ExpertPool([nn.Linear(D, 3) for _ in range(E)]),
    ],
)
@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_dead_units_are_unknown_where_units_cannot_be_off(pool, execution):
    output = make_layer(execution, pool=pool)(torch.randn(B, D), return_statistics=True)
    assert output.statistics.dead_share_E is None


@pytest.mark.parametrize("kind", ["softmax", "top_k"])
@pytest.mark.parametrize("rows", [0, 1, B])
def test_gates_of_the_library(kind, rows):
    gate = SoftmaxGate(D, G, E) if kind == "softmax" else TopKGate(D, G, E, k=K)
    output = make_layer("auto", gate=gate)(
        torch.randn(rows, D), return_gates=True, return_statistics=True
    )
    weights, statistics = output.gate_weights_BGE, output.statistics
    picks = E if kind == "softmax" else K
    assert (statistics.picks_GE.sum(1) == rows * picks).all()
    assert statistics.entropy_G.isfinite().all()
    assert (statistics.effective_experts_of_mean_G <= E + 1e-5).all()
    if rows:
        expected = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean(0)
        torch.testing.assert_close(statistics.entropy_G, expected)
        assert 1 / G <= float(statistics.pair_ratio) <= 1


def test_without_asking_there_are_none():
    assert make_layer("grouped")(torch.randn(B, D)).statistics is None

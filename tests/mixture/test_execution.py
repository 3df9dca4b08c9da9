"""The choice between dense and grouped execution."""

import pytest
import torch

from mmoe.mixture import MultiGateMixture, TopKGate, choose_execution, mlp_experts
from mmoe.mixture.execution import expected_share


@pytest.mark.parametrize(("gates", "experts", "k"), [(1, 8, 2), (4, 16, 2), (3, 5, 5)])
def test_expected_share_is_what_even_independent_gates_ask_for(gates, experts, k):
    torch.manual_seed(0)
    visible = torch.ones(gates, experts, dtype=torch.bool)
    visible[0, -1] = False
    visible[0, :] |= k == experts
    picks = torch.rand(20_000, gates, experts).masked_fill(~visible, -1).topk(k).indices
    wanted = torch.zeros(20_000, gates, experts).scatter(-1, picks, 1.0).amax(1)
    assert abs(expected_share(visible.tolist(), k) - wanted.mean()) < 0.01


def test_softmax_gates_run_dense_and_sparse_ones_grouped():
    def layer(gates, experts, k=None, **settings):
        gate = None if k is None else TopKGate(4, gates, experts, k=k)
        pool = mlp_experts(experts, 4, [3])
        return MultiGateMixture(4, gates, pool, gate=gate, **settings)

    assert layer(2, 64).execution == "dense"
    assert layer(4, 4, k=2).execution == "dense"
    assert layer(1, 64, k=2).execution == "grouped"
    assert layer(1, 64, k=2, execution="dense").execution == "dense"
    assert layer(2, 4, execution="grouped").execution == "grouped"


def test_picking_all_visible_experts_is_dense():
    assert choose_execution([[True, False], [False, True]], k=1) == "dense"
    assert choose_execution([[True, True], [True, True]], k=2) == "dense"

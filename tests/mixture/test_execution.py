"""The choice between dense, grouped and padded execution: estimates, and what decides when."""

import pytest
import torch

from mmoe.mixture import (
    Capacity,
    ExpertPool,
    MLPExperts,
    MultiGateMixture,
    TopKGate,
    Work,
    choose_execution,
)
from mmoe.mixture.execution import NOMINAL_ROWS, expected_share

SIZES = {"parameters": 200_000, "input_dim": 330, "output_dim": 128}


@pytest.mark.parametrize(("gates", "experts", "k"), [(1, 8, 2), (4, 16, 2), (3, 5, 5)])
def test_expected_share_is_what_even_independent_gates_ask_for(gates, experts, k):
    torch.manual_seed(0)
    visible = torch.ones(gates, experts, dtype=torch.bool)
    visible[0, -1] = False
    visible[0, :] |= k == experts
    picks = torch.rand(20_000, gates, experts).masked_fill(~visible, -1).topk(k).indices
    wanted = torch.zeros(20_000, gates, experts).scatter(-1, picks, 1.0).amax(1)
    assert abs(expected_share(visible.tolist(), k) - wanted.mean()) < 0.01


def work(pairs, experts=16, **settings):
    settings = {"picks": 8, "num_gates": 4, **SIZES, **settings}
    return Work(4096, experts, pairs=pairs, **settings)


def test_fewer_pairs_never_turn_grouped_into_dense():
    for experts in (4, 16, 64, 256):
        everything = 4096 * experts
        choices = [
            choose_execution(work(everything * share / 20, experts)) for share in range(1, 21)
        ]
        assert choices == sorted(choices, reverse=True)
        assert (choices[0], choices[-1]) == ("grouped", "dense")


def chosen(layer, x, monkeypatch):
    """The way `layer` runs `x`, seen from its pool of MLPs."""
    seen = []
    for method, way in (("dense", "dense"), ("gathered", "grouped")):
        plain = getattr(layer.experts, method)

        def spy(*inputs, way=way, plain=plain):
            seen.append(way)
            return plain(*inputs)

        monkeypatch.setattr(layer.experts, method, spy, raising=False)
    layer(x)
    (way,) = seen
    return way


def make_layer(gates, experts, k=None, pool=None, **settings):
    torch.manual_seed(0)
    gate = None if k is None else TopKGate(64, gates, experts, k=k)
    pool = pool or MLPExperts(experts, 64, [256, 128])
    return MultiGateMixture(64, gates, pool, gate=gate, **settings)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gates": 2, "experts": 64}, "dense"),
        ({"gates": 4, "experts": 4, "k": 3}, "dense"),
        ({"gates": 1, "experts": 64, "k": 2}, "grouped"),
        ({"gates": 1, "experts": 64, "k": 2, "execution": "dense"}, "dense"),
        ({"gates": 2, "experts": 4, "execution": "grouped"}, "grouped"),
    ],
)
def test_softmax_gates_run_dense_and_sparse_ones_grouped(settings, expected, training, monkeypatch):
    layer = make_layer(**settings).train(training)
    assert chosen(layer, torch.randn(512, 64), monkeypatch) == expected


def test_training_counts_the_pairs_and_evaluation_must_not(monkeypatch):
    """Four gates that agree need 3 of 4 pairs, four that do not nearly all of them."""
    agree, differ = make_layer(4, 8, k=6), make_layer(4, 8, k=6)
    with torch.no_grad():
        weight = agree.gate.logits.weights[0]
        weight.copy_(weight[:1].expand_as(weight))
    x = torch.randn(512, 64)
    assert chosen(agree, x, monkeypatch) == "grouped"
    assert chosen(differ, x, monkeypatch) == "dense"
    assert chosen(agree.eval(), x, monkeypatch) == chosen(differ.eval(), x, monkeypatch)
    assert chosen(agree.eval(), x[:1], monkeypatch) == chosen(agree, x, monkeypatch)
    assert NOMINAL_ROWS > 1


def test_batch_norm_gets_only_rows_that_were_picked(monkeypatch):
    pool = MLPExperts(4, 64, [8], activation="silu", norm="batch")
    layer = make_layer(4, 4, k=3, pool=pool)
    x = torch.randn(32, 64)
    assert chosen(layer, x, monkeypatch) == "grouped"
    monkeypatch.undo()
    forced = make_layer(4, 4, k=3, pool=pool, execution="dense")
    with pytest.raises(ValueError, match="execution: dense shows every expert all rows"):
        forced(x)
    assert chosen(forced.eval(), x, monkeypatch) == "dense"


def test_modules_run_dense_where_sizes_cannot_be_read():
    """Inside torch.compile; evaluation of a padded layer is dropless."""
    pool = ExpertPool([torch.nn.Linear(64, 8) for _ in range(16)])
    layer = make_layer(1, 16, k=1, pool=pool, execution="padded", capacity=Capacity(0.5)).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(32, 64)
    torch.testing.assert_close(compiled(x).out_BGO, layer(x).out_BGO)

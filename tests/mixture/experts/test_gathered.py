"""Rows that a pool reads where they lie: the same bits as rows that were gathered first."""

import pytest
import torch

from mmoe.mixture import LocalDispatcher, MLPExperts, MultiGateMixture, Pool, TopKGate
from mmoe.mixture.experts.mlp import Record
from mmoe.ops import permute, route_plan

E, D = 5, 24
SETTINGS = [
    {"hidden": [16, 8]},
    {"hidden": [16], "activation": "swiglu"},
    {"hidden": [16, 8], "activation": "silu", "norm": "batch"},
    {"hidden": [16, 8], "activation": "gelu", "norm": "layer"},
    {"hidden": [16, 8], "dropout": 0.5},
    {"hidden": [16, 8], "output_activation": None},
    {"hidden": []},
]


class Copying(MLPExperts):
    """Reads copies of the rows, side by side."""

    gathered = Pool.gathered


def backward(run, *tensors):
    """What a run gives, and its gradients."""
    torch.manual_seed(3)  # of the dropout
    for tensor in tensors:
        tensor.grad = None
    y = run()
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    return [y.detach(), *(t.grad.clone() for t in tensors)]


def assert_same_bits(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gathered_is_grouped_on_gathered_rows_to_the_bit(settings):
    torch.manual_seed(0)
    pool = MLPExperts(E, D, **settings)
    x_BD = torch.randn(70, D, requires_grad=True)
    picks = torch.randint(-1, E - 1, (70, 3, 2), dtype=torch.int32)  # the last expert has no row
    plan = route_plan(picks, E)
    plan = plan._replace(rows_P=plan.rows_P[: int(plan.offsets_E1[-1])])
    records: list[Record] = [[], []]
    tensors = [x_BD, *pool.parameters()]
    read = backward(lambda: pool.gathered(x_BD, plan, records[0]), *tensors)
    rows = backward(
        lambda: pool.grouped(permute(x_BD, plan), plan.offsets_E1, records[1]), *tensors
    )
    assert_same_bits(read, rows)
    assert len(records[0]) == len(records[1])
    assert_same_bits(*records)


class Doubling(MLPExperts):
    """Says what becomes of rows that lie side by side, and nothing of others."""

    def grouped(self, rows, offsets_E1, record=None):
        return 2 * super().grouped(rows, offsets_E1, record)


class Following(Doubling):
    """Says both."""

    def gathered(self, x_BD, plan, record=None):
        return 2 * MLPExperts.gathered(self, x_BD, plan, record)


class Wrapped(Pool):
    """Adds to a pool, as adapters do; takes rows side by side alone."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def grouped(self, rows, offsets_E1):
        return 2 * self.pool.grouped(rows, offsets_E1)


class Counting(LocalDispatcher):
    calls = 0

    def dispatch(self, sources, plan):
        self.calls += 1
        return super().dispatch(sources, plan)


def mixture(pool, **settings):
    return MultiGateMixture(
        D, 2, pool, gate=TopKGate(D, 2, E, k=2), execution="grouped", **settings
    )


@pytest.mark.parametrize(("kind", "gathers"), [(Doubling, False), (Following, True)])
def test_a_subclass_is_asked_for_what_it_says(kind, gathers):
    torch.manual_seed(0)
    layer, x_BD = mixture(kind(E, D, [16, 8])), torch.randn(40, D)
    doubled = layer(x_BD).out_BGO

    assert (kind.gathered is not Pool.gathered) is gathers
    layer.experts.__class__ = Copying
    assert torch.equal(doubled, 2 * layer(x_BD).out_BGO)


def test_parts_that_others_took_the_place_of():
    layer, x_BD = mixture(MLPExperts(E, D, [16, 8])), torch.randn(40, D)
    out_BGO = layer(x_BD).out_BGO
    layer.dispatcher = Counting()
    layer(x_BD)
    assert layer.dispatcher.calls == 1

    layer.experts = Wrapped(layer.experts)
    assert torch.equal(layer(x_BD).out_BGO, 2 * out_BGO)


def test_methods_that_others_took_the_place_of():
    layer, x_BD = mixture(MLPExperts(E, D, [16, 8])), torch.randn(40, D)
    for name in ("grouped", "gathered"):
        method, calls = getattr(layer.experts, name), []
        setattr(layer.experts, name, lambda *args, m=method, c=calls: c.append(1) or m(*args))
        layer(x_BD)
        assert calls == [1]


def test_a_pool_without_layers_takes_any_numbers_and_structures():
    outputs = []
    for kind in (MLPExperts, Copying):
        torch.manual_seed(0)
        half_BD = torch.randn(40, D).half()
        gate = TopKGate(D, 2, E, k=2)
        tree = MultiGateMixture(None, 2, kind(E, D, []), gate=First(gate), execution="grouped")
        both = tree({"x": half_BD, "more": torch.randn(40, 3, 2)}).out_BGO
        outputs.append([mixture(kind(E, D, []))(half_BD).out_BGO, *both.values()])
    assert [tuple(y.shape) for y in outputs[0]] == [(40, 2, D), (40, 2, D), (40, 2, 3, 2)]
    assert_same_bits(*outputs)


class First(torch.nn.Module):
    """Shows a gate one tensor of each input."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, sources, visibility_GE):
        return self.gate([source["x"] for source in sources], visibility_GE)

"""Capacity: how many rows, which ones stay, what is counted; dropless in evaluation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.mixture import Capacity, DSelectKGate, ExpertPool, MLPExperts, MultiGateMixture, TopKGate
from mmoe.mixture.capacity import drop_over_capacity

B, D, H, G, E, K = 24, 6, 5, 3, 4, 2


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (Capacity(1.0), 12),  # with two picks in all; else 24 · min(3 · 2, 4) / 4 is 24
        (Capacity(0.5, minimum=14), 14),
        (Capacity(0.5, maximum=3), 3),
        (Capacity(-0.25), 6),
        (Capacity(0.0), 24),
        (Capacity(0.0, maximum=7), 7),
        (Capacity(0.26), 7),  # 6.24, rounded up
        (Capacity(100.0), 24),
        (Capacity(0.7), 17),  # 16.8
        (Capacity(7 / 24), 7),
    ],
)
def test_limit_is_a_share_of_the_mean_load(capacity, expected):
    picks = 2 if capacity == Capacity(1.0) else G * K
    assert capacity.limit(B, picks, E) == expected


def slow_drop(experts, weights, limit, priority):
    """Pair by pair: every expert ranks who asked, and keeps the first `limit`."""
    kept = experts.clone()
    for e in range(E):
        asked = [b for b in range(len(experts)) if (experts[b] == e).any()]
        if priority == "probability":
            total = {b: float(weights[b][experts[b] == e].double().sum()) for b in asked}
            asked.sort(key=lambda b: (-total[b], b))
        if priority == "choice":
            best = {b: (experts[b] == e).any(0).tolist().index(True) for b in asked}
            asked.sort(key=lambda b: (best[b], b))
        for b in asked[limit:]:
            kept[b][experts[b] == e] = -1
    return kept


@given(
    rows=st.integers(0, 12),
    factor=st.sampled_from([0.1, 0.5, 1.0, -0.5, 0.0]),
    priority=st.sampled_from(["position", "choice", "probability"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_drops_what_a_slow_loop_drops(rows, factor, priority, seed):
    torch.manual_seed(seed)
    experts = torch.rand(rows, G, E).argsort(-1)[..., :K].to(torch.int32)
    if seed % 2:  # a gate may name an expert twice
        experts = torch.randint(E, (rows, G, K), dtype=torch.int32)
    experts = experts.masked_fill(torch.rand(rows, G, K) < 0.2, -1)
    # Eighths add up exactly, so that ties are ties.
    weights = torch.randint(0, 8, (rows, G, K)) / 8
    capacity = Capacity(factor, priority)
    kept = drop_over_capacity(capacity, experts, weights, E)
    expected = slow_drop(experts, weights, capacity.limit(rows, G * K, E), priority)
    assert torch.equal(kept.experts_BGK, expected)
    assert int(kept.dropped) == int(((experts >= 0) & (expected < 0)).sum())
    assert kept.experts_BGK.dtype == torch.int32


def make_layer(execution="grouped", capacity=None, pool=None, seed=0):
    torch.manual_seed(seed)
    pool = pool or MLPExperts(E, D, [7, H], activation="gelu")
    gate = TopKGate(D, G, E, k=K)
    return MultiGateMixture(D, G, pool, gate=gate, execution=execution, capacity=capacity).double()


def slow_layer(layer, x):
    """The gate's picks, the slow loop's drops, every expert on all rows, one sum."""
    weights, experts, _ = layer.gate([x] * G, layer.visibility_GE)
    limit = layer.capacity.limit(len(x), G * K, E)
    kept = slow_drop(experts, weights.detach(), limit, layer.capacity.priority)
    y = torch.stack(layer.experts.dense([x]), 1)
    weights = torch.where(kept >= 0, weights, 0)
    rows = torch.arange(len(x))[:, None, None]
    picked = y[rows, kept.clamp(min=0).long()]
    return (weights[..., None] * picked).sum(2), kept, experts


CAPACITIES = [
    Capacity(0.5),
    Capacity(0.6, "probability"),
    Capacity(0.4, "choice"),
    Capacity(-0.4, minimum=3),
    Capacity(0.0),
    Capacity(0.0, maximum=4),
]


def gradients(layer, x, function):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = function(x)
    torch.manual_seed(1)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    return out, x.grad, [p.grad for p in layer.parameters()]


@pytest.mark.whole
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded", "auto"])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_layer_equals_the_slow_one_in_every_execution(execution, capacity):
    layer = make_layer(execution, capacity)
    x = torch.randn(B, D, dtype=torch.float64)
    result = gradients(layer, x, lambda x: layer(x).out_BGO)
    slow = gradients(layer, x, lambda x: slow_layer(layer, x)[0])
    torch.testing.assert_close(result, slow)
    _, kept, experts = slow_layer(layer, x)
    output = layer(x, return_statistics=True)
    dropped = int((kept < 0).sum() - (experts < 0).sum())
    assert int(output.dropped) == dropped
    assert int(output.statistics.dropped_GE.sum()) == dropped
    assert (dropped == 0) == (capacity == Capacity(0.0))


class Stretches(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x):
        return {"twice": (x * self.factor, x[:, 0] + self.factor)}


def test_padded_runs_modules_with_structures_as_grouped_does():
    results = []
    for execution in ("grouped", "padded"):
        pool = ExpertPool([Stretches(e + 1) for e in range(E)])
        layer = make_layer(execution, Capacity(0.5), pool)
        x = torch.randn(B, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        wide, narrow = layer(x).out_BGO["twice"]
        assert (wide.shape, narrow.shape) == ((B, G, D), (B, G))
        (wide.sum() + narrow.square().sum()).backward()
        results.append((wide, narrow, [p.grad for p in layer.parameters()]))
    torch.testing.assert_close(*results)


def test_sources_of_experts_in_padded_execution():
    settings = {"expert_source": [1, 0, 2, 1], "gate_source": [0, 2, 1]}
    x = torch.randn(B, 3, D, dtype=torch.float64)
    results = []
    for execution in ("dense", "padded"):
        torch.manual_seed(0)
        layer = MultiGateMixture(
            D, G, MLPExperts(E, D, [H]), gate=TopKGate(D, G, E, k=K), execution=execution,
            capacity=Capacity(0.5), **settings,
        ).double()  # fmt: skip
        results.append(gradients(layer, x, lambda x, layer=layer: layer(x).out_BGO))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("priority", ["position", "probability"])
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded", "auto"])
def test_evaluation_drops_nothing_whatever_the_batch(execution, priority):
    layer = make_layer(execution, Capacity(0.1, priority)).float().eval()
    free = make_layer("grouped" if execution == "padded" else execution).float().eval()
    x = torch.randn(B, D)
    with torch.no_grad():
        result = layer(x, return_statistics=True)
        assert result.dropped is None
        assert (result.statistics.dropped_GE == 0).all()
        assert torch.equal(result.out_BGO, free(x).out_BGO)
        assert layer.train()(x).dropped > 0


def batch_norms():
    return MLPExperts(E, D, [H], norm="batch")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Capacity(float("nan")), "factor: expected a finite number, got nan"),
        (lambda: Capacity(1.0, "first"), "priority: expected one of position, choice, probability"),
        (lambda: Capacity(1.0, minimum=0), "minimum: expected 1 or more rows, got 0"),
        (lambda: Capacity(1.0, maximum=-1), "maximum: expected 1 or more rows, got -1"),
        (lambda: Capacity(1.0, minimum=5, maximum=4), r"minimum: expected at most maximum \(4\), "),
        (lambda: make_layer("padded"), "execution: padded needs a capacity"),
        (
            lambda: make_layer("padded", Capacity(), batch_norms()),
            "execution: padded shows experts",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_limit_of_a_gate_that_returns_more_picks_than_its_k():
    """DSelect-k gates return a pick for every expert: read off those, the limit is all rows."""
    torch.manual_seed(0)
    gate = DSelectKGate(None, 1, 8, k=2)
    torch.nn.init.constant_(gate.codes_GKM, -9.0)  # both selectors at expert 0
    experts, x = MLPExperts(8, 4, [3]), torch.randn(40, 4)
    layer = MultiGateMixture(4, 1, experts, gate=gate, capacity=Capacity(1.0))
    result = layer(x, return_statistics=True)
    assert int(result.dropped) == 40 - 40 * 2 // 8
    assert result.out_BGO[10:].abs().sum() == 0

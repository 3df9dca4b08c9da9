"""FastMoE's test cases, told in our own words: every expectation is a loop over rows and picks.

Cases: github.com/laekov/fastmoe, tests/test_numerical.py, test_mimo.py, test_local_exchange.py,
test_zero.py and test_gates.py. Its grid: 4 or 8 experts, 2 or 3 picks, 4 rows, widths 16 and 32.
"""

import math

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    GateOutput,
    GShardGate,
    MLPExperts,
    MoE,
    MultiGateMixture,
    SwitchGate,
    TopKGate,
)

B, D, H = 4, 16, 32
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11, torch.bfloat16: 3e-2, torch.float16: 4e-3}
both_ways = pytest.mark.parametrize("execution", ["dense", "grouped"])
grid = [pytest.mark.parametrize("E", [4, 8]), pytest.mark.parametrize("K", [2, 3])]


def on_the_grid(test):
    for mark in (*grid, both_ways):
        test = mark(test)
    return test


class Given(nn.Module):
    """A gate that decides what it was told."""

    def __init__(self, weights_BGK, experts_BGK):
        super().__init__()
        self.weights_BGK = nn.Parameter(weights_BGK)
        self.experts_BGK = experts_BGK

    def forward(self, inputs, visibility_GE):
        return GateOutput(self.weights_BGK, self.experts_BGK, {})


def mix_by_loops(run_expert, x_BD, weights_BGK, experts_BGK):
    """The first gate's mix, one row and one pick after the other."""
    rows = []
    for b, row in enumerate(experts_BGK[:, 0].tolist()):
        parts = [
            weights_BGK[b, 0, k].to(x_BD.dtype) * run_expert(e, x_BD[b])
            for k, e in enumerate(row)
            if e >= 0
        ]
        rows.append(sum(parts) if parts else torch.zeros(D, dtype=x_BD.dtype))
    return torch.stack(rows)


def one_row_of(pool):
    """Expert e of an `MLPExperts` for one row, layer by layer."""

    def run(e, x_D):
        for weight_EDH, bias_EH in zip(pool.weights, pool.biases, strict=True):
            x_D = nn.functional.gelu(x_D @ weight_EDH[e] + bias_EH[e])
        return x_D

    return run


def gradients(out, x, parameters, unused=False):
    """Of the input and all parameters; `unused`: zeros for what the loops never touched."""
    return torch.autograd.grad(
        out.float().square().mean(), [x, *parameters], materialize_grads=unused
    )


def check(results, expected, dtype):
    step = TOLERANCE[dtype]
    torch.testing.assert_close(results, expected, rtol=step, atol=step, check_dtype=False)


@on_the_grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_experts_in_one_tensor(E, K, execution, dtype):
    """Output, and the gradients of input, weights, biases and gate (test_fmoe_linear)."""
    torch.manual_seed(42)
    layer = MoE(D, MLPExperts(E, D, [H, D], activation="gelu"), k=K, execution=execution)
    pool = layer.mixture.experts
    with torch.no_grad():
        for bias in pool.biases:
            bias.normal_()
    layer.to(dtype)
    x = torch.rand(B, D).to(dtype).requires_grad_()
    parameters = list(layer.parameters())

    out = layer(x)

    decision = layer.mixture.gate([x], torch.ones(1, E, dtype=torch.bool))
    slow = mix_by_loops(one_row_of(pool), x, decision.weights, decision.experts)
    check(out, slow, dtype)
    check(gradients(out, x, parameters), gradients(slow, x, parameters, unused=True), dtype)


def make_expert(kind):
    if kind == "linear":
        return nn.Linear(D, D)
    return nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D))


@both_ways
@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "kinds",
    [["linear"] * 4, ["deep"] * 8, ["deep", "linear"] * 4],
    ids=["linear", "deep", "two classes"],
)
def test_experts_of_any_class(kinds, K, execution, dtype):
    """Lists of modules, of different classes too (test_fmoe, test_fmoe_experts)."""
    torch.manual_seed(42)
    experts = [make_expert(kind) for kind in kinds]
    layer = MoE(D, experts, k=K, execution=execution).to(dtype)
    x = torch.rand(B, D).to(dtype).requires_grad_()
    parameters = list(layer.parameters())

    out = layer(x)

    decision = layer.mixture.gate([x], torch.ones(1, len(kinds), dtype=torch.bool))
    slow = mix_by_loops(lambda e, row: experts[e](row), x, decision.weights, decision.experts)
    check(out, slow, dtype)
    check(gradients(out, x, parameters), gradients(slow, x, parameters, unused=True), dtype)


class Twice(nn.Module):
    """Runs an expert on both leaves of a dict, or of a list."""

    def __init__(self):
        super().__init__()
        self.expert = make_expert("deep")

    def forward(self, batch):
        if isinstance(batch, dict):
            return {name: self.expert(leaf) for name, leaf in batch.items()}
        return [self.expert(leaf) for leaf in batch]


class ReadsFirst(nn.Module):
    """A gate that reads the first leaf."""

    def __init__(self, num_experts, k):
        super().__init__()
        self.gate, self.k = TopKGate(D, 1, num_experts, k=k), k

    def forward(self, inputs, visibility_GE):
        leaves = inputs[0].values() if isinstance(inputs[0], dict) else inputs[0]
        return self.gate([next(iter(leaves))], visibility_GE)


@on_the_grid
@pytest.mark.parametrize("container", [list, dict])
def test_structures_in_and_out(E, K, execution, container):
    """Equal leaves of a list or dict give equal leaves of the same kind (test_fmoe_mimo_linear)."""
    torch.manual_seed(42)
    experts = [Twice() for _ in range(E)]
    gate = ReadsFirst(E, K)
    layer = MultiGateMixture(None, 1, experts, gate=gate, execution=execution)
    x = torch.rand(B, D)

    out = layer([x, x.clone()] if container is list else {"x": x, "y": x.clone()}).out_BGO

    assert isinstance(out, container)
    first, second = out if container is list else (out["x"], out["y"])
    assert torch.equal(first, second)
    weights_BGK, experts_BGK, _ = gate([[x]], torch.ones(1, E, dtype=torch.bool))
    slow = mix_by_loops(lambda e, row: experts[e].expert(row), x, weights_BGK, experts_BGK)
    torch.testing.assert_close(first[:, 0], slow, rtol=1e-5, atol=1e-5)


@both_ways
@pytest.mark.parametrize("E", [1, 4, 8])
@pytest.mark.parametrize("K", [1, 2])
def test_picks_that_are_not_used(E, K, execution):
    """Any expert or none, the same one twice too, for 12 rows of width 6 (test_scatter)."""
    torch.manual_seed(E + K)
    x = torch.rand(12, 6, requires_grad=True)
    picks = (torch.randint(E + 1, (12, 1, K)) - 1).int()
    assert (picks == -1).any()
    experts = [nn.Linear(6, D) for _ in range(E)]
    gate = Given(torch.rand(12, 1, K), picks)
    layer = MultiGateMixture(6, 1, experts, gate=gate, execution=execution)
    parameters = list(layer.parameters())

    out = layer(x).out_BGO[:, 0]

    slow = mix_by_loops(lambda e, row: experts[e](row), x, gate.weights_BGK, picks)
    check(out, slow, torch.float32)
    check(gradients(out, x, parameters), gradients(slow, x, parameters, unused=True), torch.float32)


@both_ways
@pytest.mark.parametrize("rows", [4, 0])
def test_an_expert_without_rows(rows, execution):
    """A constant gate sends all rows to expert 0 with weight 1/2 (test_zero_transformer)."""
    torch.manual_seed(0)
    pool = MLPExperts(2, 8, [32, D], activation="gelu")
    gate = Given(torch.full((rows, 1, 1), 0.5), torch.zeros(rows, 1, 1, dtype=torch.int32))
    layer = MultiGateMixture(8, 1, pool, gate=gate, execution=execution)
    x = torch.rand(rows, 8, requires_grad=True)

    out = layer(x).out_BGO[:, 0]
    out.square().sum().backward()

    run = one_row_of(pool)
    expected = torch.stack([0.5 * run(0, row) for row in x]) if rows else torch.zeros(0, D)
    torch.testing.assert_close(out, expected)
    for parameter in pool.parameters():
        assert not parameter.grad[1].any()
        assert parameter.grad[0].any() == (rows > 0)


@pytest.mark.parametrize(
    ("kind", "rows", "E", "share"),
    [(GShardGate, 16, 4, 0.1), (GShardGate, 16, 4, 1.1)]
    + [(SwitchGate, 4096, E, share) for E in (1, 16) for share in (0.1, 0.8)],
)
def test_gates_with_capacity(counts, kind, rows, E, share):
    """No expert gets more than a share of the batch, and what stays keeps its weight.

    FastMoE's capacity is a share of the rows for each expert; ours is a factor of the mean load,
    K / E of the rows (test_gshard_gate, test_switch_gate).
    """
    torch.manual_seed(0)
    gate, pool = kind(D, 1, E), counts(E)
    capacity = Capacity(share * E / gate.k)
    layer = MultiGateMixture(D, 1, pool, gate=gate, capacity=capacity, execution="grouped")
    x = torch.rand(rows, D)

    torch.manual_seed(1)  # GShard's second pick
    result = layer(x)

    torch.manual_seed(1)
    weights_BGK, experts_BGK, _ = gate([x], torch.ones(1, E, dtype=torch.bool))
    most, left, kept_B = math.ceil(share * rows), [0] * E, []
    for weights, picks in zip(weights_BGK[:, 0].tolist(), experts_BGK[:, 0].tolist(), strict=True):
        kept_B.append(0.0)
        for weight, e in zip(weights, picks, strict=True):
            if e >= 0 and left[e] < most:
                left[e] += 1
                kept_B[-1] += weight
    assert max(left) <= most
    assert pool.rows_E == left
    assert int(result.dropped) == int((experts_BGK >= 0).sum()) - sum(left)
    assert int(result.dropped) > 0 or share > 0.1
    torch.testing.assert_close(result.out_BGO[:, 0], torch.tensor(kept_B).unsqueeze(1) * x)

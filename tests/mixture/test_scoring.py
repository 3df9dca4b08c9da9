"""In evaluation a row's bits do not depend on its batch mates, nor on drops while training."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    MLP,
    Capacity,
    ExpertPool,
    MLPExperts,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
)
from mmoe.mixture.batch_invariant import StableFunctions

D, G, E, ROWS = 33, 2, 4, 300


def make_layer(kind, execution, pool, capacity=None):
    torch.manual_seed(0)
    if pool == "modules":
        experts = [MLP(D, [64, 17]) for _ in range(E)]
    else:
        experts = MLPExperts(E, D, [64, 17], norm=None if pool == "mlp" else pool)
    gate = SoftmaxGate(D, G, E) if kind == "softmax" else TopKGate(D, G, E, k=2)
    layer = MultiGateMixture(D, G, experts, gate=gate, execution=execution, capacity=capacity)
    return layer.eval()


CASES = [
    ("top_k", "dense", None),
    ("top_k", "grouped", None),
    ("top_k", "auto", None),
    ("softmax", "auto", None),
    ("softmax", "grouped", None),
    ("top_k", "padded", Capacity(0.3)),
    ("top_k", "auto", Capacity(0.3, "probability")),
]


POOLS = ["mlp", "layer", "batch", "modules"]
# Rows of zeros would count in batch norm's statistics, so it is not run padded.
EVERYTHING = [
    (*case, pool) for case in CASES for pool in POOLS if (case[1], pool) != ("padded", "batch")
]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "execution", "capacity", "pool"), EVERYTHING)
def test_orders_batch_mates_and_thread_counts(kind, execution, capacity, pool):
    layer = make_layer(kind, execution, pool, capacity)
    x, others = torch.randn(ROWS, D), torch.randn(ROWS, D)
    expected = layer(x).out_BGO
    order = torch.randperm(ROWS)
    assert torch.equal(layer(x[order]).out_BGO, expected[order])
    mixed = torch.where((torch.arange(ROWS) % 3 == 0)[:, None], x, others)
    assert torch.equal(layer(mixed).out_BGO[::3], expected[::3])
    # Mates that all crowd on one expert, where grouped shapes differ most.
    crowd = x[:1].expand(ROWS, -1).clone()
    crowd[7] = x[7]
    assert torch.equal(layer(crowd).out_BGO[7], expected[7])
    if pool == "modules":
        return
    # The same decision of the gates: their own products are not the pool's
    decision = layer.gate([x] * G, layer.visibility_GE)
    layer.gate.forward = lambda *_: decision
    try:
        torch.set_num_threads(2)
        assert torch.equal(layer(x).out_BGO, expected)
    finally:
        torch.set_num_threads(1)


@torch.no_grad()
def check_rows_alone(pool, x, order):
    """Of three experts: dense and grouped, in another order and at other heights, the same bits."""
    dense = torch.stack(pool.dense([x]), 1)
    assert torch.equal(torch.stack(pool.dense([x[order]]), 1), dense[order])
    for rows in (1, 2, 3, 6, 100):
        assert torch.equal(torch.stack(pool.dense([x[-rows:]]), 1), dense[-rows:])
        offsets = torch.tensor([0, rows, rows, 2 * rows], dtype=torch.int32)
        both = pool.grouped(torch.cat([x[-rows:], x[:rows]]), offsets)
        assert torch.equal(both, torch.cat([dense[-rows:, 0], dense[:rows, 2]]))


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_and_norms_over_orders_and_heights(activation, norm, dtype):
    torch.manual_seed(0)
    pool = MLPExperts(3, 9, [13, 5], activation=activation, norm=norm).to(dtype).eval()
    for buffer in pool.buffers():
        torch.nn.init.uniform_(buffer, 0.5, 2)
    x, order = 3 * torch.randn(211, 9, dtype=dtype), torch.randperm(211)
    check_rows_alone(pool, x, order)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_mlps_over_orders_and_heights(activation):
    torch.manual_seed(0)
    mlp, x = MLP(330, [21, 4], activation=activation).eval(), 3 * torch.randn(211, 330)
    with torch.no_grad():
        expected, order = mlp(x), torch.randperm(211)
        assert torch.equal(mlp(x[order]), expected[order])
        for rows in (1, 2, 3, 100):
            assert torch.equal(mlp(x[-rows:]), expected[-rows:])


def own_modules(width):
    return [
        nn.Linear(330, width),
        nn.Sequential(nn.Linear(330, 21), nn.SiLU(), nn.LayerNorm(21), nn.Linear(21, width)),
        nn.Sequential(nn.Linear(330, 5), nn.GELU(), nn.Linear(5, width), nn.Sigmoid()),
    ]


@pytest.mark.parametrize("width", [1, 4, 17])
def test_modules_over_orders_and_heights(width):
    torch.manual_seed(0)
    pool = ExpertPool(own_modules(width), output_dim=width).eval()
    x, order = torch.randn(211, 330), torch.randperm(211)
    check_rows_alone(pool, x, order)


OF_MODULES = [
    nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.Mish(), nn.ELU(0.7), nn.CELU(0.7),
    nn.SELU(), nn.Softplus(2.0), nn.SiLU(inplace=True), nn.ELU(inplace=True),
]  # fmt: skip


@pytest.mark.parametrize("activation", OF_MODULES, ids=repr)
def test_activations_of_modules_do_not_round_by_place(activation):
    """Of most tensors torch's own did; values and gradients are its own."""
    torch.manual_seed(0)
    pool = ExpertPool([nn.Sequential(nn.Linear(330, 21), activation)]).eval()
    for _ in range(10):
        x, order = torch.randn(211, 330), torch.randperm(211)
        assert torch.equal(pool.dense([x[order]])[0], pool.dense([x])[0][order])
    far = torch.tensor([-1e4, -30.0, -1.0, 0.0, 1e-3, 30.0, 1e4]).repeat(3, 3).requires_grad_()
    with StableFunctions():
        stable = activation(far + 0)
    (stable_grad,) = torch.autograd.grad(stable.sum(), far)
    (grad,) = torch.autograd.grad(activation(far + 0).sum(), far)
    torch.testing.assert_close(stable, activation(far + 0))
    torch.testing.assert_close(stable_grad, grad)


def test_whole_numbers_stay_torchs():
    with StableFunctions():
        assert torch.equal(torch.sigmoid(torch.tensor([0, 3])), torch.tensor([0.0, 3.0]).sigmoid())


def test_modules_of_other_products_are_grouped_in_tiles():
    """Their rows keep their bits whatever the number of rows that an expert gets."""
    torch.manual_seed(0)

    class Product(nn.Module):
        output_dim = 24

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(330, 24))

        def forward(self, x):
            return x @ self.weight

    pool, x = ExpertPool([Product(), Product()]).eval(), torch.randn(300, 330)
    with torch.no_grad():
        expected = pool.grouped(x, torch.tensor([0, 300, 300], dtype=torch.int32))
        for rows in (1, 2, 3, 100, 129):
            offsets = torch.tensor([0, rows, rows], dtype=torch.int32)
            assert torch.equal(pool.grouped(x[:rows], offsets), expected[:rows])

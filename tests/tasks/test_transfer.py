"""Transfers: against the formulas written out, gradients, one row beside others."""

import math

import pytest
import torch

from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.tasks import TaskTowers
from mmoe.tasks.transfer import AdaptiveTransfer, BayesianTransfer, InformationTransfer

CHAIN = [[], [0], [1]]
OTHERS = [[2], [], [1], [2, 0], []]  # named in another order than they happen; one stands alone


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(kind, parents, width=6, hidden=(4,), **keywords):
    towers = TaskTowers(len(parents), width, list(hidden), activation="silu", **keywords)
    if kind == "aitm":
        return towers, AdaptiveTransfer(parents, width, dim=3)
    return towers, BayesianTransfer(parents, towers)


def inputs_of(parents, rows=7, width=6, dtype=torch.float32):
    return list(torch.randn(len(parents), rows, width, dtype=dtype))


def in_order(parents):
    done: list[int] = []
    while len(done) < len(parents):
        done += [t for t, p in enumerate(parents) if t not in done and set(p) <= set(done)]
    return done


@pytest.mark.parametrize("parents", [CHAIN, OTHERS])
def test_aitm_is_its_formula(parents):
    towers, transfer = make("aitm", parents)
    q = inputs_of(parents)
    z = list(q)
    for task in in_order(parents):
        if not parents[task]:
            continue
        module = transfer.tasks[task]
        units = [q[task]]
        for parent, carry in zip(parents[task], module.carries, strict=True):
            units.append(torch.relu(z[parent] @ carry.layers[0].weight.T + carry.layers[0].bias))
        scores = torch.stack(
            [
                ((u @ module.query.weight.T) * (u @ module.key.weight.T)).sum(1) / math.sqrt(3)
                for u in units
            ]
        )
        weights = scores.exp() / scores.exp().sum(0)
        z[task] = sum(
            w[:, None] * (u @ module.value.weight.T) for w, u in zip(weights, units, strict=True)
        )
    torch.testing.assert_close(transfer(towers, q), towers(z))


@pytest.mark.parametrize("parents", [CHAIN, OTHERS])
@pytest.mark.parametrize("hidden", [(4,), (5, 3), ()])
def test_dbmtl_is_its_formula(parents, hidden):
    towers, transfer = make("dbmtl", parents, hidden=hidden)
    x, read, logits = inputs_of(parents), {}, {}
    for task in in_order(parents):
        read[task] = towers[task].mlp(x[task])
        if parents[task]:
            layer = transfer.tasks[task].layers[0]
            joined = torch.cat([read[task], *(read[parent] for parent in parents[task])], 1)
            read[task] = torch.nn.functional.silu(joined @ layer.weight.T + layer.bias)
        logits[task] = read[task] @ towers[task].logit.weight[0] + towers[task].logit.bias
    expected = torch.stack([logits[task] for task in range(len(parents))], 1)
    torch.testing.assert_close(transfer(towers, x), expected)


@pytest.mark.parametrize("kind", ["aitm", "dbmtl"])
def test_only_what_comes_before_is_read(kind):
    towers, transfer = make(kind, OTHERS)
    x = [tensor.requires_grad_() for tensor in inputs_of(OTHERS)]
    reached = []
    for logit_B in transfer(towers, x).unbind(1):
        found = torch.autograd.grad(logit_B.sum(), x, retain_graph=True, allow_unused=True)
        reached.append({task for task, g in enumerate(found) if g is not None and g.any()})
    assert reached == [{0, 1, 2}, {1}, {1, 2}, {0, 1, 2, 3}, {4}]


@pytest.mark.parametrize("kind", ["aitm", "dbmtl"])
def test_gradients(kind):
    towers, transfer = make(kind, OTHERS)
    towers.double(), transfer.double()
    x = [tensor.requires_grad_() for tensor in inputs_of(OTHERS, rows=2, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *given: transfer(towers, given), x)


@pytest.mark.parametrize("kind", ["aitm", "dbmtl"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_row_keeps_its_bits_at_any_height(kind, autocast):
    towers, transfer = make(kind, CHAIN, width=66, hidden=(10,))
    towers.eval(), transfer.eval()
    x = inputs_of(CHAIN, 300, 66)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        whole = transfer(towers, x)
        assert whole.dtype == torch.float32
        if not HAS_KERNELS:
            return
        for rows in (1, 2, 3, 5, 100):
            assert torch.equal(transfer(towers, [h[:rows] for h in x]), whole[:rows])
            assert torch.equal(transfer(towers, [h[-rows:] for h in x]), whole[-rows:])


def test_aitm_takes_towers_of_any_kind_and_dbmtl_says_which_it_reads():
    towers = TaskTowers.of([torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Flatten(0))] * 3)
    assert AdaptiveTransfer(CHAIN, 6)(towers, inputs_of(CHAIN)).shape == (7, 3)
    with pytest.raises(ValueError, match=r"expected modules of class Tower.*got Sequential; use"):
        BayesianTransfer(CHAIN, towers)


def test_attention_starts_with_values_of_order_one():
    module = InformationTransfer(64, 1, 32)
    z = module(torch.randn(2000, 64), [torch.randn(2000, 64)])
    assert 0.5 < z.std() < 1.5

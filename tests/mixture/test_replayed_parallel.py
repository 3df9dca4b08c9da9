"""Experts spread over ranks equal all experts in one place; here the ranks are two threads.

Cases: FastMoE (laekov/fastmoe), tests/test_ddp.py and test_local_exchange.py; DeepSpeed
(deepspeedai/DeepSpeed), tests/unit/moe/test_moe.py, TestExpertWeightGradWithZero (one rank against
two); Megatron-LM, token dispatcher tests with a rank that gets no tokens; torchtitan,
tests/unit_tests/cpu/test_expert_parallel.py (rows that arrive by rank are sorted by expert).
The dispatcher below is the plainest one that works, made of the operators and an all-to-all.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mmoe.mixture import MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.ops import gated_combine, permute, route_plan, unpermute

D, H, G, E = 6, 5, 3, 5
RANKS = 2


class Network:
    """All-to-all among threads: every rank hands in a tuple for each rank, and gets one from each.

    The tensors keep their graphs, so that gradients find their way back.
    """

    def __init__(self):
        self.barrier = threading.Barrier(RANKS, timeout=60)
        self.sent = [None] * RANKS

    def exchange(self, rank, parts):
        self.sent[rank] = parts
        self.barrier.wait()
        received = [parts[rank] for parts in self.sent]
        self.barrier.wait()
        return received

    def on_every_rank(self, function):
        """Runs `function(rank)` on each rank; a failing rank does not keep the others waiting."""

        def run(rank):
            try:
                return function(rank)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(RANKS) as threads:
            return [future.result() for future in [threads.submit(run, r) for r in range(RANKS)]]


def sort_by_expert(experts_R, num_experts):
    """The plan of rows that each go to one expert."""
    return route_plan(experts_R.view(-1, 1, 1), num_experts)


class TwoRanks:
    """Sends a row to each rank for each expert there that some gate picked."""

    def __init__(self, network, rank, bounds):
        self.network, self.rank, self.bounds = network, rank, bounds

    def dispatch(self, sources, plan):
        own = list(zip(self.bounds, self.bounds[1:], strict=False))
        plans, parts = [], []
        for first, last in own:
            theirs_BGK = (plan.experts_BGK >= first) & (plan.experts_BGK < last)
            picks_BGK = torch.where(theirs_BGK, plan.experts_BGK - first, -1)
            part = route_plan(picks_BGK, last - first)
            part = part._replace(rows_P=part.rows_P[: int(part.offsets_E1[-1])])
            plans.append(part)
            parts.append((permute(sources[0], part), part.offsets_E1.diff()))
        received = self.network.exchange(self.rank, parts)
        # By rank and expert; sorted, by expert and rank.
        local = torch.arange(own[self.rank][1] - own[self.rank][0], dtype=torch.int32)
        experts_R = torch.cat([local.repeat_interleave(counts) for _, counts in received])
        order = sort_by_expert(experts_R, len(local))
        rows_RD = permute(torch.cat([rows for rows, _ in received]), order)
        sizes = [len(rows) for rows, _ in received]
        return rows_RD, order.offsets_E1, (plan, plans, order, sizes)

    def combine(self, y, handle):
        plan, plans, order, sizes = handle
        back = self.network.exchange(self.rank, unpermute(y, order).split(sizes))
        slots_BGK, before = torch.full_like(plan.experts_BGK, -1), 0
        for part, rows in zip(plans, back, strict=True):
            slots_BGK = torch.where(part.slots_BGK >= 0, part.slots_BGK + before, slots_BGK)
            before += len(rows)
        return gated_combine(torch.cat(back), slots_BGK, plan.weights_BGK)


class OnlyFirst(torch.nn.Module):
    """Top-K gates that never pick an expert beyond the first two."""

    k = 2

    def __init__(self):
        super().__init__()
        self.gate = TopKGate(D, G, E, k=2)

    def forward(self, inputs, visibility_GE):
        return self.gate(inputs, visibility_GE & (torch.arange(E) < 2))


def make_gate(kind):
    torch.manual_seed(0)
    if kind == "dense":
        return SoftmaxGate(D, G, E).double()
    return (OnlyFirst() if kind == "first two" else TopKGate(D, G, E, k=2)).double()


def make_pool(experts=slice(None)):
    """These experts of the one pool."""
    torch.manual_seed(1)
    whole = MLPExperts(E, D, [7, H], activation="gelu").double()
    for bias in whole.biases:
        torch.nn.init.normal_(bias)
    part = MLPExperts(len(range(E)[experts]), D, [7, H], activation="gelu").double()
    with torch.no_grad():
        for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
            ours.copy_(theirs[experts])
    return part


def loss(outs):
    torch.manual_seed(2)
    return (torch.cat(outs) * torch.randn(sum(map(len, outs)), G, H, dtype=torch.float64)).sum()


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["top-k", "dense", "first two"])
@pytest.mark.parametrize("share", [2, 4, 1], ids=lambda share: f"{share} experts on rank 0")
@pytest.mark.parametrize("rows", [(8, 8), (7, 2), (5, 0), (0, 0)], ids=str)
def test_two_ranks_equal_one(kind, share, rows):
    """Outputs, and the gradients of inputs, gates (added up over the ranks) and experts.

    Uneven batches, uneven experts, a rank without a batch, a rank whose experts nobody picks.
    """
    torch.manual_seed(3)
    x = [torch.randn(count, D, dtype=torch.float64, requires_grad=True) for count in rows]
    network, bounds = Network(), [0, share, E]
    layers = [
        MultiGateMixture(
            D,
            G,
            make_pool(slice(bounds[rank], bounds[rank + 1])),
            gate=make_gate(kind),
            visibility=torch.ones(G, E, dtype=torch.bool),
            dispatcher=TwoRanks(network, rank, bounds),
        )
        for rank in range(RANKS)
    ]
    single = MultiGateMixture(D, G, make_pool(), gate=make_gate(kind), execution="dense")

    outs = network.on_every_rank(lambda rank: layers[rank](x[rank]).out_BGO)
    expected = single(torch.cat(x)).out_BGO

    torch.testing.assert_close(torch.cat(outs), expected)
    of_inputs = torch.autograd.grad(loss([expected]), x, retain_graph=True)
    loss([expected]).backward(inputs=list(single.parameters()))
    loss(outs).backward()
    torch.testing.assert_close([leaf.grad for leaf in x], list(of_inputs))
    gates = zip(*(layer.gate.parameters() for layer in layers), strict=True)
    for parts, whole in zip(gates, single.gate.parameters(), strict=True):
        torch.testing.assert_close(sum(part.grad for part in parts), whole.grad)
    pools = zip(*(layer.experts.parameters() for layer in layers), strict=True)
    for parts, whole in zip(pools, single.experts.parameters(), strict=True):
        torch.testing.assert_close(torch.cat([part.grad for part in parts]), whole.grad)
    if kind == "first two":
        assert not whole.grad[2:].any()


def test_a_rank_that_fails_does_not_keep_the_other_waiting():
    network = Network()

    def run(rank):
        if rank:
            raise KeyError("lost")
        return network.exchange(rank, [1, 2])

    with pytest.raises((KeyError, threading.BrokenBarrierError)):
        network.on_every_rank(run)


@pytest.mark.parametrize(
    ("counts", "order"),
    [
        ([[2, 3], [1, 4]], [0, 1, 5, 2, 3, 4, 6, 7, 8, 9]),
        ([[4, 2, 5]], list(range(11))),
        ([[3], [5], [2]], list(range(10))),
        ([[0, 3], [2, 0]], [3, 4, 0, 1, 2]),
        ([[0, 0], [0, 0]], []),
        ([[2, 2], [2, 2], [2, 2]], [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]),
        ([[3, 1, 4], [1, 5, 9]], [0, 1, 2, 8, 3, 9, 10, 11, 12, 13, 4, 5, 6, 7, *range(14, 23)]),
    ],
    ids=["two ranks", "one rank", "one expert", "gaps", "no rows", "uniform", "uneven"],
)
def test_rows_by_rank_become_rows_by_expert(counts, order):
    """Rows of each expert on each rank, and the order by expert; there and back with gradients.

    Case: torchtitan, class TestPermute.
    """
    num_experts = len(counts[0])
    local = torch.arange(num_experts, dtype=torch.int32).repeat(len(counts))
    experts_R = local.repeat_interleave(torch.tensor(counts).flatten())
    rows = len(experts_R)
    x_RD = torch.randn(rows, 4, requires_grad=True)
    grad_RD = torch.randn(rows, 4)

    plan = sort_by_expert(experts_R, num_experts)
    sorted_RD = permute(x_RD, plan)
    restored_RD = unpermute(2 * sorted_RD, plan)

    assert plan.rows_P.tolist() == order
    assert plan.offsets_E1.diff().tolist() == torch.tensor(counts).sum(0).tolist()
    assert torch.equal(sorted_RD, x_RD[order])
    assert torch.equal(restored_RD, 2 * x_RD)
    (back_RD,) = torch.autograd.grad(restored_RD, x_RD, grad_RD)
    assert torch.equal(back_RD, 2 * grad_RD)

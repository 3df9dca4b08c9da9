"""What can be made of a plan: without its tail, padded, over several sources."""

import pytest
import torch

from mmoe import ops
from mmoe.mixture.dispatcher import experts_of_pairs, padded_routes, plan_routes, routes_by_source
from mmoe.ops.dispatch import permute

B, G, K, E = 9, 2, 2, 4


def make_picks(rows=B, unused=0.3):
    torch.manual_seed(0)
    picks = torch.rand(rows, G, E).argsort(-1)[..., :K].to(torch.int32)
    return picks.masked_fill(torch.rand(rows, G, K) < unused, -1)


def pairs_of(plan):
    """Pairs (expert, row) in order, from a plan of any width."""
    return [
        (e, int(plan.rows_P[p]))
        for e in range(E)
        for p in range(int(plan.offsets_E1[e]), int(plan.offsets_E1[e + 1]))
    ]


@pytest.mark.parametrize("unused", [0.0, 0.3, 1.0])
def test_the_tail_is_cut_on_the_cpu(unused):
    picks = make_picks(unused=unused)
    full, cut = ops.route_plan(picks, E), plan_routes(picks, E)
    assert len(cut.rows_P) == int(full.offsets_E1[-1])
    assert torch.equal(cut.rows_P, full.rows_P[: len(cut.rows_P)])
    assert torch.equal(cut.slots_BGK, full.slots_BGK)
    assert experts_of_pairs(cut).tolist() == [e for e, _ in pairs_of(cut)]


def test_where_nothing_may_be_read_a_limit_still_bounds_the_rows():
    picks = make_picks().to("meta")
    assert len(plan_routes(picks, E).rows_P) == B * min(G * K, E)
    assert len(plan_routes(picks, E, limit=3).rows_P) == 3 * E


@pytest.mark.parametrize("rows", [0, 1, B])
def test_padded_routes_hold_the_same_pairs(rows):
    picks = make_picks(rows)
    plan = plan_routes(picks, E)
    width = rows
    padded = padded_routes(plan, picks, width)
    assert padded.rows_P.shape == (E * width,)
    assert padded.offsets_E1.tolist() == [e * width for e in range(E + 1)]
    assert [pair for pair in pairs_of(padded) if pair[1] >= 0] == pairs_of(plan)
    for b, g, k in picks.ge(0).nonzero().tolist():
        slot = int(padded.slots_BGK[b, g, k])
        assert slot // width == picks[b, g, k]
        assert padded.rows_P[slot] == b
    assert (padded.slots_BGK[picks < 0] == -1).all()


@pytest.mark.parametrize("padded", [False, True])
def test_routes_by_source_read_each_experts_own_source(padded):
    picks, source_E = make_picks(), torch.tensor([1, 0, 2, 1], dtype=torch.int32)
    plan = plan_routes(picks, E)
    if padded:
        plan = padded_routes(plan, picks, B)
    by_source = routes_by_source(plan, picks, source_E, 3)
    x = torch.randn(B, 3, 5, dtype=torch.float64, requires_grad=True)
    rows = permute(x.flatten(0, 1), by_source)
    expected = torch.stack(
        [
            x[b, source_E[e]] if b >= 0 else torch.zeros(5, dtype=torch.float64)
            for e, b in pairs_of(plan)
        ]
    )
    assert torch.equal(rows, expected)
    weight = torch.randn_like(rows)
    grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (rows, expected)]
    torch.testing.assert_close(*grads)

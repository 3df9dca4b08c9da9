"""Cases other projects test their permutations on, in our words, and random indices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.ops import RoutePlan, gated_combine, permute, route_plan, unpermute


@pytest.mark.parametrize("K", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_with_equal_weights_changes_nothing(K, dtype, close):
    """Forward and gradient; so do rows gathered, left alone and combined with weights 1 / K.

    Case: Megatron-LM, tests/unit_tests/transformer/moe/test_token_dispatcher.py, the dropless test.
    """
    generator = torch.Generator().manual_seed(K)
    experts_BGK = torch.rand(64, 1, 8, generator=generator).topk(K).indices.to(torch.int32)
    plan = route_plan(experts_BGK, 8)
    x_BD = torch.randn(64, 16, generator=generator).to(dtype).requires_grad_()
    weights_BGK = torch.full((64, 1, K), 1 / K)

    added_BD = unpermute(permute(x_BD, plan), plan) / K
    combined_BD = gated_combine(permute(x_BD, plan), plan.slots_BGK, weights_BGK)[:, 0]

    for restored_BD in (added_BD, combined_BD):
        (grad_BD,) = torch.autograd.grad(restored_BD, x_BD, x_BD.detach())
        close(restored_BD, x_BD)
        close(grad_BD, x_BD)


def test_the_capacity_case_leaves_out_dropped_pairs():
    """A sample comes back once for every pick that is left, not at all where all were dropped.

    Case: Megatron-LM, tests/unit_tests/transformer/moe/test_token_dispatcher.py, the capacity test.
    """
    generator = torch.Generator().manual_seed(0)
    experts_BGK = torch.rand(16, 1, 4, generator=generator).topk(2).indices.to(torch.int32)
    experts_BGK[torch.rand(16, 1, 2, generator=generator) < 0.5] = -1
    left_B1 = (experts_BGK >= 0).sum((1, 2)).unsqueeze(1)
    assert set(left_B1.flatten().tolist()) == {0, 1, 2}
    plan = route_plan(experts_BGK, 4)
    x_BD = torch.randn(16, 5, generator=generator).double()

    torch.testing.assert_close(unpermute(permute(x_BD, plan), plan), left_B1 * x_BD)


@pytest.mark.parametrize(
    ("samples", "width", "experts", "K"),
    [
        (4, 2, 2, 1),
        (4, 2, 2, 2),
        (1024, 1, 4, 4),
        (1024, 1, 64, 2),
        (1024, 1536, 4, 1),
        (1024, 1536, 64, 2),
        (4096, 768, 128, 1),
    ],
)
def test_plan_gather_and_scatter_by_loops(samples, width, experts, K):
    """Random experts, a sample may draw one twice; counts, bounds, order, copies, weighted sums.

    Case: MegaBlocks, tests/ops/: histogram_test.py, cumsum_test.py, sort_test.py,
    padded_gather_test.py, padded_scatter_test.py, where loops over bins are the expectation.
    """
    generator = torch.Generator().manual_seed(samples + experts)
    picks_BGK = torch.randint(0, experts, (samples, 1, K), generator=generator).to(torch.int32)
    x_BD = torch.randn(samples, width, generator=generator)
    weights_BGK = torch.rand(samples, 1, K, generator=generator)

    chosen = list(enumerate(picks_BGK[:, 0].tolist()))
    bins = [[b for b, picks in chosen if expert in picks] for expert in range(experts)]
    ends = torch.tensor([len(rows) for rows in bins]).cumsum(0)
    order = torch.tensor([b for rows in bins for b in rows])
    share_BE = torch.zeros(samples, experts).scatter_add(
        1, picks_BGK[:, 0].long(), weights_BGK[:, 0]
    )
    expected_BD = torch.zeros(samples, width)
    for expert, rows in enumerate(bins):
        expected_BD[rows] += share_BE[rows, expert, None] * x_BD[rows]

    plan = route_plan(picks_BGK, experts)
    x_PD = permute(x_BD, plan)

    assert torch.equal(plan.offsets_E1[1:].long(), ends)
    assert torch.equal(x_PD[: ends[-1]], x_BD[order])
    out_BD = gated_combine(x_PD, plan.slots_BGK, weights_BGK)[:, 0]
    torch.testing.assert_close(out_BD, expected_BD, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("picks", "experts", "order"),
    [
        ([1, 1, 1, 0, 0], 2, [3, 4, 0, 1, 2]),
        ([3, 1, 3], 4, [1, 0, 2]),
        ([-1, -1, -1, -1], 4, []),
        ([0, 0, 0], 1, [0, 1, 2]),
        ([0, 0, 1, 1, 2, 2], 3, [0, 1, 2, 3, 4, 5]),
        ([4, 0, 4, 2, 4, 0, 5], 6, [1, 5, 3, 0, 2, 4, 6]),
    ],
    ids=["some without rows", "gaps", "no rows at all", "one expert", "uniform", "uneven"],
)
def test_experts_without_rows(picks, experts, order):
    """Case: torchtitan, tests/unit_tests/cpu/test_expert_parallel.py, class TestPermute."""
    experts_BGK = torch.tensor(picks, dtype=torch.int32).view(-1, 1, 1)
    plan = route_plan(experts_BGK, experts)
    x_BD = torch.arange(2.0 * len(picks)).view(-1, 2).requires_grad_()
    grad_PD = torch.arange(2.0 * len(picks)).view(-1, 2)

    x_PD = permute(x_BD, plan)
    (grad_BD,) = torch.autograd.grad(x_PD, x_BD, grad_PD)

    assert torch.equal(x_PD[: len(order)], x_BD[order])
    assert not x_PD[len(order) :].any()
    expected_BD = torch.zeros_like(x_BD)
    expected_BD[order] = grad_PD[: len(order)]
    assert torch.equal(grad_BD, expected_BD)
    assert torch.equal(unpermute(2 * x_PD, plan)[order], 2 * x_BD[order])


@pytest.mark.parametrize("K", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 37])
@pytest.mark.parametrize("width", [100, 128, 600])
def test_a_loop_over_samples_and_picks(length, width, K):
    """Case: ScatterMoE, tests/test_mlp.py, its grid with one row and widths that fit no vector."""
    generator = torch.Generator().manual_seed(width + K)
    weights_BK, picks_BK = torch.rand(length, 8, generator=generator).softmax(-1).topk(K)
    plan = route_plan(picks_BK.unsqueeze(1).to(torch.int32), 8)
    scale_E = torch.arange(1.0, 9.0)
    x_BD = torch.randn(length, width, generator=generator)

    x_PD = permute(x_BD, plan)
    experts_P = torch.bucketize(torch.arange(x_PD.shape[0]), plan.offsets_E1[1:], right=True)
    y_PD = x_PD * scale_E[experts_P.clamp(max=7)].unsqueeze(1)
    out_BD = gated_combine(y_PD, plan.slots_BGK, weights_BK.unsqueeze(1))[:, 0]

    expected_BD = torch.stack(
        [
            sum(weights_BK[i, j] * scale_E[picks_BK[i, j]] * x_BD[i] for j in range(K))
            for i in range(length)
        ]
    )
    torch.testing.assert_close(out_BD, expected_BD, rtol=1e-5, atol=1e-6)


INDEX = st.one_of(st.integers(-2, 9), st.sampled_from([-(2**31), 2**31 - 1]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    B=st.integers(0, 5),
    D=st.sampled_from([0, 1, 3, 16, 33]),
    rows=st.lists(INDEX, max_size=8),
    picks=st.lists(INDEX, min_size=5, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_any_indices_work_or_are_refused(B, D, rows, picks, dtype):
    rows_P = torch.tensor(rows, dtype=torch.int32)
    slots_BGK = torch.tensor(picks[:B], dtype=torch.int32).view(B, 1, 1)
    plan = RoutePlan(rows_P, torch.zeros(1, dtype=torch.int32), slots_BGK)
    x_BD, y_PD = torch.ones(B, D, dtype=dtype), torch.ones(len(rows), D, dtype=dtype)

    if all(-1 <= row < B for row in rows):
        expected_PD = (rows_P >= 0).to(dtype).unsqueeze(1).expand(-1, D)
        assert torch.equal(permute(x_BD, plan), expected_PD)
    else:
        with pytest.raises(ValueError, match=rf"rows_P: expected rows in \[0, {B}\) or -1, got "):
            permute(x_BD, plan)

    own = [slot == -1 or rows[slot : slot + 1] == [b] for b, slot in enumerate(picks[:B])]
    if all(own) and min(picks[:B], default=0) >= -1:
        expected_BD = (slots_BGK.view(B, 1) >= 0).to(dtype).expand(-1, D)
        assert torch.equal(unpermute(y_PD, plan), expected_BD)
    else:
        with pytest.raises(ValueError, match=r"slots_BGK: expected (slots in|pairs of sample) "):
            unpermute(y_PD, plan)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    B=st.integers(0, 6),
    K=st.integers(1, 4),
    D=st.sampled_from([0, 1, 3, 16, 33, 70]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    data=st.data(),
)
def test_any_routing(B, K, D, dtype, data):
    """Whole numbers are exact in every dtype, so sums are the same in any order."""
    picks = data.draw(
        st.lists(
            st.lists(st.integers(-1, 5), min_size=2 * K, max_size=2 * K), min_size=B, max_size=B
        )
    )
    plan = route_plan(torch.tensor(picks, dtype=torch.int32).view(B, 2, K), 6)
    x_BD = torch.arange(B * D).view(B, D).remainder(64).to(dtype)
    distinct = [{expert for expert in sample if expert >= 0} for sample in picks]
    pairs = [b for expert in range(6) for b, sample in enumerate(distinct) if expert in sample]

    x_PD = permute(x_BD, plan)

    assert torch.equal(x_PD[: len(pairs)], x_BD[pairs])
    assert not x_PD[len(pairs) :].any()
    counts_B1 = torch.tensor([len(sample) for sample in distinct], dtype=dtype).view(-1, 1)
    x_PD[len(pairs) :] = torch.nan
    assert torch.equal(unpermute(x_PD, plan), counts_B1 * x_BD)

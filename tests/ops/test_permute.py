import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.ops import RoutePlan, permute, reference, route_plan, unpermute
from tests.needs_kernels import needs_kernels
from tests.thinning import examples


def plan_of(case):
    return route_plan(case.experts_BGK(), case.E)


def pairs_of(plan):
    """Each sample's distinct pairs in increasing order, as Python lists."""
    picks = plan.slots_BGK.flatten(1).tolist()
    return [sorted({slot for slot in sample if slot >= 0}) for sample in picks]


def added_up(y_PD, plan):
    """The contract of unpermute, word for word, in float64."""
    rows_BD = [y_PD[pairs].double().sum(0) for pairs in pairs_of(plan)]
    return torch.stack(rows_BD) if rows_BD else y_PD.new_zeros(0, y_PD.shape[1]).double()


def gradient(function, rows, plan, grad):
    rows = rows.clone().requires_grad_()
    function(rows, plan).backward(grad)
    return rows.grad


def test_sums_are_taken_in_order_and_rounded_once():
    """1 + 2^-8 + 2^-8 is 1 in bfloat16 steps, and 1 + 2^-7 when float32 holds the sum."""
    plan = route_plan(torch.tensor([[[2, 0, 1]]], dtype=torch.int32), 3)
    y_PD = torch.tensor([[1.0], [2.0**-8], [2.0**-8]])

    assert unpermute(y_PD.bfloat16(), plan).item() == 1 + 2.0**-7
    large_first = torch.tensor([[2.0**24], [1.0], [1.0]])
    assert unpermute(large_first, plan).item() == 2.0**24
    assert unpermute(large_first.flip(0), plan).item() == 2.0**24 + 2


def test_without_the_tail(usual):
    """The mixture cuts a plan at its last pair where that number is at hand."""
    plan = route_plan(usual.experts_BGK() // 2, usual.E)
    pairs = int(plan.offsets_E1[-1])
    assert pairs < plan.rows_P.numel()
    x_BD, y_PD = usual.random(usual.B, 9), usual.random(plan.rows_P.numel(), 9)
    cut = plan._replace(rows_P=plan.rows_P[:pairs])

    assert torch.equal(permute(x_BD, cut), permute(x_BD, plan)[:pairs])
    assert torch.equal(unpermute(y_PD[:pairs], cut), unpermute(y_PD, plan))


def test_pairs_that_no_slot_names_get_no_gradient(usual):
    """A plan whose picks were dropped afterwards, its pairs still there."""
    plan = plan_of(usual)
    dropped = plan._replace(
        slots_BGK=plan.slots_BGK.masked_fill(usual.random(*plan.slots_BGK.shape) < 0.3, -1)
    )
    named = sorted({slot for pairs in pairs_of(dropped) for slot in pairs})
    assert len(named) < int(plan.offsets_E1[-1])
    y_PD = usual.random(plan.rows_P.numel(), 3).double().requires_grad_()

    assert torch.autograd.gradcheck(lambda y: unpermute(y, dropped), (y_PD,))
    grad_PD = gradient(unpermute, y_PD.detach(), dropped, torch.ones(usual.B, 3).double())
    assert grad_PD.any(1).nonzero().flatten().tolist() == named


def test_rows_that_lie_apart(usual):
    plan = plan_of(usual)
    wide_BD = usual.random(usual.B, 3 * usual.O)
    wide_PD = usual.random(plan.rows_P.numel(), 3 * usual.O)
    strided = RoutePlan(
        plan.rows_P.repeat_interleave(2)[::2], plan.offsets_E1, plan.slots_BGK.mT.contiguous().mT
    )
    columns = slice(usual.O, 2 * usual.O)

    for part_BD in (wide_BD[:, columns], wide_BD.t().contiguous().t()[:, columns]):
        assert torch.equal(permute(part_BD, strided), permute(wide_BD[:, columns].clone(), plan))
    for part_PD in (wide_PD[:, columns], wide_PD.t().contiguous().t()[:, columns]):
        expected_BD = unpermute(wide_PD[:, columns].clone(), plan)
        assert torch.equal(unpermute(part_PD, strided), expected_BD)
    same_BD = wide_BD[:1, columns].expand(usual.B, -1)
    assert torch.equal(permute(same_BD, plan), permute(same_BD.clone(), plan))


@pytest.mark.parametrize("picks", [1, 5, 31, 32, 33, 70])
def test_many_picks_of_few_experts(picks):
    """Short and long lists of slots are sorted in two ways."""
    experts_BGK = torch.randint(-1, 6, (12, 1, picks), generator=torch.Generator().manual_seed(3))
    plan = route_plan(experts_BGK.to(torch.int32), 6)
    y_PD = torch.randn(plan.rows_P.numel(), 5, generator=torch.Generator().manual_seed(4)).double()

    torch.testing.assert_close(unpermute(y_PD, plan), added_up(y_PD, plan))


KERNELS = [
    pytest.param(torch.ops.mmoe, id="kernel", marks=needs_kernels),
    pytest.param(reference, id="reference"),
]
NUMBERS = [-2, -(2**31), 2**31 - 1]


@pytest.mark.parametrize("ops", KERNELS)
def test_refuses_rows_and_slots_that_are_not_there(ops):
    for row in (2, *NUMBERS):
        rows_P, slots_BGK = torch.tensor([0, row]).int(), torch.zeros(2, 1, 1).int()
        message = rf"rows_P: expected rows in \[0, 2\) or -1, got {row}$"
        with pytest.raises(ValueError, match=message):
            ops.permute(torch.zeros(2, 3), rows_P, slots_BGK)
    for slot in (3, *NUMBERS):
        rows_P, slots_BGK = torch.tensor([0, 1, 1]).int(), torch.tensor([[[0]], [[slot]]]).int()
        message = rf"slots_BGK: expected slots in \[0, 3\) or -1, got {slot}$"
        with pytest.raises(ValueError, match=message):
            ops.unpermute(torch.zeros(3, 3), rows_P, slots_BGK)


@pytest.mark.parametrize("ops", KERNELS)
def test_refuses_a_pair_of_another_sample(ops):
    rows_P = torch.tensor([0, 1, -1], dtype=torch.int32)

    for slots, message in [
        ([[0], [0]], r"expected pairs of sample 1, got pair 0 of sample 0 in rows_P$"),
        ([[2], [0]], r"expected pairs of sample 0, got pair 2 of sample -1 in rows_P$"),
    ]:
        slots_BGK = torch.tensor([slots], dtype=torch.int32).view(2, 1, 1)
        with pytest.raises(ValueError, match=rf"slots_BGK: {message}"):
            ops.unpermute(torch.zeros(3, 3), rows_P, slots_BGK)


PAIRS, SLOTS = torch.zeros(4).int(), torch.zeros(2, 1, 2).int()


@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (permute, {"x": torch.zeros(2)}, r"x_BD: expected 2 dimensions \[B, D\], got shape \[2\]"),
        (permute, {"x": torch.zeros(2, 3).half()}, r"x_BD: expected one of torch.float32.*float16"),
        (permute, {"rows": torch.zeros(4)}, r"rows_P: expected dtype torch.int32, got torch.float"),
        (permute, {"rows": PAIRS[None]}, r"rows_P: expected 1 dimension \[P\], got shape"),
        (permute, {"slots": SLOTS[0]}, r"slots_BGK: expected 3 dimensions"),
        (permute, {"slots": SLOTS.long()}, r"slots_BGK: expected dtype torch.int32"),
        (
            permute,
            {"slots": SLOTS[:1]},
            r"slots_BGK: expected shape \[2, 1, 2\] to fit x_BD \(B sam",
        ),
        (permute, {"rows": PAIRS.to("meta")}, r"rows_P: expected device cpu as x_BD, got meta"),
        (
            unpermute,
            {"x": torch.zeros(3, 3)},
            r"rows_P: expected shape \[3\] to fit y_PD \(P pairs",
        ),
        (unpermute, {"x": torch.zeros(4, 3).int()}, r"y_PD: expected one of torch.float32"),
        (
            unpermute,
            {"slots": SLOTS.to("meta")},
            r"slots_BGK: expected device cpu as y_PD, got met",
        ),
    ],
)
def test_says_what_is_wrong(function, changed, message):
    x = torch.zeros(2 if function is permute else 4, 3)
    given = {"x": x, "rows": PAIRS, "slots": SLOTS} | changed
    plan = RoutePlan(given["rows"], torch.zeros(1).int(), given["slots"])

    with pytest.raises(ValueError, match=message):
        function(given["x"], plan)


INDEX = st.one_of(st.integers(-2, 9), st.sampled_from([-(2**31), 2**31 - 1]))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
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


@settings(max_examples=examples(150), deadline=None, derandomize=True)
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

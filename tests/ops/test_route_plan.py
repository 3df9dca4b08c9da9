import pytest
import torch

from mmoe.ops import reference, route_plan
from tests.needs_kernels import needs_kernels


def by_hand(experts_BGK: torch.Tensor, num_experts: int) -> tuple[list[int], list[int], list[int]]:
    """The contract, word for word, with Python lists."""
    B, G, K = experts_BGK.shape
    picks = experts_BGK.view(B, G * K).tolist()
    pairs = sorted({(e, b) for b in range(B) for e in picks[b] if e >= 0})
    rows = [b for _, b in pairs] + [-1] * (B * min(G * K, num_experts) - len(pairs))
    offsets = [sum(e < bound for e, _ in pairs) for bound in range(num_experts + 1)]
    numbers = {pair: number for number, pair in enumerate(pairs)}
    slots = [numbers.get((e, b), -1) for b in range(B) for e in picks[b]]
    return rows, offsets, slots


def as_lists(plan: tuple[torch.Tensor, ...]) -> tuple[list[int], ...]:
    return tuple(tensor.flatten().tolist() for tensor in plan)


@pytest.mark.parametrize("function", [route_plan, reference.route_plan])
def test_is_the_contract(case, function):
    plan = function(case.experts_BGK(), case.E)

    assert as_lists(plan) == by_hand(case.experts_BGK(), case.E)
    assert plan[2].shape == (case.B, case.G, case.K)
    assert all(tensor.dtype == torch.int32 for tensor in plan)


@pytest.mark.parametrize(
    ("experts", "num_experts", "message"),
    [
        (torch.zeros(2, 1, 1), 3, r"experts_BGK: expected dtype torch.int32, got torch.float32"),
        (torch.zeros(2, 1, 1).long(), 3, r"got torch.int64; use .to\(torch.int32\)"),
        (torch.zeros(2, 1).int(), 3, r"experts_BGK: expected 3 dimensions \[B, G, K\].*\[2, 1\]"),
        (torch.zeros(2, 0, 1).int(), 3, r"at least one gate and one pick, got shape \[2, 0, 1\]"),
        (torch.zeros(2, 1, 1).int(), 0, r"num_experts: expected 1 to 2147483647, got 0"),
        (torch.zeros(2, 1, 1).int(), 2**31, r"num_experts: .* got 2147483648"),
        (torch.zeros(1, 1, 1).int().expand(2**30, 1, 2), 2, r"2147483648 pairs do not fit in int"),
    ],
)
def test_says_what_is_wrong(experts, num_experts, message):
    with pytest.raises(ValueError, match=message):
        route_plan(experts, num_experts)


@needs_kernels
@pytest.mark.parametrize("expert", [3, -2, 2**31 - 1])
def test_refuses_an_expert_that_is_not_there(expert):
    experts_BGK = torch.tensor([[[0, expert]]], dtype=torch.int32)

    message = rf"experts_BGK: expected experts in \[0, 3\) or -1, got {expert}"
    with pytest.raises(ValueError, match=message):
        route_plan(experts_BGK, 3)

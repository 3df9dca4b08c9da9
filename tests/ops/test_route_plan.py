import pytest
import torch

from mmoe.ops import RoutePlan, extension_status, reference, route_plan


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


def test_is_the_contract(case):
    plan = route_plan(case.experts_BGK(), case.E)

    assert as_lists(plan) == by_hand(case.experts_BGK(), case.E)
    assert plan.slots_BGK.shape == (case.B, case.G, case.K)
    assert all(tensor.dtype == torch.int32 for tensor in plan)


def test_reference_is_the_contract(case):
    plan = reference.route_plan(case.experts_BGK(), case.E)

    assert as_lists(plan) == by_hand(case.experts_BGK(), case.E)
    assert plan[2].shape == (case.B, case.G, case.K)
    assert all(tensor.dtype == torch.int32 for tensor in plan)


def test_compiles_to_one_graph(usual):
    compiled = torch.compile(route_plan, fullgraph=True, backend="aot_eager")

    plan = compiled(usual.experts_BGK(), usual.E)

    assert isinstance(plan, RoutePlan)
    assert as_lists(plan) == by_hand(usual.experts_BGK(), usual.E)


@pytest.mark.parametrize(
    ("experts", "num_experts", "message"),
    [
        (torch.zeros(2, 1, 1), 3, r"experts_BGK: expected dtype torch.int32, got torch.float32"),
        (torch.zeros(2, 1, 1).long(), 3, r"got torch.int64; use .to\(torch.int32\)"),
        (torch.zeros(2, 1).int(), 3, r"experts_BGK: expected 3 dimensions \[B, G, K\].*\[2, 1\]"),
        (torch.zeros(2, 0, 1).int(), 3, r"at least one gate and one pick, got shape \[2, 0, 1\]"),
        (torch.zeros(2, 1, 1).int(), 0, r"num_experts: expected 1 to 2147483647, got 0"),
        (torch.zeros(2, 1, 1).int(), 2**31, r"num_experts: .* got 2147483648"),
        (
            torch.zeros(1, 1, 1).int().expand(2**30, 1, 2),
            2,
            r"2147483648 pairs do not fit in int32",
        ),
    ],
)
def test_says_what_is_wrong(experts, num_experts, message):
    with pytest.raises(ValueError, match=message):
        route_plan(experts, num_experts)


@pytest.mark.skipif(
    not extension_status().built, reason="plain PyTorch does not look at the experts' values"
)
@pytest.mark.parametrize("expert", [3, -2, 2**31 - 1])
def test_refuses_an_expert_that_is_not_there(expert):
    experts_BGK = torch.tensor([[[0, expert]]], dtype=torch.int32)

    with pytest.raises(
        ValueError, match=rf"experts_BGK: expected experts in \[0, 3\) or -1, got {expert}"
    ):
        route_plan(experts_BGK, 3)


@pytest.mark.gpu
@pytest.mark.real_gpu
def test_can_be_captured_in_a_graph(usual):
    experts_BGK = usual.experts_BGK().cuda()
    route_plan(experts_BGK, usual.E)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = route_plan(experts_BGK, usual.E)

    experts_BGK.copy_(experts_BGK.flip(0))
    graph.replay()

    assert as_lists(plan) == by_hand(usual.experts_BGK().flip(0), usual.E)

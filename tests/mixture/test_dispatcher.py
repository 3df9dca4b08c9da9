"""LocalDispatcher: what it gathers, what it adds up, and the gradient."""

import pytest
import torch

from mmoe.mixture import DispatchPlan, LocalDispatcher


def make_plan(num_samples: int, expert_source: tuple[int, ...]) -> DispatchPlan:
    num_experts = len(expert_source)
    experts = torch.stack([torch.randperm(num_experts)[:2] for _ in range(num_samples * 3)]).view(
        num_samples, 3, 2
    )
    experts[::3, 1, 0] = -1
    return DispatchPlan(
        experts_BGK=experts.to(torch.int32),
        weights_BGK=torch.rand(num_samples, 3, 2, dtype=torch.float64),
        num_experts=num_experts,
        expert_source=expert_source,
    )


@pytest.mark.parametrize("expert_source", [(0, 0, 0, 0), (0, 0, 1, 1), (2, 0, 2, 1)])
def test_gathers_each_distinct_pair_once_and_combines(expert_source):
    torch.manual_seed(0)
    plan = make_plan(11, expert_source)
    sources = [torch.randn(11, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    rows, offsets, handle = LocalDispatcher().dispatch(sources, plan)

    picks = plan.experts_BGK.flatten(1).tolist()
    pairs = sorted({(e, b) for b, row in enumerate(picks) for e in row if e >= 0})
    assert len(rows) == len(pairs) == offsets[-1]
    expected = torch.stack([sources[expert_source[e]][b] for e, b in pairs])
    assert torch.equal(rows, expected)
    for e in range(4):
        assert offsets[e + 1] - offsets[e] == sum(pair[0] == e for pair in pairs)

    y = rows * torch.arange(1, len(pairs) + 1, dtype=torch.float64)[:, None]
    out = LocalDispatcher().combine(y, handle)
    slow = torch.zeros(11, 3, 5, dtype=torch.float64)
    for b in range(11):
        for g in range(3):
            for k in range(2):
                e = int(plan.experts_BGK[b, g, k])
                if e >= 0:
                    slow[b, g] += plan.weights_BGK[b, g, k] * y[pairs.index((e, b))]
    torch.testing.assert_close(out, slow)
    grads = torch.autograd.grad(out.sum(), sources, allow_unused=True, retain_graph=True)
    slow_grads = torch.autograd.grad(slow.sum(), sources, allow_unused=True)
    torch.testing.assert_close(grads, slow_grads)

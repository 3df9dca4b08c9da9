"""Some of the experts of a pool as a pool of their own, and the pool of none."""

import pytest
import torch
from torch import nn

from mmoe.mixture import ExpertPool, MLPExperts

D, O = 6, 5  # noqa: E741
POOLS = {
    "mlp": lambda: MLPExperts(4, D, [7, O], activation="swiglu"),
    "layer": lambda: MLPExperts(4, D, [7, O], norm="layer"),
    "batch": lambda: MLPExperts(4, D, [7, O], norm="batch"),
    "modules": lambda: ExpertPool([nn.Linear(D, O) for _ in range(4)]),
    "stacked": lambda: ExpertPool([nn.Linear(D, O) for _ in range(4)], stacked=True),
}


@pytest.fixture(params=POOLS)
def pool(request):
    torch.manual_seed(0)
    pool = POOLS[request.param]()
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.uniform_(-1, 1)
    return pool


@pytest.mark.parametrize("experts", [[2], [3, 0], [0, 1, 2, 3]], ids=str)
def test_a_part_computes_what_its_experts_do(pool, experts):
    x = torch.randn(3, D)
    part = pool.eval().part(experts).eval()
    assert len(part) == len(experts) and part.output_dim == O
    whole = pool.dense([x])
    for expert, y in zip(experts, part.dense([x]), strict=True):
        torch.testing.assert_close(y, whole[expert])


def test_a_part_is_a_copy(pool):
    before = {name: value.clone() for name, value in pool.state_dict().items()}
    generator = torch.get_rng_state()
    part = pool.part([1, 2])
    assert torch.equal(torch.get_rng_state(), generator)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in pool.state_dict().items())
    part.train()
    rows = torch.randn(4, D)
    part.grouped(rows, torch.tensor([0, 2, 4], dtype=torch.int32)).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in part.parameters())
    assert all(p.grad is None for p in pool.parameters())


@pytest.mark.whole
@pytest.mark.parametrize("wrong", [4, -1])
def test_experts_that_there_are_not(pool, wrong):
    with pytest.raises(ValueError, match=f"experts: expected numbers from 0 to 3, got {wrong}"):
        pool.part([0, wrong])


def test_no_experts(pool):
    part = pool.part([])
    assert type(part) is type(pool) and len(part) == 0 and part.output_dim == O
    assert part.dense([torch.zeros(3, D)]) == []
    x = torch.zeros(0, D, requires_grad=True)
    y = part.grouped(x, torch.zeros(1, dtype=torch.int32))
    assert y.shape == (0, O) and y.requires_grad
    with pytest.raises(ValueError, match=r"rows: expected none .* got 2"):
        part.grouped(torch.zeros(2, D), torch.tensor([0], dtype=torch.int32))
    part.output_dim = None
    with pytest.raises(ValueError, match="output_dim: expected the width"):
        part.grouped(x, torch.zeros(1, dtype=torch.int32))

"""Equal modules in one stack, and experts of several kinds in one pool."""

import copy

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    ExpertPool,
    MixedExperts,
    MLPExperts,
    MoE,
    MultiGateMixture,
    TopKGate,
    load_experts,
)
from mmoe.mixture.axes import axes_of

D, O = 6, 5  # noqa: E741


class Bilinear(nn.Module):
    """Somebody's: parameters, a buffer, and a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.inner = nn.Linear(D, O, bias=False), nn.Sequential(nn.Linear(D, O))
        self.scale = nn.Parameter(torch.rand(O))
        self.register_buffer("shift", torch.rand(O))
        self.output_dim = O

    def forward(self, x):
        return self.left(x) * self.inner(x) * self.scale + self.shift


def modules(count=3):
    torch.manual_seed(3)
    return [Bilinear() for _ in range(count)]


def mlps(count=4):
    torch.manual_seed(4)
    return MLPExperts(count, D, [7, O])


def mixed():
    return MixedExperts([mlps(), ExpertPool(modules(), stacked=True)])


@pytest.mark.parametrize("training", [True, False])
def test_a_stack_computes_what_its_modules_do(training):
    own = modules()
    plain, stack = ExpertPool(own).train(training), ExpertPool(own, stacked=True).train(training)
    x, offsets = torch.randn(9, D), torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    for y, expected in zip(stack.dense([x]), plain.dense([x]), strict=True):
        assert torch.equal(y, expected)
    y, expected = stack.grouped(x, offsets), plain.grouped(x, offsets)
    assert torch.equal(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for name, stacked in stack.stacked.named_parameters():
        for e, expert in enumerate(own):
            torch.testing.assert_close(stacked.grad[e], expert.get_parameter(name).grad)


def test_a_stack_is_trained_apart_from_the_modules_it_was_made_of():
    own = modules()
    before = own[0].scale.clone()
    stack = ExpertPool(own, stacked=True)
    with torch.no_grad():
        stack.stacked.scale.zero_()
    assert torch.equal(own[0].scale, before)
    assert stack.axes() == {name: {0: "experts"} for name in stack.state_dict()}


def test_running_statistics_are_each_experts_own():
    norms = [nn.BatchNorm1d(D) for _ in range(2)]
    for norm in norms:
        norm.output_dim = D
    stack = ExpertPool(norms, stacked=True)
    assert stack.traits.uses_batch
    x = torch.randn(8, D)
    stack.grouped(x, torch.tensor([0, 3, 8], dtype=torch.int32))
    for e, rows in enumerate((x[:3], x[3:])):
        torch.testing.assert_close(stack.stacked.running_mean[e], 0.1 * rows.mean(0))
    assert stack.stacked.num_batches_tracked.tolist() == [1, 1]


def test_modules_that_differ_cannot_be_stacked():
    with pytest.raises(ValueError, match="tensors are alike, got 'weight' of shapes"):
        ExpertPool([nn.Linear(4, 2), nn.Linear(3, 2)], stacked=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("execution", ["dense", "grouped", "padded"])
def test_a_mixed_pool_equals_its_experts_apart(execution, training):
    pool = mixed()
    gate = TopKGate(D, 2, 7, k=3)
    nn.init.normal_(gate.logits.weights[0])
    settings = {"gate": gate, "capacity": Capacity(factor=0.0)}
    layer = MultiGateMixture(D, 2, pool, execution=execution, **settings).train(training)
    single = [*(mlps().part([e]) for e in range(4)), *(ExpertPool([m]) for m in modules())]
    x = torch.randn(33, D)
    out = layer(x, return_gates=True)
    outputs = torch.stack([one.train(training).dense([x])[0] for one in single], 1)
    expected = torch.einsum("bge,beo->bgo", out.gate_weights_BGE, outputs)
    torch.testing.assert_close(out.out_BGO, expected)
    out.out_BGO.sum().backward()
    assert all(p.grad is not None for p in pool.parameters())


@pytest.mark.parametrize("experts", [[0, 1, 2], [2, 3, 4], [5], [4, 6], [0, 6]])
def test_a_part_of_a_mixed_pool(experts):
    pool = mixed().eval()
    part, x = pool.part(experts), torch.randn(8, D)
    whole = pool.dense([x])
    for e, y in zip(experts, part.dense([x]), strict=True):
        torch.testing.assert_close(y, whole[e])
    offsets = torch.linspace(0, 6, len(experts) + 1).round().int()
    y = part.grouped(x, offsets)
    for e, start, end in zip(experts, offsets, offsets[1:], strict=False):
        torch.testing.assert_close(y[start:end], whole[e][start:end])
    names = {name: len(t) for name, t in part.state_dict().items()}
    for name, axes in axes_of(part, {"experts": range(7)}).items():
        assert axes.owner("experts") is not None or names[name] == sum(
            e in axes.entries("experts") for e in experts
        )
    assert set(names) <= set(pool.state_dict()) and len(pool) == 7
    assert len(pool.part([])) == 0


def test_what_a_mixed_pool_refuses():
    with pytest.raises(ValueError, match="kind mlp returns width 5, but kind mine returns width 2"):
        MixedExperts(
            [mlps(), ExpertPool([nn.Linear(D, 2)], stacked=True)], ["kind mlp", "kind mine"]
        )
    with pytest.raises(ValueError, match="those of one pool side by side"):
        mixed().part([5, 0])
    with pytest.raises(ValueError, match="expected experts of one kind"):
        load_experts(MoE(D, mixed()), MoE(D, mixed()).state_dict())


def test_a_copy_and_bf16():
    pool = mixed().eval()
    x = torch.randn(4, D)
    twin = copy.deepcopy(pool)
    assert all(torch.equal(a, b) for a, b in zip(twin.dense([x]), pool.dense([x]), strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        assert len({y.dtype for y in pool.dense([x])}) == 1
        pool.grouped(x, torch.tensor([0, 1, 1, 1, 2, 2, 3, 3], dtype=torch.int32))

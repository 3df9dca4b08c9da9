"""Public functions: gradients, taken once; compiled, under autocast, without gradients."""

import pytest
import torch

from mmoe.ops import (
    RoutePlan,
    dense_combine,
    dense_mlp,
    dense_mm,
    gate_mm,
    gated_combine,
    gathered_mm,
    grouped_mm,
    mixed_towers,
    permute,
    shared_mm,
    target_attention,
    topk_gate,
    unpermute,
)
from mmoe.ops.gating import row_softmax
from mmoe.ops.row_sums import Owners

OFFSETS = torch.tensor([0, 2, 3], dtype=torch.int32)
SLOTS = torch.tensor([[[0, 1]], [[2, -1]]], dtype=torch.int32)
OWNERS = Owners(torch.tensor([0, 1, 1]), 2)
SIZES = torch.tensor([2, 1])
SEEN = torch.ones(1, 4, dtype=torch.bool)
PLAN = RoutePlan(torch.tensor([0, 0, 1], dtype=torch.int32), OFFSETS, SLOTS)
CALLS = {
    "grouped_mm": (
        lambda x, w, b: grouped_mm(x, OFFSETS, w, b, "gelu"), (3, 4), (2, 4, 5), (2, 5),
    ),
    "dense_mm": (lambda x, w, b: dense_mm(x, w, b, "gelu")[0], (3, 4), (2, 4, 5), (2, 5)),
    "shared_mm": (
        lambda x, w: shared_mm(x, w, None, [x.new_ones(2, 5)] * 2, OWNERS, "gelu")[0],
        (3, 4),
        (2, 4, 5),
    ),
    "gate_mm": (gate_mm, (3, 4), (4, 5), (5,)),
    "row_softmax": (lambda x, y: row_softmax(x * y).square(), (3, 4), (3, 4)),
    "gated_combine": (lambda y, w: gated_combine(y, SLOTS, w), (3, 4), (2, 1, 2)),
    "dense_combine": (lambda y, w: dense_combine([y, 2 * y], w), (3, 4), (3, 1, 2)),
    "mixed_towers": (
        lambda y, w: mixed_towers(
            [y, 2 * y], w.new_ones(3, 2, 2), w, *w.new_ones(3, 2, 5).unbind(0)[:2], w.new_ones(2)
        ),
        (3, 4),
        (2, 4, 5),
    ),
    "target_attention": (
        lambda e, w: target_attention(
            e, SIZES, e[:2], w, w.new_ones(2, 5), w.new_ones(5), w.new_ones(1)
        )[0],
        (3, 4),
        (8, 5),
    ),
    "topk_gate": (lambda x, w: topk_gate(x * w, SEEN, 2)[0], (3, 1, 4), (3, 1, 4)),
}  # fmt: skip

# Those that are made of others, or whose gradients have gradients
MORE = {
    "permute": (lambda x, y: permute(x, PLAN) * y, (2, 4), (3, 4)),
    "unpermute": (lambda x, y: unpermute(x, PLAN) * y, (3, 4), (2, 4)),
    "gathered_mm": (
        lambda x, w, b: gathered_mm(x, PLAN, w, b, "gelu"), (2, 4), (2, 4, 5), (2, 5),
    ),
    "dense_mlp": (
        lambda x, w: dense_mlp(x, [w, w.mT], [], "silu", "gelu")[0], (3, 4), (2, 4, 5),
    ),
}  # fmt: skip
every = pytest.mark.parametrize("name", CALLS | MORE)


def drawn(name, dtype=torch.float64):
    call, *shapes = (CALLS | MORE)[name]
    torch.manual_seed(0)
    return call, [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@every
def test_gradcheck(name):
    call, tensors = drawn(name)
    assert torch.autograd.gradcheck(call, tensors)


@every
def test_one_gradient_alone_has_the_bits_that_it_has_beside_others(name):
    call, tensors = drawn(name, torch.float32)
    together = torch.autograd.grad(call(*tensors).square().sum(), tensors)
    for at, whole in enumerate(together):
        alone = [tensor.detach() for tensor in tensors]
        alone[at].requires_grad_()
        call(*alone).square().sum().backward()
        assert [tensor.grad is None for tensor in alone] == [n != at for n in range(len(alone))]
        assert torch.equal(alone[at].grad, whole)


@every
def test_it_compiles_to_one_graph_with_its_gradient(name):
    call, tensors = drawn(name, torch.float32)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = [function(*tensors) for function in (compiled, call)]
    gradients = [torch.autograd.grad(out.square().sum(), tensors) for out in results]
    assert torch.equal(*results)
    assert all(map(torch.equal, *gradients))


@every
def test_without_gradients_and_under_autocast_it_is_the_same(name):
    call, tensors = drawn(name, torch.float32)
    whole = call(*tensors)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(call(*tensors), whole)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = call(*tensors)
        assert not out.requires_grad
        assert torch.equal(out.clone(), whole)


@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_of_a_gradient_is_refused(name):
    call, tensors = drawn(name)
    out = call(*tensors)
    expected = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    gradients = torch.autograd.grad(out.sum(), tensors, create_graph=True)
    for gradient, value in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, value)
        # As a gradient penalty does; the first gradient itself is still good for a step.
        penalty = out.sum() + gradient.square().sum()
        with pytest.raises(RuntimeError, match=f"mmoe.ops.{name}: its gradient cannot be diff"):
            penalty.backward(retain_graph=True)

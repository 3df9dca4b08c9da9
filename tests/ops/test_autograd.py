"""Gradients are taken once: differentiated again they raise, where they would be 0."""

import pytest
import torch

from mmoe.mixture import MultiGateMixture, TopKGate, mlp_experts
from mmoe.ops import (
    dense_combine,
    dense_mm,
    gate_mm,
    gated_combine,
    grouped_mm,
    mixed_towers,
    shared_mm,
    target_attention,
    topk_gate,
)
from mmoe.ops.gating import row_softmax
from mmoe.ops.repeat_rows import Owners

OFFSETS = torch.tensor([0, 2, 3], dtype=torch.int32)
SLOTS = torch.tensor([[[0, 1]], [[2, -1]]], dtype=torch.int32)
OWNERS = Owners(torch.tensor([0, 1, 1]), 2)
SIZES = torch.tensor([2, 1])
SEEN = torch.ones(1, 4, dtype=torch.bool)
CALLS = {
    "grouped_mm": (lambda x, w: grouped_mm(x, OFFSETS, w, None, "gelu"), (3, 4), (2, 4, 5)),
    "dense_mm": (lambda x, w: dense_mm(x, w, None, "gelu")[0], (3, 4), (2, 4, 5)),
    "shared_mm": (
        lambda x, w: shared_mm(x, w, None, [x.new_ones(2, 5)] * 2, OWNERS, "gelu")[0],
        (3, 4),
        (2, 4, 5),
    ),
    "gate_mm": (gate_mm, (3, 4), (4, 5)),
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
}


@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_of_a_gradient_is_refused(name):
    call, *shapes = CALLS[name]
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    out = call(*tensors)
    expected = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    gradients = torch.autograd.grad(out.sum(), tensors, create_graph=True)
    for gradient, value in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, value)
        # As a gradient penalty does; the first gradient itself is still good for a step.
        penalty = out.sum() + gradient.square().sum()
        with pytest.raises(RuntimeError, match=f"mmoe.ops.{name}: its gradient cannot be diff"):
            penalty.backward(retain_graph=True)


def test_a_gradient_penalty_through_a_mixture_is_refused():
    torch.manual_seed(0)
    x = torch.randn(6, 5, requires_grad=True)
    for execution in ("grouped", "dense"):
        layer = MultiGateMixture(
            5, 2, mlp_experts(4, 5, [3]), gate=TopKGate(5, 2, 4, k=2), execution=execution
        )
        (gradient,) = torch.autograd.grad(layer(x).out_BGO.sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="its gradient cannot be differentiated"):
            gradient.square().sum().backward()

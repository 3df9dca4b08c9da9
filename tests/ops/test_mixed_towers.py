"""Towers on mixes that nobody writes down: what `dense_combine` and two layers give."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmoe.ops import dense_combine, dense_mm, mixed_towers, reference
from tests.needs_kernels import needs_kernels
from tests.ops.conftest import LAYER_TYPES

# Rows, gates, experts, the mixes' width, the hidden layers' width
SHAPES = {
    "usual": (150, 6, 4, 32, 24),
    "several chunks": (700, 5, 8, 64, 32),
    "blocks of experts and gates": (130, 9, 19, 40, 8),
    "odd widths": (61, 3, 3, 67, 33),
    "one of each": (1, 1, 1, 1, 1),
    "no rows": (0, 3, 2, 6, 4),
    "no numbers of an expert": (5, 3, 2, 0, 4),
    "no hidden units": (5, 3, 2, 6, 0),
}
FP32 = LAYER_TYPES["fp32"]
ACTIVATIONS = ["none", "relu", "gelu", "silu"]
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float64: 1e-12}


def inputs(shape, types=LAYER_TYPES["fp64"]):
    """y, weights_BGE, and the towers' matrices."""
    B, G, E, width, H = shape
    generator = torch.Generator().manual_seed(B + G)
    rows, weight = types
    sums = torch.promote_types(rows, torch.float32)

    def randn(*sizes, dtype, scale=1.0):
        return (torch.randn(sizes, generator=generator) * scale).to(dtype)

    y = [randn(B, width, dtype=rows) for _ in range(E)]
    return [
        y,
        torch.rand(B, G, E, generator=generator).to(sums),
        randn(G, width, H, dtype=weight, scale=max(width, 1) ** -0.5),
        randn(G, H, dtype=weight),
        randn(G, H, dtype=sums),
        randn(G, dtype=sums),
    ]


def one_after_the_other(y, weights_BGE, weight, bias, head, head_bias, activation):
    mixes_GBO = dense_combine(y, weights_BGE).transpose(0, 1)
    hidden = [h.to(head.dtype) for h in dense_mm(mixes_GBO, weight, bias, activation)]
    return torch.cat(dense_mm(hidden, head.unsqueeze(2), head_bias.unsqueeze(1)), dim=1)


def close(actual, expected, dtype):
    """Within roundings of the largest number."""
    if expected.numel():
        torch.testing.assert_close(
            actual.double(),
            expected.double(),
            rtol=0,
            atol=TOLERANCES[dtype] * max(1.0, float(expected.abs().max())),
        )
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype


@needs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_has_the_bits_of_mixes_that_are_made(shape, layer_types, activation):
    tensors = inputs(shape, layer_types)

    logits_BG = mixed_towers(*tensors, activation)

    assert torch.equal(logits_BG, one_after_the_other(*tensors, activation))
    stacked = mixed_towers(torch.stack(tensors[0]), *tensors[1:], activation)
    assert torch.equal(logits_BG, stacked)


@given(
    rows=st.integers(0, 230),
    gates=st.integers(1, 9),
    experts=st.integers(1, 11),
    width=st.integers(0, 40),
    hidden=st.integers(0, 40),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_gradients_of_random_shapes(rows, gates, experts, width, hidden, activation):
    y, weights, weight, bias, head, head_bias = inputs((rows, gates, experts, width, hidden))
    _, kept = reference.mixed_towers(y, weights, weight, bias, head, head_bias, activation, True)
    arguments = (weights.sum(2), y, weights, weight, head, kept, activation, True)

    grad_y, *others = torch.ops.mmoe.mixed_towers_backward(*arguments)

    expected_y, *expected = reference.mixed_towers_backward(*arguments)
    # The kernel's normal distribution is exact to float32's rounding alone
    dtype = torch.float64 if activation in ("none", "relu") else torch.float32
    for actual, wanted in zip([*grad_y, *others], [*expected_y, *expected], strict=True):
        close(actual, wanted, dtype)


def leaves_of(tensors):
    return [t.requires_grad_() for t in (*tensors[0], *tensors[1:])]


def call(*leaves, activation="silu"):
    return mixed_towers(list(leaves[:-5]), *leaves[-5:], activation)


def test_gradcheck_of_experts_in_one_tensor():
    y, *others = inputs((4, 2, 3, 4, 3))
    leaves = [t.requires_grad_() for t in (torch.stack(y), *others)]

    assert torch.autograd.gradcheck(lambda *leaves: mixed_towers(*leaves, "silu"), leaves)


@pytest.mark.parametrize("learns", range(6))
def test_what_learns_alone_gets_the_gradient_it_gets_with_all(learns):
    tensors = inputs((60, 5, 3, 8, 6))
    leaves = leaves_of(tensors)
    every = torch.autograd.grad(call(*leaves).sum(), leaves)
    wanted = every[:3] if learns == 0 else every[2 + learns : 3 + learns]
    fresh = [leaf.detach() for leaf in leaves]
    own = slice(0, 3) if learns == 0 else slice(2 + learns, 3 + learns)
    alone = [leaf.requires_grad_() for leaf in fresh[own]]

    found = torch.autograd.grad(call(*fresh).sum(), alone)

    assert all(map(torch.equal, found, wanted))


@needs_kernels
def test_a_gate_does_not_depend_on_other_gates(layer_types):
    y, weights, *towers = inputs(SHAPES["several chunks"], layer_types)
    together = mixed_towers(y, weights, *towers)
    one = [matrix[2:3] for matrix in towers]
    assert torch.equal(mixed_towers(y, weights[:, 2:3], *one), together[:, 2:3])


@needs_kernels
def test_a_wide_layer_of_many_gates_takes_no_more_room_than_a_few_sums():
    """Sums of its gradients in so few parts that these stay below a bound."""
    shape = (200, 40, 1, 512, 512)
    y, weights, weight, bias, head, head_bias = inputs(shape, FP32)
    _, kept = torch.ops.mmoe.mixed_towers(y, weights, weight, bias, head, head_bias, "none", True)
    grad = torch.randn(200, 40)

    _, _, grad_weight, *_ = torch.ops.mmoe.mixed_towers_backward(
        grad, y, weights, weight, head, kept, "none", True
    )

    mix_BO = weights[:, 39] * y[0]
    wanted_OH = mix_BO.t() @ (grad[:, 39:] * head[39])
    torch.testing.assert_close(grad_weight[39], wanted_OH, rtol=1e-4, atol=1e-4)


def test_weights_may_be_wider_and_rows_may_lie_apart():
    y, weights, *towers = inputs((30, 3, 2, 8, 4), FP32)
    wide = torch.cat(y, dim=1)

    found = mixed_towers(list(wide.split(8, dim=1)), weights.double(), *towers)

    assert torch.equal(found, mixed_towers(y, weights, *towers))


@pytest.mark.parametrize(
    ("number", "wrong", "message"),
    [
        (0, [], "y: expected at least one expert, got none"),
        (1, torch.ones(4, 3, 5), r"weights_BGE: expected shape \[4, 3, 2\] to fit y"),
        (2, torch.ones(2, 5, 6), r"weight_GOH: expected shape \[3, 5, 6\] to fit weights_BGE"),
        (2, torch.ones(3, 4, 6), r"weight_GOH: expected shape \[3, 5, 6\] to fit weights_BGE"),
        (2, torch.ones(3, 5, 6).double(), "weight_GOH: expected dtype torch.float32, or that"),
        (3, torch.ones(3, 5), r"bias_GH: expected shape \[3, 6\] to fit weight_GOH"),
        (3, torch.ones(3, 6).double(), "bias_GH: expected dtype torch.float32 as weight_GOH"),
        (4, torch.ones(3, 5), r"head_GH: expected shape \[3, 6\] to fit weight_GOH"),
        (5, torch.ones(2), r"head_bias_G: expected shape \[3\] to fit weight_GOH"),
        (6, "tanh", "activation: expected one of none, relu, gelu, silu, got"),
    ],
)
def test_refuses(number, wrong, message):
    arguments = [*inputs((4, 3, 2, 5, 6), FP32), "relu"]
    arguments[number] = wrong
    with pytest.raises(ValueError, match=message):
        mixed_towers(*arguments)

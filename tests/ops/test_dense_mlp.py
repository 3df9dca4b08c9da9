from itertools import pairwise, product

import pytest
import torch

from mmoe.ops import dense_mlp, dense_mm, shared_mm
from mmoe.ops.row_sums import Owners
from tests.needs_kernels import needs_kernels
from tests.ops.conftest import LAYER_TYPES

FP32, FP64 = LAYER_TYPES["fp32"], LAYER_TYPES["fp64"]
# Experts, rows, widths from the input's on
SHAPES = {
    "usual": (5, 37, (16, 24, 8)),
    "one layer": (3, 50, (9, 4)),
    "three layers": (2, 300, (10, 33, 17, 5)),
    "many blocks": (2, 700, (70, 64, 40)),
    "odd widths": (3, 61, (33, 67, 1)),
    "no rows": (2, 0, (4, 6, 3)),
    "no hidden units": (2, 5, (4, 0, 3)),
    "too wide for the cache": (2, 70, (600, 700, 90)),
    "ten layers": (2, 9, (6,) * 11),
}


def inputs(shape, types=FP32, *, shared=True):
    """Rows of all experts or for each, weights and biases."""
    E, B, widths = shape
    generator = torch.Generator().manual_seed(B)

    def random(*sizes, like):
        return torch.randn(sizes, generator=generator).to(like)

    x = [random(B, widths[0], like=types[0]) for _ in range(1 if shared else E)]
    weights = [random(E, D, H, like=types[1]) * (2 / max(D, 1)) ** 0.5 for D, H in pairwise(widths)]
    return x, weights, [random(E, H, like=types[1]) for H in widths[1:]]


def shared_inputs(shape, types):
    """What owners have of the first product, and which owner each row belongs to."""
    E, B, widths = shape
    generator = torch.Generator().manual_seed(B + 1)
    owners = Owners(torch.randint(0, 7, (B,), generator=generator), 7)
    parts = [torch.randn(7, widths[1], generator=generator).to(types[0]) for _ in range(E)]
    return parts, owners


def one_after_the_other(x, weights, biases, activation, output_activation):
    for layer, weight_EDH in enumerate(weights):
        act = output_activation if layer + 1 == len(weights) else activation
        x = dense_mm(x, weight_EDH, biases[layer] if biases else None, act)
    return x


@pytest.mark.parametrize("activations", [("relu", "none"), ("gelu", "silu")], ids="-".join)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_has_the_bits_of_one_layer_after_the_other(shape, layer_types, activations):
    for rows, has_bias in product(("shared", "own", "of owners"), (True, False)):
        x, weights, biases = inputs(shape, layer_types, shared=rows != "own")
        some = biases if has_bias else []
        if rows == "of owners":
            shared, owners = shared_inputs(shape, layer_types)
            own = {"shared": shared, "owners": owners}
            first = activations[len(weights) == 1]
            bias_EH = some[0] if some else None
            hidden = shared_mm(x[0], weights[0], bias_EH, shared, owners, first)
            expected = one_after_the_other(hidden, weights[1:], some[1:], *activations)
        else:
            own, expected = {}, one_after_the_other(x, weights, some, *activations)

        y = dense_mlp(x if rows == "own" else x[0], weights, some, *activations, **own)

        assert [part.dtype for part in y] == [layer_types[0]] * len(y)
        assert all(map(torch.equal, y, expected))


@pytest.mark.parametrize("of_owners", [False, True])
def test_gradients_are_those_of_the_layers(of_owners):
    shape = 3, 9, (3, 4, 2)
    x, weights, biases = inputs(shape, FP64)
    shared, owners = shared_inputs(shape, FP64) if of_owners else ([], None)
    leaves = [t.requires_grad_() for t in (*x, *weights, *biases, *shared)]

    def call(x, v, w, b, c, *parts):
        more = {"shared": parts, "owners": owners} if parts else {}
        return tuple(dense_mlp(x, [v, w], [b, c], "silu", "gelu", **more))

    assert torch.autograd.gradcheck(call, leaves)
    with torch.no_grad():
        assert not call(*leaves)[0].requires_grad


def test_rows_that_lie_apart():
    x, weights, biases = inputs(SHAPES["odd widths"], shared=False)
    apart = list(torch.stack(x, dim=1).unbind(1))
    turned = [weight.mT.contiguous().mT for weight in weights]

    y = dense_mlp(apart, turned, biases)

    assert all(map(torch.equal, y, dense_mlp(x, weights, biases)))
    assert all(map(torch.equal, y, dense_mlp(torch.stack(x), weights, biases)))


V, W = WEIGHTS = [torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)]
ONE = Owners(torch.zeros(5).long(), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": []}, "weights: expected those of one layer or more, got none"),
        ({"biases": [torch.zeros(2, 4)]}, "biases: expected none or 2, one for each layer, got 1"),
        (
            {"weights": [V, torch.zeros(2, 3, 5)]},
            r"weights\[1\]: expected shape \[2, 4, 5\] to fit",
        ),
        ({"weights": [V, torch.zeros(3, 4, 5)]}, r"weights\[1\]: expected shape \[2, 4, 5\]"),
        ({"weights": [V, torch.zeros(4, 5)]}, r"weights\[1\]: expected 3 dimensions"),
        ({"weights": [V, W.double()]}, "weight_EDH: expected dtype"),
        ({"biases": [torch.zeros(2, 4), torch.zeros(2, 4)]}, r"bias_EH: expected shape \[2, 5\]"),
        ({"activation": "swish"}, "activation: expected one of none, relu, gelu, silu"),
        ({"output_activation": "swish"}, "activation: expected one of none, relu, gelu, silu"),
        ({"x": []}, "x: expected one tensor or 2"),
        ({"x": torch.zeros(5, 7)}, "weight_EDH: expected shape"),
        ({"shared": [torch.zeros(1, 4)] * 2}, "owners: expected with shared rows, got None"),
        (
            {"x": [torch.zeros(5, 3)] * 2, "owners": ONE},
            "x: expected one tensor beside owners, got",
        ),
        ({"shared": [torch.zeros(1, 9)] * 2, "owners": ONE}, r"shared\[0\]: expected shape \[1, 4"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dense_mlp(**{"x": torch.zeros(5, 3), "weights": WEIGHTS, **changes})


@needs_kernels
def test_the_operator_itself_refuses_what_does_not_fit():
    op, x = torch.ops.mmoe.dense_mlp, [torch.zeros(5, 3)]
    parts, owners_B = [torch.zeros(7, 4)] * 2, torch.zeros(5).int()
    for wrong in (
        (x, [], [], [], None),
        (x, WEIGHTS, [torch.zeros(2, 4)], [], None),
        (x, [V, torch.zeros(2, 3, 5)], [], [], None),
        (x, [V, torch.zeros(3, 4, 5)], [], [], None),
        (x, [V, torch.zeros(4, 5)], [], [], None),
        (x, WEIGHTS, [], parts, None),
        (x, WEIGHTS, [], [], owners_B),
        (x, WEIGHTS, [], parts[:1], owners_B),
        (x, WEIGHTS, [], parts, owners_B + 7),
        (x, WEIGHTS, [], parts, owners_B[:3]),
        (x * 2, WEIGHTS, [], parts, owners_B),
        ([torch.zeros(2, 5, 3)], WEIGHTS, [], parts, owners_B),
    ):
        with pytest.raises(ValueError, match="expected"):
            op(*wrong[:3], "relu", "none", *wrong[3:])

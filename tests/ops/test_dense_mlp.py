from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmoe.ops import dense_mlp, dense_mm, shared_mm
from mmoe.ops.repeat_rows import Owners
from tests.needs_kernels import needs_kernels

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
DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "bf16 rows": (torch.bfloat16, torch.float32),
    "fp64": (torch.float64, torch.float64),
}


@pytest.fixture(params=SHAPES, ids=lambda name: name.replace(" ", "-"))
def shape(request):
    return SHAPES[request.param]


@pytest.fixture(params=DTYPES, ids=lambda name: name.replace(" ", "-"))
def dtypes(request):
    return DTYPES[request.param]


def inputs(shape, dtypes, *, shared=True):
    """Rows of all experts or for each, weights and biases."""
    E, B, widths = shape
    generator = torch.Generator().manual_seed(B)
    rows_dtype, weight_dtype = dtypes
    x = [
        torch.randn(B, widths[0], generator=generator).to(rows_dtype)
        for _ in range(1 if shared else E)
    ]
    weights = [
        (torch.randn(E, D, H, generator=generator) * (2 / max(D, 1)) ** 0.5).to(weight_dtype)
        for D, H in pairwise(widths)
    ]
    biases = [torch.randn(E, H, generator=generator).to(weight_dtype) for H in widths[1:]]
    return x, weights, biases


def one_after_the_other(x, weights, biases, activation, output_activation):
    for layer, weight_EDH in enumerate(weights):
        act = output_activation if layer + 1 == len(weights) else activation
        x = dense_mm(x, weight_EDH, biases[layer] if biases else None, act)
    return x


@pytest.mark.parametrize("activations", [("relu", "none"), ("gelu", "silu")], ids="-".join)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own-rows"])
def test_has_the_bits_of_one_layer_after_the_other(shape, dtypes, shared, activations):
    x, weights, biases = inputs(shape, dtypes, shared=shared)
    for some in (biases, []):
        y = dense_mlp(x[0] if shared else x, weights, some, *activations)

        expected = one_after_the_other(x, weights, some, *activations)
        assert [part.dtype for part in y] == [dtypes[0]] * len(y)
        assert all(map(torch.equal, y, expected))


@given(
    rows=st.integers(0, 300),
    widths=st.lists(st.integers(0, 70), min_size=2, max_size=5),
    experts=st.integers(1, 4),
    kind=st.sampled_from(list(DTYPES)),
)
def test_random_shapes(rows, widths, experts, kind):
    x, weights, biases = inputs((experts, rows, tuple(widths)), DTYPES[kind])

    y = dense_mlp(x, weights, biases)

    assert all(map(torch.equal, y, one_after_the_other(x, weights, biases, "relu", "none")))


@needs_kernels
def test_rows_depend_on_themselves_alone_whatever_the_threads(dtypes, threads):
    x, weights, biases = inputs(SHAPES["many blocks"], dtypes)
    threads(1)
    together = torch.stack(dense_mlp(x, weights, biases))
    order = torch.randperm(700, generator=torch.Generator().manual_seed(1))
    for count in (1, 2, 3):
        threads(count)
        shuffled = torch.stack(dense_mlp(x[0][order], weights, biases))
        assert torch.equal(shuffled, together[:, order])
    assert torch.equal(torch.stack(dense_mlp(x[0][7:20], weights, biases)), together[:, 7:20])


def test_gradients_are_those_of_the_layers():
    x, weights, biases = inputs((3, 4, (3, 4, 2)), DTYPES["fp64"])
    leaves = [t.requires_grad_() for t in (*x, *weights, *biases)]

    assert torch.autograd.gradcheck(
        lambda x, v, w, b, c: tuple(dense_mlp(x, [v, w], [b, c], "silu", "gelu")), leaves
    )
    with torch.no_grad():
        assert not dense_mlp(x, weights, biases)[0].requires_grad


def shared_inputs(shape, dtypes):
    """What owners have of the first product, and which owner each row belongs to."""
    E, B, widths = shape
    generator = torch.Generator().manual_seed(B + 1)
    owners = Owners(torch.randint(0, 7, (B,), generator=generator), 7)
    parts = [torch.randn(7, widths[1], generator=generator).to(dtypes[0]) for _ in range(E)]
    return parts, owners


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_what_owners_have_is_added_as_by_shared_mm(shape, dtypes, activation):
    x, weights, biases = inputs(shape, dtypes)
    shared, owners = shared_inputs(shape, dtypes)
    last = "silu" if len(weights) == 1 else activation
    for some in (biases, []):
        y = dense_mlp(x[0], weights, some, activation, "silu", shared=shared, owners=owners)

        bias_EH = some[0] if some else None
        first = shared_mm(x[0], weights[0], bias_EH, shared, owners, last)
        rest = one_after_the_other(first, weights[1:], some[1:], activation, "silu")
        assert all(map(torch.equal, y, rest))


def test_gradients_of_what_owners_have():
    shape = (2, 9, (3, 4, 2))
    x, weights, biases = inputs(shape, DTYPES["fp64"])
    shared, owners = shared_inputs(shape, DTYPES["fp64"])
    leaves = [t.requires_grad_() for t in (*x, *weights, *biases, *shared)]

    assert torch.autograd.gradcheck(
        lambda x, v, w, b, c, *parts: tuple(
            dense_mlp(x, [v, w], [b, c], "silu", shared=parts, owners=owners)
        ),
        leaves,
    )


def test_rows_that_lie_apart():
    x, weights, biases = inputs(SHAPES["odd widths"], DTYPES["fp32"], shared=False)
    apart = list(torch.stack(x, dim=1).unbind(1))
    turned = [weight.mT.contiguous().mT for weight in weights]

    y = dense_mlp(apart, turned, biases)

    assert all(map(torch.equal, y, dense_mlp(x, weights, biases)))
    assert all(map(torch.equal, y, dense_mlp(torch.stack(x), weights, biases)))


WEIGHTS = [torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": []}, "weights: expected those of one layer or more, got none"),
        ({"biases": [torch.zeros(2, 4)]}, "biases: expected none or 2, one for each layer, got 1"),
        (
            {"weights": [WEIGHTS[0], torch.zeros(2, 3, 5)]},
            r"weights\[1\]: expected shape \[2, 4, 5\] to fit weights\[0\], got \[2, 3, 5\]",
        ),
        (
            {"weights": [WEIGHTS[0], torch.zeros(3, 4, 5)]},
            r"weights\[1\]: expected shape \[2, 4, 5\]",
        ),
        ({"weights": [WEIGHTS[0], torch.zeros(4, 5)]}, r"weights\[1\]: expected 3 dimensions"),
        ({"weights": [WEIGHTS[0], WEIGHTS[1].double()]}, "weight_EDH: expected dtype"),
        ({"biases": [torch.zeros(2, 4), torch.zeros(2, 4)]}, r"bias_EH: expected shape \[2, 5\]"),
        ({"activation": "swish"}, "activation: expected one of none, relu, gelu, silu"),
        ({"output_activation": "swish"}, "activation: expected one of none, relu, gelu, silu"),
        ({"x": []}, "x: expected one tensor or 2"),
        ({"x": torch.zeros(5, 7)}, "weight_EDH: expected shape"),
        ({"shared": [torch.zeros(1, 4)] * 2}, "owners: expected with shared rows, got None"),
        (
            {"x": [torch.zeros(5, 3)] * 2, "owners": Owners(torch.zeros(5).long(), 1)},
            "x: expected one tensor beside owners, got 2",
        ),
        (
            {"shared": [torch.zeros(1, 9)] * 2, "owners": Owners(torch.zeros(5).long(), 1)},
            r"shared\[0\]: expected shape \[1, 4\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dense_mlp(**{"x": torch.zeros(5, 3), "weights": WEIGHTS, **changes})


@needs_kernels
def test_the_operator_itself_refuses_what_does_not_fit():
    op = torch.ops.mmoe.dense_mlp
    for weights, biases in (
        ([], []),
        (WEIGHTS, [torch.zeros(2, 4)]),
        ([WEIGHTS[0], torch.zeros(2, 3, 5)], []),
        ([WEIGHTS[0], torch.zeros(3, 4, 5)], []),
        ([WEIGHTS[0], torch.zeros(4, 5)], []),
    ):
        with pytest.raises(ValueError, match="expected"):
            op([torch.zeros(5, 3)], weights, biases, "relu", "none", [], None)
    parts, owners_B = [torch.zeros(7, 4)] * 2, torch.zeros(5).int()
    for x, shared, owners in (
        ([torch.zeros(5, 3)], parts, None),
        ([torch.zeros(5, 3)], [], owners_B),
        ([torch.zeros(5, 3)], parts[:1], owners_B),
        ([torch.zeros(5, 3)], parts, owners_B + 7),
        ([torch.zeros(5, 3)], parts, owners_B[:3]),
        ([torch.zeros(5, 3)] * 2, parts, owners_B),
        ([torch.zeros(2, 5, 3)], parts, owners_B),
    ):
        with pytest.raises(ValueError, match="expected"):
            op(x, WEIGHTS, [], "relu", "none", shared, owners)

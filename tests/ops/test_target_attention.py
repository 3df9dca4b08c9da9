"""target_attention: against a loop, the specification, its own gradient, rows alone and threads."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from mmoe.ops import reference, target_attention
from tests.needs_kernels import needs_kernels
from tests.ops.damage import flat

# Events of each row; D; widths of the layers
CASES = {
    "usual": ([3, 0, 7, 1], 24, [40]),
    "deeper": ([3, 0, 7, 1], 24, [40, 16]),
    "odd widths, deeper": ([5, 2, 0, 33], 19, [13, 37, 5]),
    "more than a tile": ([64, 65, 200, 1], 32, [36]),
    "most layers": ([2, 34], 4, [3, 33, 1, 6, 2, 40, 5, 7]),
    "no width": ([2, 1], 0, [3, 2]),
    "no hidden layer": ([2, 1], 3, [0, 2]),
    "more rows than blocks": ([n % 3 for n in range(1100)], 4, [5, 2]),
}
# What the calls of test_every_operator.py have not
BESIDE_THE_SHARED = ["most layers", "no hidden layer", "no width", "more rows than blocks"]
SOFTMAX = pytest.mark.parametrize("softmax", [False, True], ids=["sum", "softmax"])


def arguments(name, dtype=torch.float32, seed=0):
    """e_VD, lengths_B, q_BD and the layers: the first one's, the score's, pairs of deeper ones."""
    lengths, D, (H, *deeper) = CASES[name]
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    def layer(inputs, outputs):
        return random(inputs, outputs) / max(inputs, 1) ** 0.5

    B, V = len(lengths), sum(lengths)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    e_VD, q_BD = random(V, D).to(dtype), random(B, D).to(dtype)
    last = deeper[-1] if deeper else H
    first = layer(2 * D, H) * 1.4, random(B, H), random(last), random(1)
    pairs = [(layer(n, m) * 1.4, random(m)) for n, m in pairwise([H, *deeper])]
    return (
        e_VD,
        torch.tensor(lengths, dtype=torch.int32),
        q_BD,
        *(part.to(wide) for part in first),
        [(weight.to(wide), bias.to(wide)) for weight, bias in pairs],
    )


def of_operator(given):
    """The same for the operator itself, which takes where rows begin, and two lists."""
    e_VD, lengths_B, q_BD, weight_2DH, bias_BH, score_N, score_bias_1, deeper = given
    offsets_B1 = F.pad(lengths_B.cumsum(0), (1, 0)).int()
    weights, biases = ([pair[part] for pair in deeper] for part in range(2))
    return e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, weights, biases, score_N, score_bias_1


def called(e_VD, lengths_B, *others, softmax=False, function=target_attention):
    *first, deeper = others
    return function(e_VD, lengths_B, *first, deeper=deeper, softmax=softmax)


def near(found, wanted, dtype):
    assert len(found) == len(wanted)
    step = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        most = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=step * most)


@SOFTMAX
@pytest.mark.parametrize("name", ["usual", "odd widths, deeper"])
def test_the_specification_is_the_formula(name, softmax):
    given = arguments(name, torch.float64)
    e_VD, lengths_B, q_BD, weight_2DH, bias_BH, score_N, score_bias_1, deeper = given
    out_BD, weights_V = reference.target_attention(*of_operator(given), softmax)
    weights = iter(weights_V.split(lengths_B.tolist()))
    for b, own_ND in enumerate(e_VD.split(lengths_B.tolist())):
        x_ND = own_ND / (own_ND.square().mean(1, keepdim=True) + 1e-6).sqrt()
        h_NH = (torch.cat([x_ND, x_ND * q_BD[b]], 1) @ weight_2DH + bias_BH[b]).relu()
        for weight, bias in deeper:
            h_NH = F.linear(h_NH, weight.t(), bias).relu()
        a_N = h_NH @ score_N + score_bias_1
        a_N = a_N.softmax(0) if softmax else a_N
        torch.testing.assert_close(next(weights), a_N)
        torch.testing.assert_close(out_BD[b], a_N @ own_ND)


@SOFTMAX
@pytest.mark.parametrize("name", BESIDE_THE_SHARED)
def test_equals_the_specification(name, dtype, softmax):
    given = of_operator(arguments(name, dtype))
    out_BD, weights_V = torch.ops.mmoe.target_attention(*given, softmax)
    wanted = reference.target_attention(*given, softmax)
    near((out_BD, weights_V), wanted, dtype)

    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in wanted]
    of_gradient = (*grads, *given[:-1], wanted[1], softmax)
    found = torch.ops.mmoe.target_attention_backward(*of_gradient)
    near(flat(found), flat(reference.target_attention_backward(*of_gradient)), dtype)


@needs_kernels
@SOFTMAX
@pytest.mark.parametrize("name", ["usual", "deeper", "odd widths, deeper", "more than a tile"])
def test_a_row_does_not_depend_on_its_batch(name, dtype, softmax):
    e_VD, lengths_B, q_BD, weight_2DH, bias_BH, *others = given = arguments(name, dtype)
    whole, lengths = called(*given, softmax=softmax), lengths_B.tolist()
    own = zip(e_VD.split(lengths), whole.weights_V.split(lengths), strict=True)
    for b, (e_ND, weights_N) in enumerate(own):
        row = slice(b, b + 1)
        layer = q_BD[row], weight_2DH, bias_BH[row]
        alone = called(e_ND, lengths_B[row], *layer, *others, softmax=softmax)
        assert torch.equal(alone.out_BD, whole.out_BD[row])
        assert torch.equal(alone.weights_V, weights_N)


def test_other_layouts_and_types_of_the_layers():
    e_VD, lengths_B, q_BD, weight_2DH, *others, deeper = given = arguments("deeper")
    wanted = called(*given)
    apart, turned = torch.stack([e_VD, e_VD], 2)[..., 0], weight_2DH.t().contiguous().t()
    pairs = [
        (weight.t().contiguous().t(), torch.stack([bias, bias], 1)[:, 0]) for weight, bias in deeper
    ]
    found = called(apart, lengths_B.long(), q_BD, turned, *others, pairs)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    narrow = weight_2DH.bfloat16().requires_grad_()
    out_BD, _ = called(e_VD, lengths_B, q_BD, narrow, *others, deeper)
    out_BD.sum().backward()
    assert narrow.grad is not None
    assert narrow.grad.dtype == torch.bfloat16
    wide = called(e_VD, lengths_B, q_BD, narrow.detach().float(), *others, deeper)
    torch.testing.assert_close(out_BD, wide.out_BD)


@SOFTMAX
@pytest.mark.parametrize("name", ["usual", "deeper"])
def test_nan_of_an_event_stays_in_its_row(name, softmax):
    e_VD, *others = arguments(name)
    e_VD[5] = torch.nan
    out_BD, weights_V = called(e_VD, *others, softmax=softmax)
    assert out_BD.isnan().any(1).tolist() == [False, False, True, False]
    assert weights_V.isnan().sum() == (7 if softmax else 1)


@pytest.mark.parametrize(
    ("position", "make", "message"),
    [
        (0, lambda x: x[0], r"e_VD: expected 2 dimensions \[V, D\]"),
        (0, lambda x: x.int(), "e_VD: expected one of torch.float32"),
        (1, lambda x: x[:-1], r"lengths_B: expected shape \[4\] to fit q_BD, got \[3\]"),
        (1, lambda x: x.float(), "lengths_B: expected dtype torch.int32 or torch.i"),
        (1, lambda x: x + 1, "lengths_B: expected lengths that sum to 11, .* of e_VD, got 15"),
        # A sum that comes round
        (1, lambda x: torch.tensor([2**62] * 3 + [2**62 + 11]), "lengths_B: expected lengths that"),
        (1, lambda x: x - 1, "lengths_B: expected lengths of at least 0, got -1"),
        (2, lambda x: x[:, 1:], r"q_BD: expected shape \[4, 24\] to fit the width of e_VD"),
        (2, lambda x: x.double(), "q_BD: expected dtype torch.float32 as e_VD, got torch"),
        (2, lambda x: x.to("meta"), "q_BD: expected device cpu as e_VD, got meta"),
        (3, lambda x: x[1:], r"weight_2DH: expected shape \[48, 40\] to fit the width of e"),
        (4, lambda x: x[1:], r"bias_BH: expected shape \[4, 40\] to fit q_BD and weight_2DH"),
        (5, lambda x: x[1:], r"score_N: expected shape \[16\] to fit deeper\[0\], got \[15\]"),
        (6, lambda x: x[0], r"score_bias_1: expected shape \[1\]"),
        (
            7,
            lambda x: [(x[0][0][1:], x[0][1])],
            r"deeper\[0\]: expected shape \[40, 16\] to fit wei",
        ),
        (
            7,
            lambda x: [(x[0][0], x[0][1][1:])],
            r"deeper\[0\]: expected shape \[16\] to fit the wei",
        ),
        (7, lambda x: x * 8, "deeper: expected at most 7 layers, got 8"),
    ],
)
def test_says_what_is_wrong(position, make, message):
    given = list(arguments("deeper"))
    given[position] = make(given[position])
    with pytest.raises(ValueError, match=message):
        called(*given)


@pytest.mark.parametrize("operators", [torch.ops.mmoe, reference], ids=["kernel", "reference"])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 3, 3, 10, 11], "expected the first offset to be 0, got 1"),
        ([0, 3, 3, 10, 10], "expected the last offset to be 11, got 10"),
        ([0, 3, 2, 10, 11], "expected offsets that rise, got 3 and then 2 for row 1"),
    ],
)
def test_offsets_of_other_events_are_refused(operators, offsets, message):
    e_VD, _, *others = of_operator(arguments("usual"))
    with pytest.raises(ValueError, match=f"offsets_B1: {message}"):
        operators.target_attention(e_VD, torch.tensor(offsets).int(), *others, False)

"""The operators of an exchange between ranks against their reference, step by step."""

import pytest
import torch

from mmoe.ops import exchange_reference
from tests.needs_kernels import needs_kernels
from tests.ops.exchange_world import CASES, STEPS, Case, World


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(" ", "-"))
def world(request):
    return World(request.param)


@pytest.fixture(params=[c for c in CASES if c.name != "large"], ids=lambda case: case.name)
def small_world(request):
    """For loops in Python; the large case is compared with the reference alone."""
    return World(request.param)


def results(found):
    return [found] if isinstance(found, torch.Tensor) else list(found)


def near(actual, expected):
    """Equal within a few roundings of the narrowest type around."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.dtype == torch.uint8 or not expected.is_floating_point():
        return torch.equal(actual, expected)
    step = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float64: 1e-12}[expected.dtype]
    largest = float(expected.abs().max()) if expected.numel() else 0
    return bool(((actual - expected).abs() <= step * max(1, largest)).all())


@pytest.mark.whole
@pytest.mark.parametrize("name", ["outbound_plan", *STEPS])
def test_every_operator_is_its_reference(world, name):
    for rank in range(world.case.W):
        arguments = world.arguments(name, rank)
        found = results(getattr(torch.ops.mmoe, name)(*arguments))
        expected = results(getattr(exchange_reference, name)(*arguments))
        if name == "unpack_rows_backward":  # sums in another order, and then bytes
            kind = (arguments[4], world.case.D, world.case.sent_as, world.case.wide, 0)
            found, expected = (exchange_reference._split(m[0], *kind) for m in (found, expected))
        assert len(found) == len(expected)
        for actual, wanted in zip(found, expected, strict=True):
            assert near(actual, wanted), (name, rank)


@pytest.mark.parametrize(
    ("operator", "step"), [("pack_rows", "packed"), ("pack_rows_backward", "packed_backward")]
)
def test_a_pick_of_minus_one_has_no_weight(operator, step):
    arguments = list(getattr(World(Case("", ways="sums")), step)(0))
    arguments[3] = arguments[3].clone()  # entries_Q in both
    arguments[3][0] = -1

    found = getattr(torch.ops.mmoe, operator)(*arguments)
    wanted = getattr(exchange_reference, operator)(*arguments)

    assert all(map(near, results(found), results(wanted)))


def plain(world, rank):
    """The plan by loops over ranks, samples, gates and picks."""
    case, home = world.case, world.case.homes_E3().tolist()
    picks = world.experts[rank].tolist()
    asked = [
        (home[e][0], home[e][2], b, g, k, e)
        for b, gates in enumerate(picks)
        for g, gate in enumerate(gates)
        for k, e in enumerate(gate)
        if e >= 0
    ]
    rows = sorted({(w, s, b) for w, s, b, _, _, _ in asked})
    pairs = sorted({(w, home[e][1], b) for w, _, b, _, _, e in asked})
    sums = sorted({(w, s, b, g) for w, s, b, g, _, _ in asked})
    sizes = [
        [sum(x[0] == w for x in kind) for kind in (rows, sorted(asked), pairs, sums)]
        for w in range(case.W)
    ]
    return asked, rows, pairs, sums, sizes


def test_the_plan_is_what_loops_find(small_world):
    world = small_world
    for rank, plan in enumerate(world.plans):
        rows_M, entries, codes, rows_BGK, pairs_BGK, sums_BGK, sizes = plan
        asked, rows, pairs, sums, expected_sizes = plain(world, rank)
        case, home = world.case, world.case.homes_E3().tolist()
        assert sizes.tolist() == expected_sizes
        assert rows_M.tolist()[: len(rows)] == [b * case.S + s for _, s, b in rows]
        assert set(rows_M.tolist()[len(rows) :]) <= {-1}
        order = sorted(asked)
        places = [(b * case.G + g) * case.K + k for _, _, b, g, k, _ in order]
        assert entries.tolist() == places + [-1] * (entries.numel() - len(places))
        before = None
        for code, (w, s, b, g, k, e) in zip(codes.tolist(), order, strict=False):
            number = (g * case.K + k) * len(case.held[w]) + home[e][1]
            assert code == (number if (w, s, b) == before else -1 - number)
            before = (w, s, b)
        for w, s, b, g, k, e in asked:
            assert rows[rows_BGK[b, g, k]] == (w, s, b)
            assert pairs[pairs_BGK[b, g, k]] == (w, home[e][1], b)
            assert sums[sums_BGK[b, g, k]] == (w, s, b, g)
        unused = world.experts[rank] < 0
        for slots in (rows_BGK, pairs_BGK, sums_BGK):
            assert torch.equal(slots < 0, unused)


def test_what_comes_is_what_was_sent(small_world):
    """Rows, picks and weights of every rank, found by looking at all ranks."""
    world = small_world
    case, home = world.case, world.case.homes_E3().tolist()
    for here in range(case.W):
        picks, weights, _ = torch.ops.mmoe.decode_picks(*world.decoding(here))
        rows_R = torch.arange(len(picks), dtype=torch.int32)
        message, _, links, *kind = world.unpacked(here)
        x_ND = torch.ops.mmoe.unpack_rows(message, rows_R, links, *kind)
        n = 0
        for there in range(case.W):
            asked, rows, *_ = plain(world, there)
            sources, sent = world.sources(there), world.weights(there)
            back = world.theirs[here].diff(dim=0)[there, 2] > 0
            for w, s, b in rows:
                if w != here:
                    continue
                x_D = sources[s][b].to(case.sent_as).to(case.dtype)
                assert torch.equal(x_ND[n], x_D)
                wanted, scale = torch.full_like(picks[n], -1), torch.zeros_like(weights[n])
                for _, s2, b2, g, k, e in asked:
                    if (home[e][0], s2, b2) == (here, s, b):
                        wanted[g, k] = home[e][1]
                        scale[g, k] = sent[b, g, k] if back else 0
                assert torch.equal(picks[n], wanted)
                assert torch.equal(weights[n], scale)
                n += 1
        assert n == len(picks)


@pytest.mark.parametrize("ways", ["pairs", "sums"])
@pytest.mark.parametrize("picks", ["distinct", "anything"])
def test_a_mix_has_the_same_bits_whichever_way_it_comes(dtype, ways, picks):
    """Also with wide rows, whose last numbers fill no vector."""
    either = Case("", rows=(23, 40), O=45, K=3, G=4, picks=picks, dtype=dtype)
    mixed, one = World(either), World(Case(**{**either.__dict__, "ways": ways}))
    for rank in range(2):
        assert torch.equal(
            torch.ops.mmoe.mix_returns(*mixed.mixed(rank)),
            torch.ops.mmoe.mix_returns(*one.mixed(rank)),
        )


FP64 = Case("", rows=(4, 3), G=2, K=2, D=3, O=3, S=2, picks="anything", dtype=torch.float64)


@pytest.mark.parametrize("ways", ["pairs", "sums", "mixed"])
def test_gradcheck_of_returns(ways):
    world = World(Case(**{**FP64.__dict__, "ways": ways}))
    for rank in range(2):
        y, weights, *plan = world.returns(rank)
        inputs = (y.requires_grad_(), weights.requires_grad_())
        assert torch.autograd.gradcheck(
            lambda *i, p=plan: torch.ops.mmoe.pack_returns(*i, *p), inputs
        )
        back, weights, *plan = world.mixed(rank)
        inputs = (back.requires_grad_(), weights.requires_grad_())
        sums = [bool(n) for n in plan[3][:, 2].diff()]
        if not any(sums):  # else weights have their gradient elsewhere
            assert torch.autograd.gradcheck(
                lambda *i, p=plan: torch.ops.mmoe.mix_returns(*i, *p), inputs
            )
        grad = torch.autograd.grad(torch.ops.mmoe.mix_returns(*inputs, *plan).sum(), inputs)
        if all(sums):
            assert not grad[1].any()


def test_rows_and_their_gradients_are_adjoint():
    """<unpack(pack(x)), dx> = <x, pack'(unpack'(dx))> over all ranks; the same for weights."""
    world = World(FP64)
    there = here = 0.0
    for rank in range(2):
        x_RD = torch.ops.mmoe.unpack_rows(*world.unpacked(rank))
        weights = world.routes(rank)[3]
        grad, grad_weights, *_ = world.unpacked_backward(rank)
        there += float((x_RD * grad).sum() + (weights * grad_weights).sum())
        grad_BSD, grad_BGK = torch.ops.mmoe.pack_rows_backward(*world.packed_backward(rank))
        x_BSD = torch.stack(world.sources(rank), 1)
        here += float((x_BSD * grad_BSD).sum() + (world.weights(rank) * grad_BGK).sum())
    assert there == pytest.approx(here, rel=1e-12)


def test_tensors_that_lie_apart():
    world = World(Case("", S=2))
    plain_arguments = world.packed(0)
    sources = [x.repeat_interleave(2, 1)[:, ::2] for x in plain_arguments[0]]
    rows_apart = [torch.cat([x, x], 1)[:, : x.shape[1]] for x in plain_arguments[0]]
    weights = plain_arguments[1].mT.contiguous().mT
    expected = torch.ops.mmoe.pack_rows(*plain_arguments)
    for apart in (sources, rows_apart):
        found = torch.ops.mmoe.pack_rows(apart, weights, *plain_arguments[2:])
        assert torch.equal(found, expected)
    grad, *others = world.unpacked_backward(0)
    expected = torch.ops.mmoe.unpack_rows_backward(grad, *others)
    for apart in (grad.t().contiguous().t(), torch.cat([grad, grad], 1)[:, : grad.shape[1]]):
        assert torch.equal(torch.ops.mmoe.unpack_rows_backward(apart, *others), expected)
    experts = world.experts[0].mT.contiguous().mT
    plan = torch.ops.mmoe.outbound_plan(experts, world.case.homes_E3(), 2, 2)
    assert all(map(torch.equal, plan, world.plans[0]))


def damaged(arguments, place, value):
    return [value(old) if i == place else old for i, old in enumerate(arguments)]


def shifted(tensor):
    return tensor + 1000


LINKS = r"links_WL: expected"
NO_SUM = r"back_NG: expected a row for a sum, got -1 for sum \d+, whose pair \d+ does not go back"
MESSAGES = [
    ("packed", "pack_rows", 0, lambda x: [], r"sources: expected at least one tensor, got none"),
    ("packed", "pack_rows", 0, lambda x: [x[0].half()], r"sources\[0\]: expected one of torch.fl"),
    ("packed", "pack_rows", 1, lambda x: x.double(), r"weights_BGK: expected dtype torch.float32"),
    ("packed", "pack_rows", 2, shifted, r"rows_M: expected rows in \[0, 7\) or -1, got 100"),
    ("packed", "pack_rows", 2, lambda x: x.clamp(max=-1), r"rows_M: expected a row for each of"),
    ("packed", "pack_rows", 3, shifted, r"entries_Q: expected entries in \[0, 42\) or -1"),
    ("packed", "pack_rows", 3, lambda x: x.long(), r"entries_Q: expected dtype torch.int32, got"),
    ("packed", "pack_rows", 5, lambda x: x[:, :5], rf"{LINKS} size 6 in dimension 1"),
    ("packed", "pack_rows", 5, lambda x: x.flip(0), rf"{LINKS} numbers that rise from 0"),
    ("packed", "pack_rows", 6, lambda x: torch.int8, r"wire: expected torch.float32 as the rows"),
    ("packed", "pack_rows", 6, lambda x: torch.float64, r"wire: expected .*, got torch.float64"),
    ("packed", "pack_rows", 7, lambda x: x - 1, r"message: expected \d+ bytes by links_WL, got \d"),
    ("decoding", "decode_picks", 0, lambda x: x[1:], r"message: expected \d+ bytes by links_WL"),
    ("decoding", "decode_picks", 0, lambda x: ~x, r"message: expected codes of \d+ rows and 6 pi"),
    ("decoding", "decode_picks", 2, lambda n: n + 1, rf"{LINKS} \d+ rows and \d+ picks"),
    ("decoding", "decode_picks", 6, lambda n: -1, r"num_experts: expected 0 or more, got -1"),
    ("decoding", "decode_picks", 7, lambda n: -1, r"width: expected 0 to 2147483647, got -1"),
    ("unpacked", "unpack_rows", 1, shifted, r"rows_R: expected rows in \[0, \d+\) or -1, got"),
    ("unpacked", "unpack_rows", 2, lambda x: x << 40, rf"{LINKS} .* from 0 to at most 2147483647"),
    ("unpacked", "unpack_rows", 3, lambda n: -1, r"width: expected 0 to 2147483647, got -1"),
    ("unpacked", "unpack_rows", 3, lambda n: 2**31 - 1, r"message: expected \d+ rows of \d+ bytes"),
    ("unpacked_backward", "unpack_rows_backward", 2, shifted, r"slots_NGK: expected slots in \["),
    ("unpacked_backward", "unpack_rows_backward", 3, shifted, r"places_Q: expected places in \["),
    ("packed_backward", "pack_rows_backward", 0, lambda x: x[:-1], r"message: expected \d+ bytes"),
    ("packed_backward", "pack_rows_backward", 2, shifted, r"rows_BGK: expected rows in \[0, "),
    ("returning", "return_plan", 3, lambda x: x * 2, rf"{LINKS} \d+ rows as slots_NGK"),
    ("returns", "pack_returns", 2, shifted, r"back_R: expected rows in \[0, \d+\) or -1, got"),
    ("returns", "pack_returns", 3, shifted, r"back_NG: expected rows in \[0, \d+\) or -1, got"),
    ("returns", "pack_returns", 4, shifted, r"slots_NGK: expected slots in \[0, \d+\) or -1, got"),
    ("returns_backward", "pack_returns_backward", 4, lambda x: x.clamp(max=-1), NO_SUM),
    ("mixed", "mix_returns", 1, lambda x: x[:1], r"weights_BGK: expected size 7 in dimension 0"),
    ("mixed", "mix_returns", 2, shifted, r"rows_BGK: expected rows in \[0, \d+\) or -1, got"),
    ("mixed", "mix_returns", 3, shifted, r"pairs_BGK: expected numbers of outbound_plan that fit"),
]


@needs_kernels
@pytest.mark.parametrize(
    ("step", "name", "place", "value", "message"),
    MESSAGES,
    ids=lambda x: x if type(x) is str else "",
)
def test_says_what_is_wrong(step, name, place, value, message):
    world = World(Case("", ways="mixed"))
    arguments = damaged(getattr(world, step)(0), place, value)

    with pytest.raises(ValueError, match=message):
        getattr(torch.ops.mmoe, name)(*arguments)


@needs_kernels
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, lambda x: x + 5, r"experts_BGK: expected experts in \[0, 5\) or -1, got"),
        (0, lambda x: x.long(), r"experts_BGK: expected dtype torch.int32, got torch.int64"),
        (1, lambda x: x[:, :2], r"homes_E3: expected size 3 in dimension 1, got 2"),
        (1, lambda x: x * 2, r"homes_E3: expected (ranks in \[0, 2\)|the places 0 to)"),
        (1, lambda x: x * 0, r"homes_E3: expected the places 0 to 4 on rank 0, each once, got 0"),
        (2, lambda n: 0, r"num_ranks: expected 1 to .*, got 0"),
        (3, lambda n: 0, r"num_sources: expected 1 to .*, got 0"),
    ],
)
def test_a_plan_says_what_is_wrong(place, value, message):
    world = World(Case(""))
    arguments = (world.experts[0], world.case.homes_E3(), 2, 1)

    with pytest.raises(ValueError, match=message):
        torch.ops.mmoe.outbound_plan(*damaged(arguments, place, value))

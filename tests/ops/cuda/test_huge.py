"""More than 2³¹ numbers in one tensor, where a 32-bit place would wrap around.

Rows of which an operator makes rows are compared at both ends with what it makes of those rows
alone; sums over all rows by rows that are 0 except at both ends.
"""

import pytest
import torch
from torch import Tensor

from benchmarks.bench_ops import given_arguments
from mmoe import ops

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

# Rows of WIDTH reach 2³¹ numbers 16,000 rows before they end
HALF, WIDTH, NARROW = 2**20 + 3, 1032, 8
ROWS = 2 * HALF
ENDS = 700  # rows at each end
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def room():
    """`room(20)` leaves the test out where less than 20 GiB of the GPU's memory are free."""

    def needed(gib: float) -> None:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] / 2**30
        if free < gib:
            pytest.skip(f"needs {gib} GiB of GPU memory, {free:.1f} GiB are free")

    yield needed
    torch.cuda.empty_cache()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(*shape, dtype=BF16, device="cuda").normal_(generator=generator)


def ends(rows: Tensor) -> Tensor:
    """The first and the last rows."""
    return torch.cat([rows[:ENDS], rows[-ENDS:]])


def zero_between(rows: Tensor) -> Tensor:
    """The same rows, of which only those at both ends are not 0."""
    rows[ENDS:-ENDS] = 0
    return rows


def near(found: Tensor, wanted: Tensor) -> None:
    atol = 1.5e-2 * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def plan() -> ops.RoutePlan:
    """Two gates of one pick each: every sample has two pairs, on experts 0 and 1, or 2 and 3."""
    first_B = (torch.arange(HALF, device="cuda") % 2).int()
    return ops.route_plan(torch.stack([first_B, first_B + 2], 1).unsqueeze(-1), 4)


def offsets(rows: int) -> Tensor:
    return torch.tensor([0, rows // 2, rows], dtype=torch.int32, device="cuda")


def test_permute_and_unpermute(room):
    room(15)
    x_BD, routes = drawn(HALF, WIDTH), plan()

    x_PD = ops.permute(x_BD, routes)

    assert x_PD.numel() > 2**31
    assert torch.equal(ends(x_PD), x_BD[ends(routes.rows_P).long()])
    y_BD = ops.unpermute(x_PD, routes)
    assert torch.equal(ends(y_BD), 2 * ends(x_BD))


def test_gated_combine(room):
    room(20)
    y_PO, routes = drawn(ROWS, WIDTH), plan()
    weights_BGK = torch.full((HALF, 2, 1), 0.5, device="cuda")

    out_BGO = ops.gated_combine(y_PO, routes.slots_BGK, weights_BGK)

    assert out_BGO.numel() > 2**31
    slots_BG = ends(routes.slots_BGK).long().squeeze(-1)
    assert torch.equal(ends(out_BGO), 0.5 * y_PO[slots_BG])
    grad_y, grad_weights = torch.ops.mmoe.gated_combine_backward(
        out_BGO, y_PO, routes.slots_BGK, weights_BGK
    )
    assert torch.equal(grad_y[slots_BG], 0.5 * ends(out_BGO))
    wanted_BG = (ends(out_BGO).float() * y_PO[slots_BG].float()).sum(-1)
    near(ends(grad_weights).squeeze(-1), wanted_BG)


def test_dense_combine(room):
    room(20)
    y, weights_BGE = drawn(2, HALF, WIDTH), torch.zeros(HALF, 2, 2, device="cuda")
    weights_BGE[:, 0, 1] = weights_BGE[:, 1, 0] = 0.5

    out_BGO = ops.dense_combine(y, weights_BGE)

    assert min(y.numel(), out_BGO.numel()) > 2**31
    assert torch.equal(ends(out_BGO[:, 0]), 0.5 * ends(y[1]))
    assert torch.equal(ends(out_BGO[:, 1]), 0.5 * ends(y[0]))
    grad_y, grad_weights = torch.ops.mmoe.dense_combine_backward(out_BGO, [y], weights_BGE)
    assert torch.equal(ends(grad_y[0][0]), 0.5 * ends(out_BGO[:, 1]))
    assert torch.equal(ends(grad_y[0][1]), 0.5 * ends(out_BGO[:, 0]))
    near(ends(grad_weights[:, 0, 1]), (0.5 * ends(y[1]).float().square()).sum(-1))


@pytest.mark.parametrize("widths", [(NARROW, WIDTH), (WIDTH, NARROW)], ids=["wide-y", "wide-x"])
def test_grouped_mm(room, widths):
    room(25)
    D, H = widths
    x_PD, weight_EDH, bias_EH = drawn(ROWS, D), drawn(2, D, H, seed=1) / D**0.5, drawn(2, H, seed=2)
    few, grad_PH = ends(x_PD), zero_between(drawn(ROWS, H, seed=3))
    op, backward = torch.ops.mmoe.grouped_mm, torch.ops.mmoe.grouped_mm_backward

    y_PH, z_PH = op(x_PD, offsets(ROWS), weight_EDH, bias_EH, "relu")

    assert max(x_PD.numel(), y_PH.numel()) > 2**31
    y, z = op(few, offsets(2 * ENDS), weight_EDH, bias_EH, "relu")
    near(ends(y_PH), y)
    zero_between(y_PH)  # beside a gradient of 0 it does not matter what they are
    many = backward(grad_PH, x_PD, offsets(ROWS), weight_EDH, y_PH, z_PH, "relu", True, True, True)
    alone = ends(grad_PH), few, offsets(2 * ENDS), weight_EDH, ends(y_PH), z
    grad_x, *sums = backward(*alone, "relu", True, True, True)
    near(ends(many[0]), grad_x)
    for found, wanted in zip(many[1:], sums, strict=True):
        near(found, wanted)


@pytest.mark.parametrize("widths", [(NARROW, WIDTH), (WIDTH, NARROW)], ids=["wide-y", "wide-x"])
def test_dense_mm(room, widths):
    room(40)
    D, H = widths
    x_BD, weight_EDH, bias_EH = drawn(ROWS, D), drawn(2, D, H, seed=1) / D**0.5, drawn(2, H, seed=2)
    few, op = ends(x_BD), torch.ops.mmoe.dense_mm

    y, _ = op([x_BD], weight_EDH, bias_EH, "relu")

    assert max(x_BD.numel(), y[0].numel()) > 2**31
    for found, wanted in zip(y, op([few], weight_EDH, bias_EH, "relu")[0], strict=True):
        near(ends(found), wanted)
    grad = [zero_between(drawn(ROWS, H, seed=3))] * 2
    needs = "relu", True, True, True
    backward = torch.ops.mmoe.dense_mm_backward
    (grad_x,), *sums = backward(grad, [x_BD], weight_EDH, y, [], *needs)
    alone = [ends(part) for part in grad], [few], weight_EDH, [ends(part) for part in y], []
    (wanted_x,), *wanted_sums = backward(*alone, *needs)
    near(ends(grad_x), wanted_x)
    for found, wanted in zip(sums, wanted_sums, strict=True):
        near(found, wanted)


def test_topk_gate(room):
    room(15)
    G, E = 8, 129
    logits_BGE, visible_GE = drawn(ROWS, G, E), torch.ones(G, E, dtype=torch.bool, device="cuda")
    op, backward = torch.ops.mmoe.topk_gate, torch.ops.mmoe.topk_gate_backward

    weights_BGK, experts_BGK = op(logits_BGE, visible_GE, 2, True)

    assert logits_BGE.numel() > 2**31
    few = ends(logits_BGE)
    weights, experts = op(few, visible_GE, 2, True)
    assert torch.equal(ends(weights_BGK), weights)
    assert torch.equal(ends(experts_BGK), experts)
    grad_BGK = drawn(ROWS, G, 2, seed=1).float()
    grad_BGE = backward(grad_BGK, logits_BGE, visible_GE, experts_BGK, True)
    assert torch.equal(ends(grad_BGE), backward(ends(grad_BGK), few, visible_GE, experts, True))


@pytest.mark.parametrize("widths", [(NARROW, WIDTH), (WIDTH, NARROW)], ids=["wide-y", "wide-x"])
def test_gate_mm(room, widths):
    room(40)
    D, N = widths
    x_BD = drawn(ROWS, D)
    weight_DN, bias_N = drawn(D, N, seed=1).float() / D**0.5, drawn(N, seed=2).float()
    op, backward = torch.ops.mmoe.gate_mm, torch.ops.mmoe.gate_mm_backward

    y_BN = op(x_BD, weight_DN, bias_N)

    assert max(x_BD.numel(), y_BN.numel()) > 2**31
    few = ends(x_BD)
    near(ends(y_BN), op(few, weight_DN, bias_N))
    grad_BN = zero_between(y_BN)
    many = backward(grad_BN, x_BD, weight_DN, True, True, True)
    grad_x, *sums = backward(ends(grad_BN), few, weight_DN, True, True, True)
    near(ends(many[0]), grad_x)
    for found, wanted in zip(many[1:], sums, strict=True):
        near(found, wanted)


def test_messages_of_more_than_two_gibibytes(room):
    """Each of four ranks is sent every row, and what one sends to itself comes from all of them."""
    room(60)
    B = HALF // 2
    experts_BGK = torch.arange(4, device="cuda").int().expand(B, 4).unsqueeze(-1).contiguous()
    torch.manual_seed(0)
    given = given_arguments(experts_BGK, 4, WIDTH, BF16, "pairs")
    (x_BD,), message = given["pack_rows"][0], given["unpack_rows"][0]

    assert message.numel() > 2**31
    rows_R = given["unpack_rows"][1].long()
    expected = x_BD[ends(rows_R) % B]
    assert torch.equal(ends(torch.ops.mmoe.unpack_rows(*given["unpack_rows"])), expected)
    out_BGO = torch.ops.mmoe.mix_returns(*given["mix_returns"])
    back_ZO, weights_BGK, _, pairs_BGK, *_ = given["mix_returns"]
    assert out_BGO.numel() > 2**31
    wanted = back_ZO[ends(pairs_BGK).long().squeeze(-1)] * ends(weights_BGK)
    near(ends(out_BGO), wanted.to(BF16))

"""Operators of an exchange of rows between ranks: plan, pack, unpack, mix what comes back.

`exchange_reference.py` is their specification; `mmoe.parallel.experts.exchange` puts them together.
Messages are bytes, which have no gradient; the gradients travel the other way by
`unpack_rows_backward` on the rank of the experts and `pack_rows_backward` on that of the samples.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import accumulate_dtype, check_device, check_int32
from mmoe.ops._library import define, empties_like, register_autograd, save_tensors
from mmoe.ops.dispatch import RoutePlan


class OutboundPlan(NamedTuple):
    """Plan of what one batch sends to which rank; all int32 but the sizes.

    Attributes:
        rows_M: Row n of the N that travel, rank by rank, inside by (source, sample): sample b of
            source s is b · S + s; −1 from row N on.
        entries_Q: The picks in use, as places in the flattened picks, by (row, gate, pick); −1
            behind them.
        codes_Q: The same as it travels: (g · K + k) · e + place, with e the experts of the rank it
            goes to and place the number of the picked one there; the first pick of a row as
            −1 − code, which tells rows apart.
        rows_BGK: The row that carries a pick; −1 = unused.
        pairs_BGK: Its distinct (sample, expert), rank by rank, inside by (expert, sample); −1.
        sums_BGK: Its distinct (row, gate), in that order; −1.
        sizes_W4: int64, how many rows, picks, pairs and sums belong to each rank.
    """

    rows_M: Tensor
    entries_Q: Tensor
    codes_Q: Tensor
    rows_BGK: Tensor
    pairs_BGK: Tensor
    sums_BGK: Tensor
    sizes_W4: Tensor


def outbound_plan(
    experts_BGK: Tensor, homes_E3: Tensor, num_ranks: int, num_sources: int
) -> OutboundPlan:
    """Sorts the picks of all gates by the rank that holds the expert.

    A sample travels to a rank once for each source that picked experts there read. The shapes
    depend on shapes alone (M = B · min(G · K, W · S, E), Q = B · G · K), so nothing is copied to
    the host.

    Args:
        experts_BGK: int32, the expert of every pick in [0, E), or −1 for a pick that is not used.
        homes_E3: int32, for each expert the rank that holds it, its number there (0, 1, … on every
            rank), and which source it reads.
        num_ranks: W.
        num_sources: S.

    Returns:
        The plan; deterministic, the same on CPU and CUDA.

    Raises:
        ValueError: On another shape, dtype or device, or (CPU) an expert outside [−1, E) or a table
            that puts an expert nowhere or two in one place. Codes must fit in int32: G · K times
            the experts of a rank.

    Example:
        Two samples, two gates, top-2 of three experts, the last of them on rank 1.

        >>> import torch
        >>> from mmoe.ops import outbound_plan
        >>> picks = torch.tensor([[[0, 2], [1, 2]], [[2, 0], [0, 1]]], dtype=torch.int32)
        >>> homes = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.int32)
        >>> plan = outbound_plan(picks, homes, num_ranks=2, num_sources=1)
        >>> plan.rows_M.tolist(), plan.sizes_W4.tolist()
        ([0, 1, 0, 1], [[2, 5, 4, 4], [2, 3, 2, 3]])
    """
    check_int32("experts_BGK", experts_BGK, "BGK")
    check_int32("homes_E3", homes_E3, ["E", "3"])
    check_device("homes_E3", homes_E3, experts_BGK.device, "experts_BGK")
    return OutboundPlan(
        *torch.ops.mmoe.outbound_plan(experts_BGK, homes_E3, num_ranks, num_sources)
    )


def _fake_outbound(
    experts_BGK: Tensor, homes_E3: Tensor, num_ranks: int, num_sources: int
) -> tuple[Tensor, ...]:
    B, G, K = experts_BGK.shape
    picks = experts_BGK.new_empty
    rows_M = picks(B * min(G * K, num_ranks * num_sources, len(homes_E3)))
    slots = [picks(B, G, K) for _ in range(3)]
    sizes_W4 = picks(num_ranks, 4, dtype=torch.int64)
    return rows_M, picks(B * G * K), picks(B * G * K), *slots, sizes_W4


define(
    "outbound_plan(Tensor experts_BGK, Tensor homes_E3, int num_ranks, int num_sources)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_outbound,
)


class RowsFormat(NamedTuple):
    """Width and types of rows: as they are computed with, and as they travel.

    Attributes:
        width: D.
        dtype: What they are computed in: float32, bfloat16 or float64.
        wire: What they travel in: the same or a narrower one.
    """

    width: int
    dtype: torch.dtype
    wire: torch.dtype


def pack_rows(
    sources: Sequence[Tensor],
    weights_BGK: Tensor,
    plan: OutboundPlan,
    links_WL: Tensor,
    wire: torch.dtype,
    num_bytes: int,
) -> Tensor:
    """Gathers what goes out straight into one message: for each rank [rows][codes][weights].

    Args:
        sources: S tensors `x_BD` of one dtype.
        weights_BGK: float32 (float64 beside float64 rows); sent where sums come back.
        plan: Of the picks.
        links_WL: The links that the message goes over, int64: where each rank's rows, picks,
            weights, pairs, sums and rows back start, and last their totals.
        wire: What rows travel in; they are rounded to nearest.
        num_bytes: The length of the message, as the links tell it.

    Returns:
        The message, uint8.

    Raises:
        ValueError: On arguments that do not fit together.

    Example:
        >>> import torch
        >>> from mmoe.ops import outbound_plan
        >>> picks = torch.tensor([[[0]], [[-1]], [[0]]], dtype=torch.int32)
        >>> plan = outbound_plan(picks, torch.zeros(1, 3, dtype=torch.int32), 1, 1)
        >>> links_WL = torch.tensor([[0] * 6, [2, 2, 0, 2, 2, 2]])
        >>> x_BD = torch.tensor([[1.0], [2.0], [3.0]])
        >>> message = pack_rows([x_BD], torch.ones(3, 1, 1), plan, links_WL, torch.float32, 16)
        >>> rows_R = torch.tensor([1, 0], dtype=torch.int32)
        >>> rows = RowsFormat(1, torch.float32, torch.float32)
        >>> unpack_rows(message, rows_R, links_WL, rows).tolist()
        [[3.0], [1.0]]
    """
    return torch.ops.mmoe.pack_rows(
        list(sources),
        weights_BGK,
        plan.rows_M,
        plan.entries_Q,
        plan.codes_Q,
        links_WL,
        wire,
        num_bytes,
    )


def pack_rows_backward(
    message: Tensor, plan: OutboundPlan, links_WL: Tensor, num_sources: int, rows_format: RowsFormat
) -> tuple[Tensor, Tensor]:
    """Adds up the gradients that came back, of each sample's rows in their order.

    Args:
        message: For each rank [rows][weights], from `unpack_rows_backward`.
        plan: As for `pack_rows`.
        links_WL: As for `pack_rows`.
        num_sources: S.
        rows_format: Of the rows.

    Returns:
        grad_BSD and grad_weights_BGK.
    """
    return torch.ops.mmoe.pack_rows_backward(
        message, plan.rows_M, plan.rows_BGK, plan.entries_Q, links_WL, num_sources, *rows_format
    )


def unpack_rows(
    message: Tensor, rows_R: Tensor, links_WL: Tensor, rows_format: RowsFormat
) -> Tensor:
    """Gathers the rows of a message: x_RD[i] = row rows_R[i], and 0 where that is −1.

    Args:
        message: uint8, from `pack_rows` of all ranks.
        rows_R: int32, in [−1, N).
        links_WL: The links that it came over.
        rows_format: What its rows are.

    Raises:
        ValueError: On arguments that do not fit together, or (CPU) a row that is not there.
    """
    return torch.ops.mmoe.unpack_rows(message, rows_R, links_WL, *rows_format)


def unpack_rows_backward(
    grad_RD: Tensor,
    grad_weights_NGK: Tensor,
    slots_NGK: Tensor,
    places_Q: Tensor,
    links_WL: Tensor,
    wire: torch.dtype,
    num_bytes: int,
) -> Tensor:
    """Puts the gradients that go back into one message: for each rank [rows][weights].

    Args:
        grad_RD: Of the rows that were gathered.
        grad_weights_NGK: Of the weights that came.
        slots_NGK: The plan's slots, whose rows are added up for each row of the message.
        places_Q: From `decode_picks`.
        links_WL: The links that the rows came over.
        wire: What rows travel in.
        num_bytes: The length of the message.
    """
    return torch.ops.mmoe.unpack_rows_backward(
        grad_RD, grad_weights_NGK, slots_NGK, places_Q, links_WL, wire, num_bytes
    )


def _fake_pack_rows(weights_BGK: Tensor, num_bytes: int, **rest: Any) -> Tensor:
    return weights_BGK.new_empty(num_bytes, dtype=torch.uint8)


def _fake_pack_rows_backward(
    message: Tensor, rows_BGK: Tensor, num_sources: int, width: int, dtype: torch.dtype, **rest: Any
) -> tuple[Tensor, Tensor]:
    return (
        message.new_empty(rows_BGK.shape[0], num_sources, width, dtype=dtype),
        message.new_empty(rows_BGK.shape, dtype=accumulate_dtype(dtype)),
    )


def _fake_unpack_rows(
    message: Tensor, rows_R: Tensor, width: int, dtype: torch.dtype, **rest: Any
) -> Tensor:
    return message.new_empty(rows_R.shape[0], width, dtype=dtype)


def _fake_unpack_rows_backward(grad_RD: Tensor, num_bytes: int, **rest: Any) -> Tensor:
    return grad_RD.new_empty(num_bytes, dtype=torch.uint8)


define(
    "pack_rows(Tensor[] sources, Tensor weights_BGK, Tensor rows_M, Tensor entries_Q,"
    " Tensor codes_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor",
    _fake_pack_rows,
)
define(
    "pack_rows_backward(Tensor message, Tensor rows_M, Tensor rows_BGK, Tensor entries_Q,"
    " Tensor links_WL, int num_sources, int width, ScalarType dtype, ScalarType wire)"
    " -> (Tensor, Tensor)",
    _fake_pack_rows_backward,
)
define(
    "unpack_rows(Tensor message, Tensor rows_R, Tensor links_WL, int width, ScalarType dtype,"
    " ScalarType wire) -> Tensor",
    _fake_unpack_rows,
)
define(
    "unpack_rows_backward(Tensor grad_RD, Tensor grad_weights_NGK, Tensor slots_NGK,"
    " Tensor places_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor",
    _fake_unpack_rows_backward,
)


class InboundPicks(NamedTuple):
    """Picks that came with the rows of a message.

    Attributes:
        picks_NGK: Experts by their number here, int32; −1 = picked none here.
        weights_NGK: Their weights; 0 where none came.
        places_Q: Each pick that came, as a place in the flattened picks, int32.
    """

    picks_NGK: Tensor
    weights_NGK: Tensor
    places_Q: Tensor


def decode_picks(
    message: Tensor,
    links_WL: Tensor,
    rows_format: RowsFormat,
    *,
    sizes: tuple[int, int],
    gates: tuple[int, int],
    num_experts: int,
) -> InboundPicks:
    """Reads the codes and weights of a message.

    Args:
        message: uint8, from `pack_rows` of all ranks.
        links_WL: The links that it came over.
        rows_format: What its rows are.
        sizes: How many rows and picks came, N and Q.
        gates: G and K.
        num_experts: e, held here; may be 0.

    Raises:
        ValueError: On a message of another size, or (CPU) codes that no `outbound_plan` wrote.

    Example:
        >>> import torch
        >>> message = torch.tensor([-1, 5, -4], dtype=torch.int32).view(torch.uint8)
        >>> links_WL = torch.tensor([[0] * 6, [2, 3, 0, 3, 3, 3]])
        >>> rows = RowsFormat(0, torch.float32, torch.float32)
        >>> came = decode_picks(
        ...     message, links_WL, rows, sizes=(2, 3), gates=(2, 2), num_experts=2
        ... )
        >>> came.picks_NGK.tolist()
        [[[0, -1], [1, -1]], [[-1, 1], [-1, -1]]]
    """
    return InboundPicks(
        *torch.ops.mmoe.decode_picks(message, links_WL, *sizes, *gates, num_experts, *rows_format)
    )


class ReturnPlan(NamedTuple):
    """Index of each output in the message back, int32; −1: it does not go back so.

    Attributes:
        back_R: Of each pair.
        back_NG: Of each partial sum, one for a row and a gate.
    """

    back_R: Tensor
    back_NG: Tensor


def return_plan(routes: RoutePlan, links_WL: Tensor) -> ReturnPlan:
    """Numbers what goes back, rank by rank: pairs by (expert, row), or sums by (row, gate).

    Args:
        routes: The plan of the picks that came, cut at its last pair.
        links_WL: The links that they came over.

    Raises:
        ValueError: On shapes and dtypes that do not fit, or (CPU) links of another batch.

    Example:
        >>> import torch
        >>> from mmoe.ops import route_plan
        >>> routes = route_plan(torch.tensor([[[0, 1]], [[1, -1]]], dtype=torch.int32), 2)
        >>> links_WL = torch.tensor([[0] * 6, [1, 2, 0, 2, 1, 2], [2, 3, 1, 3, 2, 3]])
        >>> back_R, back_NG = return_plan(routes._replace(rows_P=routes.rows_P[:3]), links_WL)
        >>> back_R.tolist(), back_NG.tolist()  # row 0 goes back as two pairs, row 1 as a sum
        ([0, 1, -1], [[-1], [2]])
    """
    return ReturnPlan(*torch.ops.mmoe.return_plan(*routes, links_WL))


def _fake_decode(
    message: Tensor,
    num_rows: int,
    num_picks: int,
    num_gates: int,
    k: int,
    dtype: torch.dtype,
    **rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (num_rows, num_gates, k)
    return (
        message.new_empty(shape, dtype=torch.int32),
        message.new_empty(shape, dtype=accumulate_dtype(dtype)),
        message.new_empty(num_picks, dtype=torch.int32),
    )


def _fake_return(rows_R: Tensor, slots_NGK: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return rows_R.new_empty(rows_R.shape), rows_R.new_empty(slots_NGK.shape[:2])


define(
    "decode_picks(Tensor message, Tensor links_WL, int num_rows, int num_picks, int num_gates,"
    " int k, int num_experts, int width, ScalarType dtype, ScalarType wire)"
    " -> (Tensor, Tensor, Tensor)",
    _fake_decode,
)
define(
    "return_plan(Tensor rows_R, Tensor offsets_E1, Tensor slots_NGK, Tensor links_WL)"
    " -> (Tensor, Tensor)",
    _fake_return,
)


def pack_returns(
    y_RO: Tensor,
    weights_NGK: Tensor,
    back: ReturnPlan,
    slots_NGK: Tensor,
    num_rows: int,
    wire: torch.dtype,
) -> Tensor:
    """Puts the experts' outputs, or each gate's sum of them, in the order in which they go back.

    back[back_R[p]] = y[p];   back[back_NG[n, g]] = Σ_k weights[n, g, k] · y[slots[n, g, k]]

    Args:
        y_RO: Outputs, expert-major.
        weights_NGK: float32 (float64 beside float64 outputs).
        back: Where each goes.
        slots_NGK: int32, the pair that serves a pick; −1 = unused.
        num_rows: Z.
        wire: What outputs travel in.

    Returns:
        back_ZO in the wire's dtype. Sums are taken in float32 (float64), picks in their order.

    Raises:
        ValueError: On arguments that do not fit together, or (CPU) an index out of range.

    Example:
        >>> import torch
        >>> back = ReturnPlan(torch.tensor([1, -1, -1]).int(), torch.tensor([[-1], [0]]).int())
        >>> slots = torch.tensor([[[0, -1]], [[1, 2]]]).int()
        >>> y_RO = torch.tensor([[1.0], [10.0], [100.0]])
        >>> pack_returns(y_RO, torch.full((2, 1, 2), 0.5), back, slots, 2, y_RO.dtype).tolist()
        [[55.0], [1.0]]
    """
    return torch.ops.mmoe.pack_returns(y_RO, weights_NGK, *back, slots_NGK, num_rows, wire)


def mix_returns(
    back_ZO: Tensor, weights_BGK: Tensor, plan: OutboundPlan, links_WL: Tensor, dtype: torch.dtype
) -> Tensor:
    """Mixes what came back for every gate: out[b, g] = Σ_row Σ_{k of the row} w[b, g, k] · y[pick].

    The picks of a row first, then the rows, and a row's part is rounded to `dtype`: so the result
    has the same bits whether pairs came back or their sum.

    Args:
        back_ZO: What came back, rank by rank.
        weights_BGK: The gates' weights, float32 (float64 for float64).
        plan: What went out.
        links_WL: The links that it went over.
        dtype: Of the rows.

    Returns:
        out_BGO. A weight whose pick came back in a sum gets no gradient here: it gets it where the
        sum was taken.

    Raises:
        ValueError: On arguments that do not fit together.
    """
    return torch.ops.mmoe.mix_returns(
        back_ZO, weights_BGK, plan.rows_BGK, plan.pairs_BGK, plan.sums_BGK, links_WL, dtype
    )


def _fake_pack_returns(y_RO: Tensor, num_rows: int, wire: torch.dtype, **rest: Any) -> Tensor:
    return y_RO.new_empty(num_rows, y_RO.shape[1], dtype=wire)


def _fake_mix_returns(back_ZO: Tensor, rows_BGK: Tensor, dtype: torch.dtype, **rest: Any) -> Tensor:
    return back_ZO.new_empty(*rows_BGK.shape[:2], back_ZO.shape[1], dtype=dtype)


def _pack_returns_backward(ctx: Any, grad_ZO: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.mmoe.pack_returns_backward(grad_ZO, *ctx.saved_tensors)
    return *grads, None, None, None, None, None


def _mix_returns_backward(ctx: Any, grad_BGO: Tensor) -> tuple[Tensor | None, ...]:
    grads = torch.ops.mmoe.mix_returns_backward(grad_BGO, *ctx.saved_tensors)
    return *grads, None, None, None, None, None


define(
    "pack_returns(Tensor y_RO, Tensor weights_NGK, Tensor back_R, Tensor back_NG,"
    " Tensor slots_NGK, int num_rows, ScalarType wire) -> Tensor",
    _fake_pack_returns,
)
define(
    "pack_returns_backward(Tensor grad_ZO, Tensor y_RO, Tensor weights_NGK, Tensor back_R,"
    " Tensor back_NG, Tensor slots_NGK) -> (Tensor, Tensor)",
    empties_like("y_RO", "weights_NGK"),
)
define(
    "mix_returns(Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK, Tensor pairs_BGK,"
    " Tensor sums_BGK, Tensor links_WL, ScalarType dtype) -> Tensor",
    _fake_mix_returns,
)
define(
    "mix_returns_backward(Tensor grad_BGO, Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK,"
    " Tensor pairs_BGK, Tensor sums_BGK, Tensor links_WL) -> (Tensor, Tensor)",
    empties_like("back_ZO", "weights_BGK"),
)
register_autograd("pack_returns", _pack_returns_backward, save_tensors)
register_autograd("mix_returns", _mix_returns_backward, save_tensors)

"""`pack_rows` and `unpack_rows`: rows into the message that goes to the ranks, and out of it.

Messages are bytes, which have no gradient; the gradients travel the other way by
`unpack_rows_backward` on the rank of the experts and `pack_rows_backward` on that of the samples.
`mmoe.parallel.experts.rows` puts the four together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import accumulate_dtype
from mmoe.ops._library import define
from mmoe.ops.exchange.outbound_plan import OutboundPlan


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


def _fake_pack(weights_BGK: Tensor, num_bytes: int, **rest: Any) -> Tensor:
    return weights_BGK.new_empty(num_bytes, dtype=torch.uint8)


def _fake_pack_backward(
    message: Tensor, rows_BGK: Tensor, num_sources: int, width: int, dtype: torch.dtype, **rest: Any
) -> tuple[Tensor, Tensor]:
    return (
        message.new_empty(rows_BGK.shape[0], num_sources, width, dtype=dtype),
        message.new_empty(rows_BGK.shape, dtype=accumulate_dtype(dtype)),
    )


def _fake_unpack(
    message: Tensor, rows_R: Tensor, width: int, dtype: torch.dtype, **rest: Any
) -> Tensor:
    return message.new_empty(rows_R.shape[0], width, dtype=dtype)


def _fake_unpack_backward(grad_RD: Tensor, num_bytes: int, **rest: Any) -> Tensor:
    return grad_RD.new_empty(num_bytes, dtype=torch.uint8)


define(
    "pack_rows(Tensor[] sources, Tensor weights_BGK, Tensor rows_M, Tensor entries_Q,"
    " Tensor codes_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor",
    _fake_pack,
)
define(
    "pack_rows_backward(Tensor message, Tensor rows_M, Tensor rows_BGK, Tensor entries_Q,"
    " Tensor links_WL, int num_sources, int width, ScalarType dtype, ScalarType wire)"
    " -> (Tensor, Tensor)",
    _fake_pack_backward,
)
define(
    "unpack_rows(Tensor message, Tensor rows_R, Tensor links_WL, int width, ScalarType dtype,"
    " ScalarType wire) -> Tensor",
    _fake_unpack,
)
define(
    "unpack_rows_backward(Tensor grad_RD, Tensor grad_weights_NGK, Tensor slots_NGK,"
    " Tensor places_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor",
    _fake_unpack_backward,
)

"""`decode_picks` and `return_plan`: what came from other ranks, and where its outputs go back."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmoe.ops._checks import accumulate_dtype
from mmoe.ops._library import define
from mmoe.ops.dispatch import RoutePlan
from mmoe.ops.exchange.exchange_rows import RowsFormat


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
        >>> from mmoe.ops.exchange.exchange_rows import RowsFormat
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

"""Attention within each row, over as many events as it has."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.models.sequences.events import Events
from mmoe.models.sequences.softmax import jagged_softmax
from mmoe.ops.jagged_sum import jagged_sum

_NUMBERS = 1 << 22  # products that evaluation holds at a time, 16 MiB in fp32


def attend_target(
    q_BD: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    events: Events,
    heads: int,
) -> Tensor:
    """Computes softmax attention of each row's target to its events and itself, `[B, D]`.

    Args:
        q_BD: Queries of the targets.
        keys: Of the events [V, D], and of the targets [B, D].
        values: Likewise.
        events: How many each row has.
        heads: H, which divide D.
    """
    row_V = events.row_V
    scale = (q_BD.shape[1] // heads) ** -0.5
    q_BHK, k_VHK, k_BHK, v_VHK, v_BHK = (
        _heads(_wide(x_ND), heads) for x_ND in (q_BD, *keys, *values)
    )
    scores_VH = (q_BHK.index_select(0, row_V) * k_VHK).sum(-1) * scale
    own_BH = (q_BHK * k_BHK).sum(-1) * scale
    w_VH = jagged_softmax(scores_VH, events, own_BH)
    of_events_BD = jagged_sum((w_VH[:, :, None] * v_VHK).flatten(1), events.lengths_B)
    own_w_BH = 1 - jagged_sum(w_VH, events.lengths_B)
    found_BD = of_events_BD + (own_w_BH[:, :, None] * v_BHK).flatten(1)
    return found_BD.to(q_BD.dtype)


def attend_all(
    projected: Sequence[Tensor], events: Events, heads: int, *, training: bool
) -> Tensor:
    """Computes softmax attention of all events and the target of a row to one another.

    Rows are taken in groups that have as many events.

    Args:
        projected: Queries, keys and values, `[V + B, D]` each: events first, then targets.
        events: How many each row has.
        heads: H, which divide D.
        training: By matrix products; else by sums whose bits depend on a row alone.

    Returns:
        `[V + B, D]`.
    """
    lengths_B, starts_B = events.lengths_B.long(), events.starts_B
    count = len(events.e_VD)
    places, found = [], []
    for length in torch.unique(lengths_B).tolist():
        rows_N = (lengths_B == length).nonzero()[:, 0]
        steps_L = torch.arange(length, device=rows_N.device)
        own_NL = torch.cat([starts_B[rows_N][:, None] + steps_L, (rows_N + count)[:, None]], dim=1)
        q, k, v = (
            x_ND.index_select(0, own_NL.flatten()).view(*own_NL.shape, heads, -1).transpose(1, 2)
            for x_ND in projected
        )
        out = F.scaled_dot_product_attention(q, k, v) if training else _stable_attention(q, k, v)
        places.append(own_NL.flatten())
        found.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
    if not found:
        return projected[0]
    return torch.cat(found).index_select(0, torch.argsort(torch.cat(places)))


def _stable_attention(q_NHLK: Tensor, k_NHLK: Tensor, v_NHLK: Tensor) -> Tensor:
    """Products number by number, some rows at a time, instead of by matrices."""
    _, heads, length, width = q_NHLK.shape
    of_query = heads * length * width
    rows, queries = max(1, _NUMBERS // (of_query * length)), max(1, _NUMBERS // of_query)
    parts = []
    for q_rows, k, v in zip(*(x.split(rows) for x in (q_NHLK, k_NHLK, v_NHLK)), strict=True):
        found = [_attend(q, k, v) for q in q_rows.split(queries, dim=2)]  # one, unless L is large
        parts.append(torch.cat(found, dim=2))
    return torch.cat(parts) if parts else q_NHLK


def _attend(q_NHQK: Tensor, k_NHLK: Tensor, v_NHLK: Tensor) -> Tensor:
    dtype = q_NHQK.dtype
    q_NHQK, k_NHLK, v_NHLK = _wide(q_NHQK), _wide(k_NHLK), _wide(v_NHLK)
    scores = (q_NHQK[:, :, :, None] * k_NHLK[:, :, None]).sum(-1) * q_NHQK.shape[-1] ** -0.5
    weights = scores.softmax(-1)
    return (weights[..., None] * v_NHLK[:, :, None]).sum(3).to(dtype)


def _wide(x_ND: Tensor) -> Tensor:
    """At least fp32: weights of 200 events, and what they leave, are lost in bfloat16's 8 bits."""
    return x_ND.to(torch.promote_types(x_ND.dtype, torch.float32))


def _heads(x_ND: Tensor, heads: int) -> Tensor:
    return x_ND.unflatten(1, (heads, -1))

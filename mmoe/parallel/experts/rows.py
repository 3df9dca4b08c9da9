"""Rows on their way to the experts, and their gradients on the way back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture.routing.dispatcher import plan_routes
from mmoe.parallel.experts.async_exchange import start_exchange
from mmoe.parallel.experts.links import Links
from mmoe.parallel.experts.wire import Wire


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Settings of an exchange of rows that both of its ends go by.

    Attributes:
        wire: What carries them.
        out: The plan of what this rank sends.
        ours: Its links to the ranks that compute for it.
        theirs: The links of the ranks that it computes for.
        rows: What the rows are.
        gates: G and K.
        num_experts: e, held here or, of a rank that relays, on its host.
        relays: What comes is not computed here, but goes on to the ranks of this host.
    """

    wire: Wire
    out: ops.OutboundPlan
    ours: Links
    theirs: Links
    rows: ops.RowsFormat
    gates: tuple[int, int]
    num_experts: int
    relays: bool = False

    def message_bytes(self, links: Links, code_bytes: int) -> list[int]:
        """Returns the bytes of each rank's message: rows, codes of picks, weights."""
        row = self.rows.width * self.rows.wire.itemsize
        # Of the type of sums, as `Exchange.prepare` casts weights
        weight = 8 if self.rows.dtype == torch.float64 else 4
        sizes = zip(links.rows, links.picks, links.weights, strict=True)
        return [rows * row + picks * code_bytes + w * weight for rows, picks, w in sizes]


class Arrived(NamedTuple):
    """Rows that came from all ranks, sorted by expert.

    Attributes:
        x_RD: The rows; each of them once, `x_ND`, where every expert here computes all of them, or
            where they go on to others.
        picks_NGK: The picks that came with them, by the experts' numbers here.
        weights_NGK: Their weights; 0 where none came.
        routes: The plan of the picks that came.
        places_Q: Each pick that came, as a place in the flattened picks.
    """

    x_RD: Tensor
    picks_NGK: Tensor
    weights_NGK: Tensor
    routes: ops.RoutePlan
    places_Q: Tensor
    every_row: bool

    @property
    def offsets_E1(self) -> Tensor | None:
        """Returns each expert's first row; None where every expert computes all of them."""
        return None if self.every_row else self.routes.offsets_E1


def begin_rows(
    crossing: Crossing, weights_BGK: Tensor, sources: Sequence[Tensor]
) -> Callable[[], Arrived]:
    """Begins to send each row once to each rank that has an expert for it.

    Args:
        crossing: Sizes and plans.
        weights_BGK: Of the picks; sent where sums come back.
        sources: S tensors `x_BD`.

    Returns:
        Waits for what comes, and sorts it.
    """
    arrive = start_exchange(_Rows(crossing), weights_BGK, *sources)

    def finish() -> Arrived:
        x_RD, weights_NGK, picks_NGK, places_Q, *routes = arrive()
        every_row = _every_row(crossing) and not crossing.relays
        return Arrived(x_RD, picks_NGK, weights_NGK, ops.RoutePlan(*routes), places_Q, every_row)

    return finish


class _Rows:
    """Pack, exchange, unpack; and the same backwards: a `AsyncExchange`."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing = crossing

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        weights_BGK, *sources = tensors
        c, device = self.crossing, weights_BGK.device
        self.num_sources = len(sources)
        self.ours_WL, self.theirs_WL = c.ours.table(device), c.theirs.table(device)
        send, receive = c.message_bytes(c.ours, 4), c.message_bytes(c.theirs, 4)
        message = ops.pack_rows(sources, weights_BGK, c.out, self.ours_WL, c.rows.wire, sum(send))
        self.pending = c.wire.begin_rows(message, send, receive)

    def finish(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        c, message = self.crossing, self.pending.wait()
        picks_NGK, weights_NGK, self.places_Q = ops.decode_picks(
            message,
            self.theirs_WL,
            c.rows,
            sizes=(sum(c.theirs.rows), sum(c.theirs.picks)),
            gates=c.gates,
            num_experts=c.num_experts,
        )
        routes = _plan_picks(picks_NGK, c.num_experts, c.theirs)
        rows_R, self.slots_NGK = routes.rows_P, routes.slots_BGK
        if c.relays or _every_row(c):
            rows_R, self.slots_NGK = _each_once(routes.slots_BGK)
        x_RD = ops.unpack_rows(message, rows_R, self.theirs_WL, c.rows)
        return (x_RD, weights_NGK), (picks_NGK, self.places_Q, *routes)

    def begin_backward(self, grads: tuple[Tensor, ...]) -> None:
        grad_RD, grad_weights_NGK = grads
        c = self.crossing
        # Codes of picks have no gradient
        send, receive = c.message_bytes(c.theirs, 0), c.message_bytes(c.ours, 0)
        message = ops.unpack_rows_backward(
            grad_RD,
            grad_weights_NGK,
            self.slots_NGK,
            self.places_Q,
            self.theirs_WL,
            c.rows.wire,
            sum(send),
        )
        self.pending = c.wire.begin_rows(message, send, receive)

    def finish_backward(self) -> tuple[Tensor | None, ...]:
        c = self.crossing
        grad_BSD, grad_weights_BGK = ops.pack_rows_backward(
            self.pending.wait(), c.out, self.ours_WL, self.num_sources, c.rows
        )
        return grad_weights_BGK, *grad_BSD.unbind(1)


def _plan_picks(picks_NGK: Tensor, num_experts: int, theirs: Links) -> ops.RoutePlan:
    """The plan of the picks that came; a rank without experts gets no picks."""
    routes = plan_routes(picks_NGK, max(num_experts, 1))
    # Told by the sizes: on a GPU nobody has to wait for the plan
    pairs = sum(size.pairs for size in theirs.sizes)
    return routes._replace(
        rows_P=routes.rows_P[:pairs], offsets_E1=routes.offsets_E1[: num_experts + 1]
    )


def _every_row(crossing: Crossing) -> bool:
    """Returns whether each expert here was picked for all rows that came.

    Then the experts read the rows as they lie, instead of a copy for each expert.
    """
    rows, pairs = sum(crossing.theirs.rows), sum(size.pairs for size in crossing.theirs.sizes)
    return crossing.num_experts > 1 and 0 < rows * crossing.num_experts == pairs


def _each_once(slots_NGK: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in their order, and slots by which each row's gradient is its own."""
    rows_N = torch.arange(slots_NGK.shape[0], dtype=torch.int32, device=slots_NGK.device)
    own_NGK = torch.full_like(slots_NGK, -1)
    own_NGK[:, 0, 0] = rows_N
    return rows_N, own_NGK

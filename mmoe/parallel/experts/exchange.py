"""`Exchange`: rows to the ranks of a wire, and outputs back: one level of the way to experts.

All ranks agree on a batch first (`agree`), or some would wait for one that has refused it. Then
sizes go, so that both ends of each link know what comes; then the rows, and their outputs back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan, Tree
from mmoe.mixture.dispatcher import plan_routes, source_places
from mmoe.ops import FLOAT_DTYPES, accumulate_dtype
from mmoe.parallel.experts.async_exchange import Steps, start_exchange
from mmoe.parallel.experts.links import Links, Sizes, WayBack, WayCosts
from mmoe.parallel.experts.placement import ExpertPlacement
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

    @property
    def every_row(self) -> bool:
        """Whether each expert here was picked for all rows that came.

        Then the experts read the rows as they lie, instead of a copy for each expert.
        """
        rows, pairs = sum(self.theirs.rows), sum(size.pairs for size in self.theirs.sizes)
        return self.num_experts > 1 and 0 < rows * self.num_experts == pairs

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
        every_row: Whether every expert here computes all rows, which then come once.
    """

    x_RD: Tensor
    picks_NGK: Tensor
    weights_NGK: Tensor
    routes: ops.RoutePlan
    every_row: bool

    @property
    def offsets_E1(self) -> Tensor | None:
        """Returns each expert's first row; None where every expert computes all of them."""
        return None if self.every_row else self.routes.offsets_E1


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
        if c.relays or c.every_row:
            rows_R, self.slots_NGK = _each_once(routes.slots_BGK)
        # From the message straight to the experts' order: rows unpacked first were copied twice
        x_RD = ops.unpack_rows(message, rows_R, self.theirs_WL, c.rows)
        return (x_RD, weights_NGK), (picks_NGK, *routes)

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


def _each_once(slots_NGK: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in their order, and slots by which each row's gradient is its own."""
    rows_N = torch.arange(slots_NGK.shape[0], dtype=torch.int32, device=slots_NGK.device)
    own_NGK = torch.full_like(slots_NGK, -1)
    own_NGK[:, 0, 0] = rows_N  # any pick of the row would do: its gradient comes once
    return rows_N, own_NGK


class Terms(NamedTuple):
    """Terms that both ends of an exchange know beforehand, the same on all ranks.

    Attributes:
        rows: What the rows are.
        costs: By which the way back is chosen.
    """

    rows: ops.RowsFormat
    costs: WayCosts


class Piece(NamedTuple):
    """Rows of a batch, and their picks.

    Attributes:
        sources: S tensors `x_BD`.
        plan: The picks.
    """

    sources: Sequence[Tensor]
    plan: DispatchPlan


class Departure(NamedTuple):
    """Rows that are ready to leave: both ends know how many there are.

    Attributes:
        crossing: Sizes and plans.
        weights_BGK: Of the picks.
        sources: Those that experts read.
        terms: What both ends know.
    """

    crossing: Crossing
    weights_BGK: Tensor
    sources: Sequence[Tensor]
    terms: Terms


class Handle(NamedTuple):
    """State of a batch that the way back needs.

    Attributes:
        crossing: The plan of what this rank sent, and the links in both directions.
        arrived: What came, and its plan.
        weights_BGK: The weights of this rank's own samples.
        output_dim: O.
    """

    crossing: Crossing
    arrived: Arrived
    weights_BGK: Tensor
    output_dim: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Sends each row once to each rank that has experts for it, and brings their outputs back.

    Args:
        wire: To the ranks.
        placement: Who holds which expert: of the ranks of the wire.
        relays: What comes goes on to other ranks; each row is needed once.
    """

    wire: Wire
    placement: ExpertPlacement
    relays: bool = False
    # Those of `outward`, the experts and `homeward`, one after another
    num_steps = 3

    def prepare(
        self, pieces: Sequence[Piece], terms: Terms, *, as_pairs: bool | None = None
    ) -> list[Departure]:
        """Plans what goes where; one exchange of sizes serves all pieces.

        Args:
            pieces: Of the batch.
            terms: What all ranks agree on.
            as_pairs: Whether outputs must come back to this rank as pairs, which the sizes then
                say; None: no rank asks for it.
        """
        outs = self._plans([piece.plan for piece in pieces])
        links = self._links([out.sizes_W4 for out in outs], terms.costs, as_pairs)
        departures = []
        for (sources, plan), out, (ours, theirs) in zip(pieces, outs, links, strict=True):
            crossing = Crossing(
                wire=self.wire,
                out=out,
                ours=ours,
                theirs=theirs,
                rows=terms.rows,
                gates=terms.costs.picks,
                num_experts=len(self.placement.on(self.wire.rank)),
                relays=self.relays,
            )
            # Weights are rounded nowhere on the way, whatever rows travel in
            weights_BGK = plan.weights_BGK.to(accumulate_dtype(terms.rows.dtype))
            read = [sources[s] for s in sorted(set(plan.expert_source))]
            departures.append(Departure(crossing, weights_BGK, read, terms))
        return departures

    def outward(self, leaving: Departure) -> Steps[Handle]:
        """Sends the rows, and sorts what comes by expert."""
        crossing, weights_BGK, sources, terms = leaving
        # The weights go through autograd too: where sums come back their gradient is computed there
        arrive = start_exchange(_Rows(crossing), weights_BGK, *sources)
        yield
        x_RD, weights_NGK, picks_NGK, *routes = arrive()
        every_row = crossing.every_row and not crossing.relays
        arrived = Arrived(x_RD, picks_NGK, weights_NGK, ops.RoutePlan(*routes), every_row)
        return Handle(crossing, arrived, weights_BGK, terms.costs.output_dim)

    def homeward(self, y: Tree, handle: Handle) -> Steps[Tensor]:
        """Sends the outputs back, and mixes what comes for each gate.

        Raises:
            ValueError: Outputs that are no `[R, O]` tensor.
        """
        back_ZO = yield from self.send_back(self.pack(y, handle), handle)
        return self.mix(back_ZO, handle)

    def pack(self, y: Tree, handle: Handle) -> Tensor:
        """Puts outputs, or the gates' sums of them, in the order in which they go back."""
        y_RO, arrived, crossing = _checked(y, handle), handle.arrived, handle.crossing
        theirs = crossing.theirs
        return ops.pack_returns(
            # Autocast may have given them another type; the other end counts on that of the rows
            y_RO.to(crossing.rows.dtype),
            arrived.weights_NGK,
            ops.return_plan(arrived.routes, theirs.table(y_RO.device)),
            arrived.routes.slots_BGK,
            sum(theirs.back),
            crossing.rows.wire,
        )

    def send_back(self, back_ZO: Tensor, handle: Handle) -> Steps[Tensor]:
        """Sends rows back to each rank, and returns those that come back, in the same order.

        Args:
            back_ZO: Rank by rank, its pairs by (expert, row) or its sums by (row, gate).
            handle: From `outward`.
        """
        ours, theirs = handle.crossing.ours, handle.crossing.theirs
        arrive = self.wire.begin_exchange(back_ZO, theirs.back, ours.back)
        yield
        return arrive()

    def mix(self, back_ZO: Tensor, handle: Handle) -> Tensor:
        """Mixes what came back for each gate."""
        crossing, links_WL = handle.crossing, handle.crossing.ours.table(back_ZO.device)
        return ops.mix_returns(
            back_ZO, handle.weights_BGK, crossing.out, links_WL, crossing.rows.dtype
        )

    def _plans(self, plans: Sequence[DispatchPlan]) -> list[ops.OutboundPlan]:
        expert_source, device = plans[0].expert_source, plans[0].experts_BGK.device
        # For each expert its rank, its number there, and the source it reads
        columns = (
            self.placement.ranks,
            self.placement.places,
            source_places(expert_source).tolist(),
        )
        # In each call: which source an expert reads comes with the plan, and E · 3 numbers are few
        homes_E3 = torch.tensor(columns, dtype=torch.int32).t().contiguous().to(device)
        sources = len(set(expert_source))
        return [
            ops.outbound_plan(plan.experts_BGK, homes_E3, self.wire.world_size, sources)
            for plan in plans
        ]

    def _links(
        self, sizes: Sequence[Tensor], costs: WayCosts, as_pairs: bool | None
    ) -> list[tuple[Links, Links]]:
        """Exchanges the sizes: the links of this rank, and those of the ranks it computes for."""
        numbers_WX = torch.cat(list(sizes), 1)
        if as_pairs is not None:
            # Beside the sizes, so that it costs no message of its own
            asked_W1 = numbers_WX.new_full((len(numbers_WX), 1), int(as_pairs))
            numbers_WX = torch.cat([numbers_WX, asked_W1], 1)
        leave, come = numbers_WX.tolist(), self.wire.exchange_sizes(numbers_WX)
        held = [len(own) for own in self.placement.experts]
        here = [held[self.wire.rank]] * len(held)
        asked = [as_pairs is not None and bool(row[-1]) for row in come]
        asks = [bool(as_pairs)] * len(held)
        links = [
            (self._way(leave, i, held, costs, asks), self._way(come, i, here, costs, asked))
            for i in range(0, 4 * len(sizes), 4)
        ]
        if self.relays:
            for ours, theirs in links:
                # What stays on this host costs nothing here, so it goes back as what came does
                others = [w for w in range(len(held)) if w != self.wire.rank]
                as_sums = all(theirs.sums[w] for w in others)
                ours.sums[self.wire.rank] = theirs.sums[self.wire.rank] = as_sums
        return links

    def _way(
        self,
        numbers: list[list[int]],
        at: int,
        held: Sequence[int],
        costs: WayCosts,
        as_pairs: Sequence[bool],
    ) -> Links:
        """The links of one piece: its four numbers for each rank, and which way outputs go back."""
        sizes = [Sizes(*row[at : at + 4]) for row in numbers]
        sums = [
            not pairs and costs.sums_go_back(size, experts)
            for size, experts, pairs in zip(sizes, held, as_pairs, strict=True)
        ]
        return Links(sizes, sums)


def _checked(y: Tree, handle: Handle) -> Tensor:
    """Refuses outputs of another shape than the experts were asked for."""
    expected = [handle.arrived.routes.rows_P.shape[0], handle.output_dim]
    if not isinstance(y, Tensor) or list(y.shape) != expected:
        got = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"experts: expected outputs of shape {expected}, got {got}")
    return y


# Codes of picks are int32.
CODES = 2**31


def agree(
    sources: Sequence[Tree],
    plan: DispatchPlan,
    *,
    placement: ExpertPlacement,
    wire_dtype: torch.dtype | None,
    way_back: WayBack,
    host_size: int = 1,
) -> tuple[Piece, Terms]:
    """Returns a batch that can travel, and what both ends of each link know of it.

    Args:
        sources: S tensors `x_BD`, or what is refused.
        plan: The picks.
        placement: Who holds which expert.
        wire_dtype: What rows travel in; None: their own dtype.
        way_back: Which way the outputs come back.
        host_size: Ranks that get rows together.

    Raises:
        ValueError: Inputs that are no tensors, experts whose output is no tensor of a known width,
            or picks of another number of experts.
    """
    if plan.num_experts != placement.num_experts:
        raise ValueError(
            f"plan: expected picks of the {placement.num_experts // placement.slices} experts of "
            f"the placement, got {plan.num_experts // placement.slices}"
        )
    read = [sources[s] for s in sorted(set(plan.expert_source))]
    kinds = [_kind(x) for x in read]
    if None in kinds or len(set(kinds)) > 1:
        raise ValueError(
            "x: expected [rows, width] tensors of one width and floating point type, which is "
            f"what travels to other ranks, got {', '.join(_describe(x) for x in read)}"
        )
    if plan.output_dim is None:
        raise ValueError(
            "experts: expected an output_dim, which tells how wide the rows are that come back, "
            "got None; pass ExpertPool(…, output_dim=…)"
        )
    _check_codes(plan, placement, host_size)
    first = cast(Tensor, read[0])
    width, dtype = first.shape[1], first.dtype
    wire = wire_dtype or dtype
    # A wider wire would carry the same numbers in more bytes.
    rows = ops.RowsFormat(width, dtype, wire if wire.itemsize < dtype.itemsize else dtype)
    G, K = plan.experts_BGK.shape[1:]
    costs = WayCosts(
        way=way_back,
        output_dim=plan.output_dim,
        number_bytes=rows.wire.itemsize,
        weight_bytes=accumulate_dtype(dtype).itemsize,
        by_batch=rows.wire == dtype or torch.is_grad_enabled(),
        picks=(G, K),
        bound=plan.bound,
    )
    return Piece(cast(Sequence[Tensor], sources), plan), Terms(rows, costs)


def _check_codes(plan: DispatchPlan, placement: ExpertPlacement, host_size: int) -> None:
    """Codes number the picks of a row, and the experts where it goes."""
    G, K = plan.experts_BGK.shape[1:]
    held = list(map(len, placement.experts))
    most = max(sum(held[i : i + host_size]) for i in range(0, len(held), host_size))
    if G * K * most > CODES:
        raise ValueError(
            f"experts_BGK: expected {G} gates × {K} picks × {most} experts of a rank or host to "
            "fit in int32 codes; spread the experts over more ranks"
        )


def _kind(x: Tree) -> tuple[int, torch.dtype] | None:
    """Returns what the sources must agree in; None: cannot travel."""
    rows = isinstance(x, Tensor) and x.dim() == 2 and x.dtype in FLOAT_DTYPES
    return (x.shape[1], x.dtype) if rows else None


def _describe(x: Tree) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"

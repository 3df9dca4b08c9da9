"""`Exchange`: rows to the ranks of a wire, and outputs back: one level of the way to experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import source_places
from mmoe.ops import accumulate_dtype
from mmoe.parallel.experts.links import Links, Sizes, WayCosts
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.rows import Arrived, Crossing, begin_rows
from mmoe.parallel.experts.steps import Steps
from mmoe.parallel.experts.wire import Wire


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
        arrive = begin_rows(crossing, weights_BGK, sources)
        yield
        return Handle(crossing, arrive(), weights_BGK, terms.costs.output_dim)

    def homeward(self, y: Tree, handle: Handle) -> Steps[Tensor]:
        """Sends the outputs back, and mixes what comes for each gate.

        Raises:
            ValueError: Outputs that are no `[R, O]` tensor.
        """
        back_ZO = yield from self.send_back(self.pack(y, handle), handle)
        return self.mix(back_ZO, handle)

    def pack(self, y: Tree, handle: Handle) -> Tensor:
        """Puts outputs, or the gates' sums of them, in the order in which they go back."""
        y_RO, arrived, crossing = checked(y, handle), handle.arrived, handle.crossing
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
        """Sends what goes back, and returns what comes: of each rank, in the same order.

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


def checked(y: Tree, handle: Handle) -> Tensor:
    """Refuses outputs of another shape than the experts were asked for."""
    expected = [handle.arrived.routes.rows_P.shape[0], handle.output_dim]
    if not isinstance(y, Tensor) or list(y.shape) != expected:
        got = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ValueError(f"experts: expected outputs of shape {expected}, got {got}")
    return y

"""`AllToAllDispatcher`: experts spread over ranks, in plain `torch.distributed`.

Written to be read: it is the specification of what faster dispatchers do.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.routes import plan_routes, routes_by_source
from mmoe.mixture.trees import Tree, gather_rows, stack_sources
from mmoe.parallel.expert_placement import ExpertPlacement
from mmoe.parallel.links import Links, Sizes, WayBack, WayCosts, check_way
from mmoe.parallel.outbound import Outbound, decode, plan_outbound
from mmoe.parallel.returns import mix_returned, pack_returns
from mmoe.parallel.wire import Wire


class Handle(NamedTuple):
    """What `combine` needs of a batch.

    Attributes:
        out: What this rank sent.
        ours: Its links to the ranks that compute for it.
        theirs: The links of the ranks that it computes for.
        routes: The plan of the picks that came.
        picks_NGK: Those picks.
        weights_NGK: Their weights where sums go back, else 0.
        weights_BGK: The weights of this rank's own samples.
        dtype: Of this rank's rows.
        output_dim: O.
    """

    out: Outbound
    ours: Links
    theirs: Links
    routes: ops.RoutePlan
    picks_NGK: Tensor
    weights_NGK: Tensor
    weights_BGK: Tensor
    dtype: torch.dtype
    output_dim: int


class AllToAllDispatcher:
    """Experts are spread over ranks: a sample travels to a rank once, whatever number of gates ask.

    Two ranks, rank 0 with experts 0 and 1, rank 1 with expert 2; two gates, top-2. On rank 0:

        sample a: gate 0 picks 0, 2   gate 1 picks 1, 2
        sample b: gate 0 picks 2, 0   gate 1 picks 0, 1

                  sizes             rows, picks, weights           back
        rank 0 ────────────▶ rank 1 ────────────────────▶ rank 1 ──────────▶ rank 0
               4 numbers for        a: 2 by gates 0 and 1          pairs: y[a, 2], y[b, 2], or
               each rank            b: 2 by gate 0                 sums: (a, 0), (a, 1), (b, 0)

    Both rows are computed and come back once, as pairs here: two rows are fewer than three. Rows
    for a rank's own experts take the same road, inside the rank. One call sends:

    - sizes, once for all gates: 32 bytes to every rank;
    - one message to every rank: each distinct (sample, source, rank) row, 4 bytes for each pick,
      and its weight where sums come back;
    - one message back: the smaller of `pairs` and `sums`, chosen for each pair of ranks from the
      sizes, which both ends know.

    Every rank takes part in these three exchanges, and in two in the backward pass, whatever its
    batch: ranks may differ in B, hold no experts, get no rows, or have no batch (B = 0). All must
    call the layer equally often, with gradients enabled or not alike, and call `backward` on a loss
    that depends on the output: `0 · out.sum()` where there is no row.

    The loss is `L = Σ_r L_r`, the sum of what each rank calls `backward` on. So for a mean over the
    global batch, rank r takes the sum over its rows divided by the number of rows on *all* ranks.
    The gradients of experts are then complete where they are held, and need no further sum. Those
    of what every rank has (gates, towers) are each rank's share: add them up over the ranks. Do not
    average them.

    With `wire_dtype` rows, outputs and the gradients of both are rounded on the way; weights are
    not, and experts and gates compute in the rows' own dtype.

    Args:
        placement: Who holds which expert; the mixture's pool is `pool.part(placement.on(rank))`.
        group: The ranks; default: all.
        wire_dtype: What rows travel in, such as `torch.bfloat16`; default: their own dtype.
        way_back: `auto`, or always `pairs` or `sums`. The result has the same bits either way
            unless the wire rounds, where `auto` does not look at the batch.

    Raises:
        ValueError: No process group, a placement for another number of ranks, or a setting that
            there is not.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, TopKGate, mlp_experts
        >>> from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, ensure_process_group
        >>> ensure_process_group()
        >>> placement = ExpertPlacement.even(num_experts=4, num_ranks=1)
        >>> layer = MultiGateMixture(
        ...     8,
        ...     num_gates=2,
        ...     experts=mlp_experts(4, 8, [3]).part(placement.on(0)),
        ...     gate=TopKGate(8, 2, 4, k=2),
        ...     dispatcher=AllToAllDispatcher(placement),
        ... )
        >>> layer(torch.zeros(5, 8)).out_BGO.shape
        torch.Size([5, 2, 3])

    Source: Lepikhin et al., "GShard" (ICLR 2021), for the pair of all-to-alls; He et al., "FastMoE"
        (arXiv 2103.13262), for sizes that go first. One row for all gates, and the choice of the
        way back, are this library's.
    """

    def __init__(
        self,
        placement: ExpertPlacement,
        *,
        group: dist.ProcessGroup | None = None,
        wire_dtype: torch.dtype | None = None,
        way_back: WayBack = "auto",
    ) -> None:
        self.wire = Wire(group)
        if placement.num_ranks != self.wire.world_size:
            raise ValueError(
                f"placement: expected one for {self.wire.world_size} rank(s), as the group has, "
                f"got one for {placement.num_ranks}"
            )
        if wire_dtype is not None and not wire_dtype.is_floating_point:
            raise ValueError(f"wire_dtype: expected a floating point type, got {wire_dtype}")
        check_way(way_back)
        self.placement, self.wire_dtype = placement, wire_dtype
        self.way_back: WayBack = way_back

    def __deepcopy__(self, memo: dict[int, Any]) -> "AllToAllDispatcher":
        """Copies of a layer share it: it holds no state, and a process group cannot be copied."""
        return self

    @property
    def num_experts(self) -> int:
        """E, over all ranks."""
        return self.placement.num_experts

    @property
    def num_local_experts(self) -> int:
        """e, those of this rank."""
        return len(self.placement.on(self.wire.rank))

    def dispatch(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tensor, Tensor, Handle]:
        """Sends this rank's rows out, and sorts what came by expert.

        Args:
            sources: S tensors `x_BD` of one width.
            plan: The picks of all E experts.

        Returns:
            `rows_RD` and `offsets_e1` of the e experts here, and the handle.

        Raises:
            ValueError: Inputs that are no tensors, experts whose output is no tensor of a known
                width, or picks of another number of experts.
        """
        wide, costs = self._check(sources, plan)
        weights_BGK = plan.weights_BGK.to(torch.float64 if wide == torch.float64 else torch.float32)
        out = plan_outbound(plan, self.placement)
        ours, theirs = self._links(out, costs)
        with_weight_Q = torch.tensor(ours.sums, device=out.ranks_Q.device)[out.ranks_Q]
        weights_Q = weights_BGK.flatten().index_select(0, out.entries_Q[with_weight_Q])
        x_ND = _rows_to_send(sources, plan, out, sum(ours.rows)).to(self.wire_dtype or wide)
        x_ND, codes_Q, weights_Q = self.wire.exchange(
            [x_ND, out.codes_Q, weights_Q],
            [ours.rows, ours.picks, ours.weights],
            [theirs.rows, theirs.picks, theirs.weights],
        )
        picks_NGK = decode(codes_Q, x_ND.shape[0], self.num_local_experts, costs.picks)
        routes = _plan_picks(picks_NGK, self.num_local_experts, theirs)
        handle = Handle(
            out=out,
            ours=ours,
            theirs=theirs,
            routes=routes,
            picks_NGK=picks_NGK,
            weights_NGK=_place_weights(weights_Q, picks_NGK, theirs),
            weights_BGK=weights_BGK,
            dtype=wide,
            output_dim=costs.output_dim,
        )
        return gather_rows(x_ND.to(wide), routes), routes.offsets_E1, handle

    def combine(self, y: Tree, handle: Handle) -> Tensor:
        """Sends the outputs back, and mixes what came for each gate.

        Args:
            y: `y_RO`, row for row.
            handle: From `dispatch`.

        Returns:
            `out_BGO` in the dtype of the rows.

        Raises:
            ValueError: Outputs that are no `[R, O]` tensor.
        """
        expected = [handle.routes.rows_P.shape[0], handle.output_dim]
        if not isinstance(y, Tensor) or list(y.shape) != expected:
            got = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise ValueError(f"experts: expected outputs of shape {expected}, got {got}")
        ours, theirs = handle.ours, handle.theirs
        back_TO = pack_returns(
            y.to(handle.dtype), handle.routes, handle.picks_NGK, handle.weights_NGK, theirs
        )
        back_TO = back_TO.to(self.wire_dtype or handle.dtype)
        (back_TO,) = self.wire.exchange([back_TO], [theirs.back], [ours.back])
        return mix_returned(back_TO.to(handle.dtype), handle.weights_BGK, handle.out, ours)

    def _check(self, sources: Sequence[Tree], plan: DispatchPlan) -> tuple[torch.dtype, WayCosts]:
        """Fails on all ranks alike, before anything is sent: one alone would leave them waiting."""
        if plan.num_experts != self.num_experts:
            raise ValueError(
                f"plan: expected picks of the {self.num_experts} experts of the placement, got "
                f"{plan.num_experts}"
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
                "experts: expected an output_dim, which tells how wide the rows are that come "
                "back, got None; pass ExpertPool(…, output_dim=…)"
            )
        wide, wire = read[0].dtype, self.wire_dtype or read[0].dtype
        return wide, WayCosts(
            way=self.way_back,
            output_dim=plan.output_dim,
            number_bytes=wire.itemsize,
            weight_bytes=8 if wide == torch.float64 else 4,
            exact=wire == wide,
            picks=(plan.experts_BGK.shape[1], plan.experts_BGK.shape[2]),
        )

    def _links(self, out: Outbound, costs: WayCosts) -> tuple[Links, Links]:
        """Exchanges the sizes: the links of this rank, and those of the ranks it computes for."""
        ours = [Sizes(*row) for row in out.sizes_W4.tolist()]
        theirs = [Sizes(*row) for row in self.wire.exchange_sizes(out.sizes_W4)]
        held = [len(own) for own in self.placement.experts]
        here = self.num_local_experts
        return (
            Links(ours, [costs.sums_go_back(s, e) for s, e in zip(ours, held, strict=True)]),
            Links(theirs, [costs.sums_go_back(size, here) for size in theirs]),
        )


def _kind(x: Tree) -> tuple[int, torch.dtype] | None:
    """What the sources must agree in; None: cannot travel."""
    rows = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
    return (x.shape[1], x.dtype) if rows else None


def _describe(x: Tree) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"


def _rows_to_send(
    sources: Sequence[Tensor], plan: DispatchPlan, out: Outbound, rows: int
) -> Tensor:
    """`x_ND`, rank by rank; its gradient adds up what came back for a sample in a fixed order."""
    read = sorted(set(plan.expert_source))
    routes = out.rows._replace(rows_P=out.rows.rows_P[:rows])
    lanes = routes.offsets_E1.shape[0] - 1
    source_C = torch.arange(lanes, dtype=torch.int32, device=routes.rows_P.device) % len(read)
    if len(read) > 1:
        routes = routes_by_source(routes, out.lanes_BGK, source_C, len(read))
    return gather_rows(stack_sources([sources[s] for s in read]), routes)


def _plan_picks(picks_NGK: Tensor, num_experts: int, theirs: Links) -> ops.RoutePlan:
    """The plan of the picks that came; a rank without experts gets no picks."""
    routes = plan_routes(picks_NGK, max(num_experts, 1))
    pairs = sum(size.pairs for size in theirs.sizes)
    return routes._replace(
        rows_P=routes.rows_P[:pairs], offsets_E1=routes.offsets_E1[: num_experts + 1]
    )


def _place_weights(weights_Q: Tensor, picks_NGK: Tensor, theirs: Links) -> Tensor:
    """`weights_NGK` of the picks that came: weights travel in the order of their picks."""
    sums_N = theirs.of_rows(theirs.sums, picks_NGK.device)
    places_Q = ((picks_NGK >= 0) & sums_N.view(-1, 1, 1)).flatten().nonzero().squeeze(1)
    flat = weights_Q.new_zeros(picks_NGK.numel()).index_copy(0, places_Q, weights_Q)
    return flat.view(picks_NGK.shape)

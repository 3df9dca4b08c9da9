"""`AllToAllDispatcher`: experts spread over ranks, by `torch.distributed`.

Plans, packing and mixing are operators of `mmoe.ops`; `mmoe.ops.exchange.exchange_reference` says
in plain PyTorch what each of them does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import Compute, source_places
from mmoe.ops import FLOAT_DTYPES, accumulate_dtype
from mmoe.parallel.experts.links import Links, Sizes, WayBack, WayCosts, check_way
from mmoe.parallel.experts.loads import ExpertLoads
from mmoe.parallel.experts.mode import ROWS_TRAVEL, Mode
from mmoe.parallel.experts.overlap import own_halves, split_plan
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.rows import Arrived, Crossing, begin_rows
from mmoe.parallel.experts.width import agree_width
from mmoe.parallel.experts.wire import Wire

# Codes of picks are int32.
CODES = 2**31
# Below it, small products cost more than what they hide.
_OVERLAP_ROWS = 1024


class Handle(NamedTuple):
    """What `AllToAllDispatcher.combine` needs of a batch.

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


class AllToAllDispatcher:
    """Spreads experts over ranks: a sample goes to a rank once, however many gates ask.

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
        wire_dtype: What rows travel in, such as `torch.bfloat16`; default: their own dtype, which
            they also keep where that is narrower.
        overlap_rows: In training, this rank's own rows are computed while those of others travel
            (`run`) where its batch has so many rows, or more, for each of the E experts on
            average, every pick counted as another expert's.
        way_back: `auto`, or always `pairs` or `sums`. The result has the same bits either way
            unless the wire rounds, where `auto` looks at the batch while gradients are enabled
            only.
        replicas: The ranks that hold the same experts as this one, where each of several groups has
            all experts; gradients of experts are to be added up over them. Default: no other does.
        mode: How rows and weights travel; the attribute `mode` may be set between calls, on all
            ranks alike.

    Attributes:
        loads: Counts the rows of each expert in training (`count_loads`); None: nobody asked.

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
        overlap_rows: int = _OVERLAP_ROWS,
        way_back: WayBack = "auto",
        replicas: dist.ProcessGroup | None = None,
        mode: Mode = ROWS_TRAVEL,
    ) -> None:
        self.wire, self.replicas = Wire(group), replicas
        if placement.num_ranks != self.wire.world_size:
            raise ValueError(
                f"placement: expected one for {self.wire.world_size} rank(s), as the group has, "
                f"got one for {placement.num_ranks}"
            )
        if wire_dtype is not None and wire_dtype not in FLOAT_DTYPES:
            known = ", ".join(map(str, FLOAT_DTYPES))
            raise ValueError(
                f"wire_dtype: expected a floating point type of {known}, got {wire_dtype}"
            )
        check_way(way_back)
        self.placement, self.wire_dtype = placement, wire_dtype
        self.overlap_rows = overlap_rows
        self.way_back: WayBack = way_back
        self.mode = mode
        self.loads: ExpertLoads | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "AllToAllDispatcher":
        """Copies of a layer share it: it holds no state, and a process group cannot be copied."""
        return self

    @property
    def num_experts(self) -> int:
        """Number of experts on all ranks, E."""
        return self.placement.num_experts

    @property
    def num_local_experts(self) -> int:
        """Number of experts on this rank, e."""
        return len(self.placement.on(self.wire.rank))

    def agree_width(self, width: int | str | None) -> int:
        """Returns how wide the rows are that experts of all ranks return; see `agree_width`."""
        return agree_width(self.wire, width)

    def dispatch(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tensor, Tensor | None, Handle]:
        """Sends this rank's rows out, and sorts what came by expert.

        Args:
            sources: S tensors `x_BD` of one width.
            plan: The picks of all E experts.

        Returns:
            `rows_RD` and `offsets_e1` of the e experts here, and the handle. Where every expert
            here computes every row: `rows_ND` and None.

        Raises:
            ValueError: Inputs that are no tensors, experts whose output is no tensor of a known
                width, or picks of another number of experts.
        """
        self._count(plan)
        handle = self._begin(sources, plan)()
        arrived = handle.arrived
        return arrived.x_RD, arrived.offsets_E1, handle

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
        return self._begin_combine(y, handle)()

    def run(self, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tensor:
        """Does `dispatch`, the experts and `combine`, computing while rows are under way.

        Where there is enough to compute, this rank's experts run on one half of its own rows while
        rows travel, and on the other half while outputs do:

            sizes   rows ───────▶                      outputs ────▶
                    half of own rows   others' rows    half of own rows   mix

        and backwards the same. Then own rows are not rounded as those on the wire are.

        Args:
            sources: S tensors `x_BD` of one width.
            plan: The picks of all E experts.
            compute: Runs the experts on what `dispatch` returns.

        Returns:
            `out_BGO` in the dtype of the rows.

        Raises:
            ValueError: See `dispatch` and `combine`.
        """
        if not self._overlaps(plan):
            rows, offsets_E1, handle = self.dispatch(sources, plan)
            return self.combine(compute(rows, offsets_E1), handle)
        self._count(plan)
        away, own = split_plan(plan, self.placement, self.wire.rank)
        arrive = self._begin(sources, away)
        halves = own_halves(sources, own, compute)
        first_BGO = next(halves)
        handle = arrive()
        arrived = handle.arrived
        y = compute(arrived.x_RD, arrived.offsets_E1)
        finish = self._begin_combine(y, handle)
        return torch.cat([first_BGO, *halves]) + finish()

    def _count(self, plan: DispatchPlan) -> None:
        if self.loads is not None:
            self.loads.count(plan)

    def _overlaps(self, plan: DispatchPlan) -> bool:
        """Each rank is free to: what it sends, and when, is the same but for its own rows."""
        if self.wire.world_size == 1 or not self.num_local_experts or not torch.is_grad_enabled():
            return False
        rows = plan.experts_BGK.shape[0]
        return rows * plan.bound >= self.overlap_rows * self.num_experts

    def _begin(self, sources: Sequence[Tree], plan: DispatchPlan) -> Callable[[], Handle]:
        """Exchanges sizes and begins to send the rows; what is returned waits for those to come."""
        rows, costs = self._check(sources, plan)
        weights_BGK = plan.weights_BGK.to(accumulate_dtype(rows.dtype))
        read = sorted(set(plan.expert_source))
        out = ops.outbound_plan(
            plan.experts_BGK,
            self._homes(plan.expert_source, plan.experts_BGK.device),
            self.wire.world_size,
            len(read),
        )
        ours, theirs = self._links(out.sizes_W4, costs)
        crossing = Crossing(
            wire=self.wire,
            out=out,
            ours=ours,
            theirs=theirs,
            rows=rows,
            gates=costs.picks,
            num_experts=self.num_local_experts,
        )
        arrive = begin_rows(crossing, weights_BGK, [sources[s] for s in read])
        return lambda: Handle(crossing, arrive(), weights_BGK, costs.output_dim)

    def _begin_combine(self, y: Tree, handle: Handle) -> Callable[[], Tensor]:
        """Begins to send the outputs back; what is returned waits for what comes, and mixes."""
        (crossing, arrived, weights_BGK, output_dim), rows = handle, handle.crossing.rows
        expected = [arrived.routes.rows_P.shape[0], output_dim]
        if not isinstance(y, Tensor) or list(y.shape) != expected:
            got = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise ValueError(f"experts: expected outputs of shape {expected}, got {got}")
        ours, theirs, slots_NGK = crossing.ours, crossing.theirs, arrived.routes.slots_BGK
        back_ZO = ops.pack_returns(
            y.to(rows.dtype),
            arrived.weights_NGK,
            ops.return_plan(arrived.routes, theirs.table(y.device)),
            slots_NGK,
            sum(theirs.back),
            rows.wire,
        )
        arrive = self.wire.begin_exchange(back_ZO, theirs.back, ours.back)
        links_WL = ours.table(y.device)
        return lambda: ops.mix_returns(arrive(), weights_BGK, crossing.out, links_WL, rows.dtype)

    def _homes(self, expert_source: tuple[int, ...], device: torch.device) -> Tensor:
        """`homes_E3`, for each expert its rank, its number there, and the source it reads."""
        columns = (
            self.placement.ranks,
            self.placement.places,
            source_places(expert_source).tolist(),
        )
        return torch.tensor(columns, dtype=torch.int32).t().contiguous().to(device)

    def _check(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[ops.RowsFormat, WayCosts]:
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
        G, K = plan.experts_BGK.shape[1:]
        most = max(map(len, self.placement.experts))
        if G * K * most > CODES:
            raise ValueError(
                f"experts_BGK: expected {G} gates × {K} picks × {most} experts of a rank to fit in "
                "int32 codes; spread the experts over more ranks"
            )
        width, dtype = read[0].shape[1], read[0].dtype
        wire = self.wire_dtype or dtype
        # A wider wire would carry the same numbers in more bytes.
        rows = ops.RowsFormat(width, dtype, wire if wire.itemsize < dtype.itemsize else dtype)
        return rows, WayCosts(
            way=self.way_back,
            output_dim=plan.output_dim,
            number_bytes=rows.wire.itemsize,
            weight_bytes=accumulate_dtype(dtype).itemsize,
            by_batch=rows.wire == dtype or torch.is_grad_enabled(),
            picks=(G, K),
            bound=plan.bound,
        )

    def _links(self, sizes_W4: Tensor, costs: WayCosts) -> tuple[Links, Links]:
        """Exchanges the sizes: the links of this rank, and those of the ranks it computes for."""
        ours = [Sizes(*row) for row in sizes_W4.tolist()]
        theirs = [Sizes(*row) for row in self.wire.exchange_sizes(sizes_W4)]
        held = [len(own) for own in self.placement.experts]
        here = self.num_local_experts
        return (
            Links(ours, [costs.sums_go_back(s, e) for s, e in zip(ours, held, strict=True)]),
            Links(theirs, [costs.sums_go_back(size, here) for size in theirs]),
        )


def _kind(x: Tree) -> tuple[int, torch.dtype] | None:
    """What the sources must agree in; None: cannot travel."""
    rows = isinstance(x, Tensor) and x.dim() == 2 and x.dtype in FLOAT_DTYPES
    return (x.shape[1], x.dtype) if rows else None


def _describe(x: Tree) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"

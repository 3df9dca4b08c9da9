"""`AllToAllDispatcher`: experts spread over ranks, by `torch.distributed`.

Plans, packing and mixing are operators of `mmoe.ops`; `mmoe.ops.exchange_reference` says
in plain PyTorch what each of them does. Which all-to-all a call takes: `_road`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mmoe.mixture import Compute, DispatchPlan, Tree
from mmoe.ops import FLOAT_DTYPES
from mmoe.parallel.adaptive.adaptive_mode import AdaptiveMode
from mmoe.parallel.experts.async_exchange import at_once
from mmoe.parallel.experts.balance import ExpertLoads
from mmoe.parallel.experts.exchange import Exchange, Handle, Piece, Terms, agree
from mmoe.parallel.experts.links import WayBack, check_way
from mmoe.parallel.experts.mode import ROWS_TRAVEL, Mode
from mmoe.parallel.experts.pipeline import in_chunks, near_halves, own_halves, split_picks
from mmoe.parallel.experts.placement import ExpertPlacement, slice_picks
from mmoe.parallel.experts.shadow import Shadowing
from mmoe.parallel.experts.two_levels import HostsHandle, TwoLevels
from mmoe.parallel.experts.wire import Wire, agree_width
from mmoe.parallel.hosts import Hosts
from mmoe.parallel.object_collectives import from_all

# Below it, small products cost more than what they hide.
_OVERLAP_ROWS = 1024


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
            ranks alike. `auto`, or an `AdaptiveMode`: it is chosen while training goes on.
        hosts: How the ranks lie on hosts; default: as the launcher says. It is asked on the first
            call that needs it, so until then all bytes count as sent inside one host.

    Attributes:
        loads: Counts the rows of each expert in training (`count_loads`); None: nobody asked.

    Raises:
        ValueError: No process group, a placement for another number of ranks, or a setting that
            there is not.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture, TopKGate
        >>> from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, ensure_process_group
        >>> ensure_process_group()
        >>> placement = ExpertPlacement.even(num_experts=4, num_ranks=1)
        >>> layer = MultiGateMixture(
        ...     8,
        ...     num_gates=2,
        ...     experts=MLPExperts(4, 8, [3]).part(placement.on(0)),
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
        mode: Mode | AdaptiveMode | Literal["auto"] = ROWS_TRAVEL,
        hosts: Hosts | None = None,
    ) -> None:
        self.wire, self.replicas = Wire(group), replicas
        if wire_dtype is not None and wire_dtype not in FLOAT_DTYPES:
            known = ", ".join(map(str, FLOAT_DTYPES))
            raise ValueError(
                f"wire_dtype: expected a floating point type of {known}, got {wire_dtype}"
            )
        check_way(way_back)
        self.wire_dtype, self.overlap_rows = wire_dtype, overlap_rows
        self.way_back: WayBack = way_back
        self.mode = mode
        self.loads: ExpertLoads | None = None
        self._hosts: Hosts | None = None
        self._shadowing = Shadowing(self.wire)
        self.placement = placement
        # Else on first use: all ranks have to ask each other, and not all calls need to know
        if hosts is not None:
            self.hosts = hosts

    @property
    def mode(self) -> Mode:
        """Mode by which rows and weights travel; may be set, on all ranks alike, `auto` too."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode | AdaptiveMode | Literal["auto"]) -> None:
        if isinstance(mode, Mode):
            self.adaptive: AdaptiveMode | None = None
            self._mode = mode
            return
        if mode != "auto" and not isinstance(mode, AdaptiveMode):
            raise ValueError(f"mode: expected a Mode, an AdaptiveMode or 'auto', got {mode!r}")
        self.adaptive = AdaptiveMode() if mode == "auto" else mode
        self._mode = self.adaptive.mode

    @property
    def mode_used(self) -> Mode:
        """Mode in use: `mode` without what these hosts and experts cannot take."""
        mode = self._mode
        return replace(
            mode,
            hierarchical=mode.hierarchical and self.hosts.are_levels,
            chunks=1 if self._asks_whole else mode.chunks,
            shadowed=() if self._shadowing.warned else mode.shadowed,
        )

    @property
    def placement(self) -> ExpertPlacement:
        """Rank of each expert; may be set where the experts have moved, on all ranks alike."""
        return self._placement

    @placement.setter
    def placement(self, placement: ExpertPlacement) -> None:
        if placement.num_ranks != self.wire.world_size:
            raise ValueError(
                f"placement: expected one for {self.wire.world_size} rank(s), as the group has, "
                f"got one for {placement.num_ranks}"
            )
        self._placement = placement
        # Other experts may be here from now on: the ranks agree anew
        self._asks_whole: bool | None = None
        self._straight = Exchange(wire=self.wire, placement=placement)
        self._over_hosts: TwoLevels | None = None
        self._shadowing.place(placement)

    @property
    def hosts(self) -> Hosts:
        """Hosts of the ranks; asked for on first use, which all ranks must reach."""
        if self._hosts is None:
            self.hosts = Hosts.of_group(self.wire.group)
        assert self._hosts is not None, "just set"
        return self._hosts

    @hosts.setter
    def hosts(self, hosts: Hosts) -> None:
        ranks = self.wire.world_size
        if hosts.num_ranks != ranks:
            raise ValueError(
                f"hosts: expected those of {ranks} rank(s), as the group has, got those of "
                f"{hosts.num_ranks}"
            )
        self._hosts, self._over_hosts = hosts, None
        self.wire.hosts = [hosts.of(rank) for rank in range(ranks)]
        self.wire.down = hosts.down

    def __deepcopy__(self, memo: dict[int, Any]) -> "AllToAllDispatcher":
        """Copies of a layer share it: it holds no state, and a process group cannot be copied."""
        return self

    @property
    def num_experts(self) -> int:
        """Number of experts on all ranks, E."""
        return self.placement.num_experts // self.placement.slices

    @property
    def num_local_experts(self) -> int:
        """Number of experts, or slices of some, on this rank, e."""
        return len(self.placement.on(self.wire.rank))

    def agree_width(self, width: int | str | None) -> int:
        """Returns how wide the rows are that experts of all ranks return; see `agree_width`."""
        return agree_width(self.wire, width)

    def dispatch(
        self, sources: Sequence[Tree], plan: DispatchPlan
    ) -> tuple[Tensor, Tensor | None, Handle | HostsHandle]:
        """Sends this rank's rows out, and sorts what came by expert.

        Chunks do not apply here: what comes is asked for as a whole. So they do not where some
        rank's experts give other results for other batches (`uses_batch`).

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
        plan = self._picks(plan)
        piece, terms = self._agree(sources, plan)
        # Told before rows go: ranks that take theirs in chunks would send otherwise
        self._takes_whole(True)
        if self.mode.shadowed:
            self._shadowing.warn_of_rows()
        road = self._road()
        (leaving,) = road.prepare([piece], terms)
        handle = at_once(road.outward(leaving))
        return handle.arrived.x_RD, handle.arrived.offsets_E1, handle

    def combine(self, y: Tree, handle: Handle | HostsHandle) -> Tensor:
        """Sends the outputs back, and mixes what came for each gate.

        Args:
            y: `y_RO`, row for row.
            handle: From `dispatch`.

        Returns:
            `out_BGO` in the dtype of the rows.

        Raises:
            ValueError: Outputs that are no `[R, O]` tensor.
        """
        if isinstance(handle, HostsHandle):
            assert self._over_hosts is not None, "made where the rows were sent"
            return at_once(self._over_hosts.homeward(y, handle))
        return at_once(self._straight.homeward(y, handle))

    def run(self, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tensor:
        """Does `dispatch`, the experts and `combine`, computing while rows are under way.

        With `mode.chunks` the batch is cut into pieces, and the experts compute one while the rows
        of another travel; one exchange of sizes serves all. Where there is enough to compute, this
        rank's experts also run on one half of its own rows while the first rows travel, and on the
        other half while the last outputs do. In one piece, and in two:

            sizes   rows ───────▶                      outputs ────▶
                    half of own rows   others' rows    half of own rows   mix

            sizes   rows 0 ─────▶      outputs 0 ─────▶
                    rows 1 ───────────────────▶        outputs 1 ──▶
                    half of own rows   others' 0   others' 1   half of own rows   mix

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
        plan = self._picks(plan)
        self._agree(sources, plan)  # before anything is asked of the other ranks
        if self.adaptive is None or self._takes_whole(False):
            return self._run(sources, plan, compute)
        self._mode, clock = self.adaptive.next(self, sources, plan, compute)
        if clock is None:
            return self._run(sources, plan, compute)
        return clock.time(self._run, sources, plan, compute)

    def _run(self, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tensor:
        if self.mode.shadowed:
            if self._takes_whole(False):
                self._shadowing.warn_of_rows()
                return self._rows_travel(sources, plan, compute)
            return self._shadowing.run(self.mode, sources, plan, compute, self._rows_travel)
        return self._rows_travel(sources, plan, compute)

    def _rows_travel(self, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute) -> Tensor:
        """Runs all picks where their experts are."""
        piece, terms = self._agree(sources, plan)
        whole, road = self._takes_whole(False), self._road()
        chunks = 1 if whole else self.mode.chunks
        if isinstance(road, TwoLevels):
            if whole or road.inside is None:
                return in_chunks(road, piece, terms, chunks, compute)
            across = road.across
            away, near = split_picks(plan, across.placement.on(across.wire.rank))
            halves = near_halves(road.inside, piece._replace(plan=near), terms, compute)
        elif self._overlaps(plan):
            away, own = split_picks(plan, self.placement.on(self.wire.rank))
            halves = own_halves(sources, own, compute)
        else:
            return in_chunks(road, piece, terms, chunks, compute)
        outs: list[Tensor] = []
        # Lazy: each half is computed when `staggered` has nothing else to do
        meanwhile = map(outs.append, halves)
        out_BGO = in_chunks(road, piece._replace(plan=away), terms, chunks, compute, meanwhile)
        return torch.cat(outs) + out_BGO

    def _road(self) -> Exchange | TwoLevels:
        """The way that rows take in this mode: of one level, where two would be the same."""
        if not (self.mode.hierarchical and self.hosts.are_levels):
            return self._straight
        # Made on first use: its groups are, and that takes all ranks together
        if self._over_hosts is None:
            self._over_hosts = TwoLevels(self.placement, self.hosts, self.wire.traffic)
        return self._over_hosts

    def _takes_whole(self, here: bool) -> bool:
        """Whether some rank's experts, `here` or elsewhere, must get all that comes at once."""
        # A mixture calls `run` where the experts of its rank take their rows in pieces, but those
        # of another rank may be of another kind, or it has none. In a plain mode both calls
        # exchange the same; before the first one in another mode the ranks agree, once for all
        if self.mode == ROWS_TRAVEL and self.adaptive is None:
            return here
        if self._asks_whole is None:
            self._asks_whole = any(from_all(here, self.wire.group))
        return self._asks_whole

    def _picks(self, plan: DispatchPlan) -> DispatchPlan:
        """The picks of what ranks hold, experts or slices; they are counted."""
        plan = slice_picks(plan, self.placement.slices)
        if self.loads is not None:
            self.loads.count(plan)
        return plan

    def _overlaps(self, plan: DispatchPlan) -> bool:
        """Returns whether to overlap; each rank may choose, since what it sends stays the same."""
        if self.wire.world_size == 1 or not self.num_local_experts or not torch.is_grad_enabled():
            return False
        rows = plan.experts_BGK.shape[0]
        # Every pick counts as another expert's: by shapes alone, so that nothing waits for a GPU
        return rows * plan.bound >= self.overlap_rows * plan.num_experts

    def _agree(self, sources: Sequence[Tree], plan: DispatchPlan) -> tuple[Piece, Terms]:
        """Fails on all ranks alike, before anything is sent: one alone would leave them waiting."""
        return agree(
            sources,
            plan,
            placement=self.placement,
            wire_dtype=self.wire_dtype,
            way_back=self.way_back,
            host_size=self.hosts.size if self.mode.hierarchical else 1,
        )

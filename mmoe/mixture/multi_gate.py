"""`MultiGateMixture`: several gates over one pool of experts.

Letters in tensor names: B samples, G gates, E experts, K picks of a gate, D input width, O output
width, S input sources, R routed pairs (distinct sample and expert).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, cast

from torch import Tensor, nn

from mmoe.mixture.asking import RowAsks, decide, wanted
from mmoe.mixture.checks import (
    as_pool,
    check_capacity,
    check_dispatcher,
    check_gate,
    check_inputs,
    check_source,
    check_visibility,
)
from mmoe.mixture.execution import Execution, make_policy
from mmoe.mixture.experts.mlp_experts import Record
from mmoe.mixture.experts.pool import GatheringPool, Pool, RequestPool, still_gathers
from mmoe.mixture.experts.pool_compute import PoolCompute, recorded
from mmoe.mixture.gates import GateOutput, SoftmaxGate
from mmoe.mixture.gates.contract import visible_experts, without_first
from mmoe.mixture.output import MixtureOutput, Unmixed
from mmoe.mixture.pytrees import (
    Tree,
    join_rows,
    mix_dense,
    split_rows,
)
from mmoe.mixture.requests.experts import mix_shared
from mmoe.mixture.requests.rows import (
    RequestRows,
    first_leaf,
    read_by_experts,
    read_by_gates,
)
from mmoe.mixture.routing.capacity import Capacity, drop_over_capacity
from mmoe.mixture.routing.dispatcher import (
    Dispatcher,
    DispatchPlan,
    LocalDispatcher,
    OverlappingDispatcher,
    source_places,
)
from mmoe.mixture.routing.routes import padded_routes, plan_routes
from mmoe.mixture.statistics import dead_share, measure
from mmoe.mixture.traits import DispatcherTraits, GateTraits, SharedWork, traits_of
from mmoe.mixture.width import known_width
from mmoe.ops import RoutePlan


class MultiGateMixture(nn.Module):
    """G gates mix one pool of E experts: `out[b, g] = Σ_e w[b, g, e] · expert_e(x[b])`.

    The forward pass:

    1. the gate turns what each gate reads into weights for all experts, or for K picks;
    2. while training, a capacity drops picks, if there is one (default: none);
    3. dense: every expert runs on all rows, and one pass over their outputs serves all gates;
       grouped: the dispatcher gathers each distinct (sample, expert) pair once, every expert runs
       on its own rows, and the dispatcher combines;
       padded: as grouped, but every expert computes as many rows as the capacity, zeros among them.

    All give the same numbers where every expert is finite on every row. Dense execution computes
    all of them and weighs by 0 what nobody picked: a NaN of such an expert reaches the output
    (0 · NaN), which it does not in grouped execution. Padded, empty places are rows of zeros, which
    experts that divide by a norm must stand.

    The gate's arithmetic is in fp32 under autocast too; experts follow autocast. In evaluation mode
    nothing is dropped, and a row's output does not depend on the other rows of a batch of the same
    height (nor on the height or the number of threads, as far as the experts are concerned, with
    `MLPExperts` on the CPU; see `ExpertPool` for the tolerance of others).

    Auxiliary losses come back in a dict, whose gradients re-entrant activation checkpointing loses:
    return them from the checkpointed function as tensors, or use `use_reentrant=False`.

    Args:
        input_dim: D, width of what the experts read; None: inputs may have any structure (tensors,
            tuples, dicts), and the gate must be given.
        num_gates: G.
        experts: A pool (`MLPExperts`, `ExpertPool`, or a module with their methods), or modules
            that map `[rows, D]` to `[rows, O]`.
        gate: Any gate module (see `mmoe.mixture.gates`); default: a linear `SoftmaxGate`.
        visibility: Which gate may see which expert, bool `[G, E]`; default: all.
        expert_source: For each expert, which of S input sources it reads; default: source 0.
        gate_source: The same for each gate.
        execution: `dense`, `grouped`, `padded` (with a capacity; evaluation is then grouped), or
            `auto`: the cheaper one of the first two, call by call (`choose_execution`).
        dispatcher: Moves rows to experts; default: they are all here. Another one always gets
            grouped execution; then `experts` are this rank's (`pool.part([…])`), and the
            dispatcher's `num_experts`, or `visibility`, says how many there are in all.
        capacity: How many rows an expert may compute in a training step; default: what the gate's
            attribute `capacity` says, else any number.

    Raises:
        ValueError: A setting or a shape that does not fit, with its name.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> layer = MultiGateMixture(16, num_gates=2, experts=mlp_experts(8, 16, [32, 8]))
        >>> layer(torch.zeros(4, 16)).out_BGO.shape
        torch.Size([4, 2, 8])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6; the visibility matrix adds CGC and PLE (Tang et
        al., RecSys 2020).
    """

    visibility_GE: Tensor
    visible_GV: Tensor
    source_E: Tensor

    def __init__(
        self,
        input_dim: int | None,
        num_gates: int,
        experts: Pool | Iterable[nn.Module],
        *,
        gate: nn.Module | None = None,
        visibility: Tensor | Sequence[Sequence[bool]] | None = None,
        expert_source: Sequence[int] | None = None,
        gate_source: Sequence[int] | None = None,
        execution: Execution = "auto",
        dispatcher: Dispatcher | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        super().__init__()
        pool = as_pool(experts, input_dim)
        self.experts = cast(nn.Module, pool)
        placed = None if dispatcher is None else traits_of(dispatcher, DispatcherTraits)
        known = check_dispatcher(placed or DispatcherTraits(), pool)
        visibility_GE = check_visibility(visibility, num_gates, known)
        num_experts = visibility_GE.shape[1]
        if num_experts != known and (placed is None or placed.num_experts is not None):
            raise ValueError(
                f"visibility: expected {known} columns, one per expert, got {num_experts}"
            )
        self.input_dim, self.num_gates, self.num_experts = input_dim, num_gates, num_experts
        self.output_dim = pool.output_dim
        self.expert_source = check_source("expert_source", expert_source, num_experts, "expert")
        self.gate_source = check_source("gate_source", gate_source, num_gates, "gate")
        self.num_sources = max(*self.expert_source, *self.gate_source) + 1
        if gate is None:
            if input_dim is None:
                raise ValueError("gate: expected one where input_dim is None, got None")
            gate = SoftmaxGate(input_dim, num_gates, num_experts)
        check_gate(gate)
        self.gate = gate
        # Settings, not state: they come back with the constructor's arguments.
        self.register_buffer("visibility_GE", visibility_GE, persistent=False)
        self.register_buffer("visible_GV", visible_experts(visibility_GE), persistent=False)
        self.register_buffer("source_E", source_places(self.expert_source), persistent=False)
        self.dispatcher = LocalDispatcher() if dispatcher is None else dispatcher
        self.width_agreed = placed is None or placed.agree_width is None
        self._traits = picks = traits_of(gate, GateTraits)
        capacity = picks.capacity if capacity is None else capacity
        self.capacity: Capacity | None = check_capacity(capacity)
        self.policy = make_policy(
            execution,
            pool,
            picks,
            visibility_GE.tolist(),
            input_dim=input_dim,
            dispatcher=placed,
            limited=self.capacity is not None,
        )

    @property
    def execution(self) -> Execution:
        """How calls are run, as the caller asked: auto, dense, grouped or padded."""
        return self.policy.execution

    def forward(
        self,
        x: Tensor | Sequence[Tree] | RequestRows,
        return_gates: bool = False,
        return_statistics: bool = False,
        asks: RowAsks | None = None,
        mix: bool = True,
    ) -> MixtureOutput:
        """Mixes the experts for every gate.

        Args:
            x: `x_BD` where there is one source, else `x_BSD` or S tensors `x_BD`. Where `input_dim`
                is None: the one source itself, or S of them, each a tensor, tuple or dict. Of one
                source also rows of requests, of which gates and experts that know requests compute
                once what a request's rows share.
            return_gates: Also return the gates' weights, as `gate_weights_BGE`.
            return_statistics: Also return `statistics`.
            asks: Which gates each row asks, and whose of its domain; None: all of them.
            mix: False: leave the mixes to the caller, as `unmixed`, where execution is dense and
                experts return rows.

        Returns:
            `out_BGO` and what goes with it.
        """
        sources = self._sources(x)

        # The gate weighs all experts, or picks some
        inputs, sees_GE = self._read_by_gates(sources), self.visibility_GE
        decision = decide(
            self.gate,
            inputs,
            sees_GE,
            asks,
            traits=self._traits,
            sees_all=self.policy.sees_all,
        )

        # In training a capacity drops what an expert has no room for
        kept, dropped, limit, most = decision, None, None, self.policy.most_pairs
        # In training alone: a score must not depend on the rows beside it
        if self.capacity is not None and self.training:
            experts_BGK, weights_BGK = decision.as_picks(self.visible_GV)
            room = drop_over_capacity(
                self.capacity, experts_BGK, weights_BGK, self.num_experts, self.policy.k, most
            )
            kept = decision._replace(weights=weights_BGK, experts=room.experts_BGK)
            dropped, limit = room.dropped, room.limit

        # Experts compute all rows, those picked, or as many as the capacity; the gates' mixes of it
        record: Record | None = None
        unmixed: Unmixed | None = None
        if return_statistics and self.policy.pool.has_dead_units:
            record = []  # the pool adds what its units gave
        sources = [read_by_experts(self.experts, source) for source in sources]
        execution, routes = self._choose(sources, kept, limit)
        if execution == "dense":
            y, dead_share_E = self._dense(sources, kept, record)
            weights_BGE = kept.as_weights(self.num_experts)
            unmixed = None if mix else Unmixed.of(y, weights_BGE)
            # One pass that reads each output once for all gates
            out_BGO = mix_dense(y, weights_BGE) if unmixed is None else weights_BGE.new_empty(0)
        else:
            left, shared_BGO = kept, None
            if execution == "grouped" and self.policy.local:
                left, shared_BGO = mix_shared(self.experts, sources[0], kept)
            sources = [read_by_experts(None, source) for source in sources]
            experts_BGK, weights_BGK = left.as_picks(self.visible_GV)
            if routes is None and self.policy.local:
                routes = plan_routes(experts_BGK, self.num_experts, limit, most)
            width = 0
            if execution == "padded":
                assert self.capacity is not None and limit is not None and routes is not None
                width = self.capacity.width(limit, routes.offsets_E1)
                routes = padded_routes(routes, experts_BGK, width)
            plan = DispatchPlan(
                experts_BGK=experts_BGK,
                weights_BGK=weights_BGK,
                num_experts=self.num_experts,
                expert_source=self.expert_source,
                source_E=self.source_E,
                routes=routes,
                output_dim=known_width(self, sources),
                most_pairs=most,
            )
            if execution == "padded":
                out_BGO, dead_share_E = self._padded(sources, plan, width, record)
            else:
                out_BGO, dead_share_E = self._grouped(sources, plan, record)
            out_BGO = out_BGO if shared_BGO is None else out_BGO + shared_BGO

        return MixtureOutput(
            cast(Tensor, out_BGO),
            decision.auxiliary_losses or {},
            decision.as_weights(self.num_experts) if return_gates else None,
            dropped,
            measure(decision, kept, self.visibility_GE, dead_share_E)
            if return_statistics
            else None,
            wanted(self.gate, inputs, sees_GE, asks)
            if return_gates and self.policy.most_pairs is not None
            else None,
            unmixed,
        )

    def _sources(self, x: Tensor | Sequence[Tree] | RequestRows) -> tuple[Tree, ...]:
        """The S inputs, checked."""
        if self.input_dim is None and self.num_sources == 1:
            sources: tuple[Tree, ...] = (x,)
        elif isinstance(x, Tensor):
            sources = x.unbind(1) if x.dim() == 3 else (x,)
        else:
            sources = tuple(x) if isinstance(x, Sequence) else (x,)
        check_inputs(
            sources,
            self.num_sources,
            None if self.input_dim is None else (self.input_dim, self.expert_source),
            self.visibility_GE.device,
        )
        return sources

    def _read_by_gates(self, sources: Sequence[Tree]) -> list[Tree]:
        return [read_by_gates(self.gate, sources[s]) for s in self.gate_source]

    def _choose(
        self, sources: Sequence[Tree], kept: GateOutput, limit: int | None
    ) -> tuple[Literal["dense", "grouped", "padded"], RoutePlan | None]:
        """How this call runs, and the routes where the choice counted distinct pairs."""
        routes, shared = None, SharedWork()
        if isinstance(sources[0], RequestRows):
            shared = cast(RequestPool, self.experts).shared_work(sources[0])
        counted = without_first(kept, shared.experts).experts
        if counted is not None and self.policy.counts_pairs(counted, self.training):
            routes = plan_routes(counted, self.num_experts, limit, self.policy.most_pairs)
        read = first_leaf(sources[self.expert_source[0]])
        execution = self.policy.choose(
            kept.experts,
            training=self.training,
            pairs=None if routes is None else routes.rows_P.shape[0],
            number_bytes=read.dtype.itemsize,
            device_type=read.device.type,
            shared=shared,
        )
        return execution, routes

    def _dense(
        self, sources: Sequence[Tree], kept: GateOutput, record: Record | None
    ) -> tuple[Sequence[Tree], Tensor | None]:
        """Every expert on all rows."""
        read = self.expert_source
        read = read[:1] if len(set(read)) == 1 else read  # one input serves all experts
        if isinstance(sources[0], RequestRows):
            y = cast(RequestPool, self.experts).of_requests(sources[0], **recorded(record))
        else:
            y = self._pool.dense([sources[s] for s in read], **recorded(record))
        if record is None:
            return y, None
        return y, dead_share(record, kept.picked(self.visibility_GE).any(1).unbind(1))

    def _grouped(
        self, sources: Sequence[Tree], plan: DispatchPlan, record: Record | None
    ) -> tuple[Tree, Tensor | None]:
        """Each expert on the rows that some gate picked it for, wherever it is."""
        if not isinstance(self.dispatcher, LocalDispatcher):
            record = None  # others' rows are nobody's statistics
        compute = PoolCompute(self._pool, record)
        if self._reads_in_place:
            here, pool = cast(LocalDispatcher, self.dispatcher), cast(GatheringPool, self.experts)
            x, routes, handle = here.read(sources, plan)
            y = pool.gathered(cast(Tensor, x), routes, **recorded(record))
            out_BGO = here.combine(y, handle)
            return out_BGO, None if record is None else dead_share(record, routes.offsets_E1)
        if self.policy.overlaps:
            return cast(OverlappingDispatcher, self.dispatcher).run(sources, plan, compute), None
        rows, offsets_E1, handle = self.dispatcher.dispatch(sources, plan)
        out_BGO = self.dispatcher.combine(compute(rows, offsets_E1), handle)
        if record is None:
            return out_BGO, None
        assert offsets_E1 is not None, "the local dispatcher tells where each expert's rows are"
        return out_BGO, dead_share(record, offsets_E1)

    def _padded(
        self, sources: Sequence[Tree], plan: DispatchPlan, width: int, record: Record | None
    ) -> tuple[Tree, Tensor | None]:
        """Each expert on `width` rows, zeros where it has fewer: shapes that never change."""
        assert plan.routes is not None
        dispatcher = LocalDispatcher()
        rows, _, handle = dispatcher.dispatch(sources, plan)
        widths = [width] * self.num_experts
        y = self._pool.dense(split_rows(rows, widths), **recorded(record))
        out_BGO = dispatcher.combine(join_rows(y), handle)
        if record is None:
            return out_BGO, None
        # Units that are 0 for rows of padding are not dead
        masks = (plan.routes.rows_P >= 0).view(self.num_experts, width).unbind(0)
        return out_BGO, dead_share(record, masks)

    def extra_repr(self) -> str:
        """Returns the settings that `print` shows."""
        text = (
            f"gates={self.num_gates}, experts={self.num_experts}, sources={self.num_sources}, "
            f"execution={self.execution}"
        )
        return text if self.capacity is None else f"{text}, capacity={self.capacity}"

    @property
    def _reads_in_place(self) -> bool:
        """Whether experts read rows where they lie; others may have taken the parts' places."""
        return (
            self.policy.local
            and self.policy.pool.gathers
            and type(self.dispatcher) is LocalDispatcher
            and still_gathers(self.experts)
        )

    @property
    def _pool(self) -> Pool:
        return cast(Pool, self.experts)

"""`MultiGateMixture`: several gates over one pool of experts.

Letters in tensor names: B samples, G gates, E experts, K picks of a gate, D input width, O output
width, S input sources, R routed pairs (distinct sample and expert).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part
from mmoe.mixture.capacity import Capacity, drop_over_capacity
from mmoe.mixture.checks import (
    as_pool,
    check_capacity,
    check_dispatcher,
    check_gate,
    check_source,
    check_visibility,
    known_width,
)
from mmoe.mixture.dispatcher import (
    Dispatcher,
    DispatchPlan,
    LocalDispatcher,
    padded_routes,
    plan_routes,
    source_places,
)
from mmoe.mixture.execution import Execution, ExecutionPolicy, make_policy
from mmoe.mixture.experts.contract import Pool, PoolCompute, Record
from mmoe.mixture.gates import SoftmaxGate
from mmoe.mixture.gates.contract import GateOutput, decide, visible_experts, wanted, without_first
from mmoe.mixture.gates.learned import LearnedGate
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.pytrees import (
    Tree,
    cast_for_autocast,
    join_rows,
    leaves_of,
    mix_dense,
    split_rows,
)
from mmoe.mixture.statistics import MixtureStatistics, dead_share, measure
from mmoe.mixture.traits import DispatcherTraits, GateTraits, SharedWork, traits_of
from mmoe.ops import FLOAT_DTYPES, RoutePlan, dense_combine
from mmoe.ops._checks import for_autocast


class Unmixed(NamedTuple):
    """Parts of the gates' mixes, for callers that can do with less than all mixes at once.

    Attributes:
        y: `y_BO` of each expert.
        weights_BGE: Of each gate.
    """

    y: list[Tensor]
    weights_BGE: Tensor

    @classmethod
    def of(cls, y: Sequence[Tree], weights_BGE: Tensor) -> "Unmixed | None":
        """Leaves the mixes unmade; None where experts return something else than rows.

        Args:
            y: Of each expert.
            weights_BGE: Of each gate.

        Example:
            >>> import torch
            >>> Unmixed.of([(torch.ones(3, 8), torch.ones(3))], torch.ones(3, 4, 1))
        """
        # Trees, wider tensors and other types are mixed leaf by leaf (`mix_dense`)
        rows = [each for each in y if isinstance(each, Tensor) and each.dim() == 2]
        if len(rows) != len(y) or not {each.dtype for each in rows} <= set(FLOAT_DTYPES):
            return None
        return cls(rows, weights_BGE)

    def mixes(self) -> Tensor:
        """Makes `out_BGO`.

        Example:
            >>> import torch
            >>> Unmixed([torch.ones(3, 8)] * 2, torch.ones(3, 4, 2)).mixes().shape
            torch.Size([3, 4, 8])
        """
        return dense_combine(self.y, self.weights_BGE)


class MixtureOutput(NamedTuple):
    """Output of a mixture: mixes, losses and, on request, gates and statistics.

    Attributes:
        out_BGO: One mix of expert outputs per gate; where experts return tuples or dicts, the same
            structure of `[B, G, …]`. Empty where `unmixed` is there.
        auxiliary_losses: Scalars of the gate to add to the loss, by name.
        gate_weights_BGE: The weights the gates gave (before any drop), where they were asked for.
        dropped: Picks dropped by the capacity, one int64; None where nothing can be dropped.
        statistics: Where they were asked for.
        gates_wanted_BGE: What gates that decide together would have weighed alone, where the
            weights were asked for; None: each decided alone.
        unmixed: Where mixes were left to the caller, and there was nothing more to them.
    """

    out_BGO: Tensor
    auxiliary_losses: dict[str, Tensor]
    gate_weights_BGE: Tensor | None = None
    dropped: Tensor | None = None
    statistics: MixtureStatistics | None = None
    gates_wanted_BGE: Tensor | None = None
    unmixed: Unmixed | None = None


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
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> layer = MultiGateMixture(16, num_gates=2, experts=MLPExperts(8, 16, [32, 8]))
        >>> layer(torch.zeros(4, 16)).out_BGO.shape
        torch.Size([4, 2, 8])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), equation 6; the visibility matrix adds CGC and PLE (Tang et
        al., RecSys 2020).
    """

    experts: Pool
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
        self.experts = pool
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
        self._trained: tuple[nn.Module, GateTraits, ExecutionPolicy] | None = None  # see `bound`
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
            # On the host once: the policy looks at it in calls, where a GPU would be waited for
            visibility_GE.tolist(),
            input_dim=input_dim,
            dispatcher=placed,
            limited=self.capacity is not None,
        )

    def bound(self, budget: int | None) -> None:
        """Bounds how many experts one row computes, over all gates, whatever they were trained to.

        Args:
            budget: At most so many; None: as the gates were trained.

        Raises:
            ValueError: The gates do not take a budget, or this one has no room for all of them.

        Example:
            >>> import torch
            >>> from mmoe.mixture import MLPExperts, MultiGateMixture
            >>> layer = MultiGateMixture(16, num_gates=2, experts=MLPExperts(8, 16, [32])).eval()
            >>> layer.bound(3)
            >>> layer(torch.ones(1, 16), return_gates=True).gate_weights_BGE.gt(0).any(1).sum()
            tensor(3)
        """
        self._trained = self._trained or (self.gate, self._traits, self.policy)
        self.gate, self._traits, self.policy = self._trained
        if budget is None or budget >= self.num_experts:
            return
        if not isinstance(self.gate, LearnedGate):
            raise ValueError(
                f"gates of {type(self.gate).__name__}, which take no budget; use a gate such as "
                "softmax or top_k"
            )
        self.gate = self.gate.within(budget, self.visibility_GE)
        self._traits = traits_of(self.gate, GateTraits)
        self.policy = self.policy.with_gate(self._traits)

    @property
    def execution(self) -> Execution:
        """Execution that the caller asked for: auto, dense, grouped or padded."""
        return self.policy.execution

    def named_parts(self, names: Names) -> list[Part]:
        """Says what tensors begin with of a gate or pool that says nothing: gates, or experts."""
        first = {"gate": "gates", "experts": "experts"}
        return [
            Part(child, (child,), names, first.get(child)) for child, _ in self.named_children()
        ]

    def forward(
        self,
        x: Tensor | Inputs | Sequence[Tree | Inputs],
        return_gates: bool = False,
        return_statistics: bool = False,
        mix: bool = True,
    ) -> MixtureOutput:
        """Mixes the experts for every gate.

        Args:
            x: `x_BD` where there is one source, else `x_BSD` or S tensors `x_BD`. Where `input_dim`
                is None: the one source itself, or S of them, each a tensor, tuple or dict. Or
                `Inputs` in place of each, whose rows may ask some of the gates, have gates of
                their domain, and, of one source, share columns with others of their request: gates
                and experts that know requests compute once what these give.
            return_gates: Also return the gates' weights, as `gate_weights_BGE`.
            return_statistics: Also return `statistics`.
            mix: False: leave the mixes to the caller, as `unmixed`, where execution is dense and
                experts return rows.

        Returns:
            `out_BGO` and what goes with it.
        """
        sources, rows = self._sources(x)

        # The gate weighs all experts, or picks some
        inputs, sees_GE = [sources[s] for s in self.gate_source], self.visibility_GE
        if rows is not None and rows.shares:
            # One object for all gates, by which they see that they share a product
            inputs = [rows.for_gate(self.gate)] * self.num_gates
        decision = decide(self.gate, inputs, sees_GE, rows, self._traits, self.policy.sees_all)

        # In training alone a capacity drops picks: a score must not depend on the rows beside it
        kept, dropped, limit = decision, None, None
        if self.capacity is not None and self.training:
            kept, dropped, limit = self._within(self.capacity, decision)

        # Experts compute all rows, those picked, or as many as the capacity; their mixes for gates
        wanted_units = return_statistics and self.policy.pool.has_dead_units
        record: Record | None = [] if wanted_units else None
        parts, whole = (rows, ()) if rows is not None and rows.shares else (None, sources)
        read = [for_autocast(x) if isinstance(x, Tensor) else cast_for_autocast(x) for x in whole]
        execution, routes = self._choose(read, parts, kept, limit)
        if execution == "dense":
            out_BGO, unmixed, dead_E = self._dense(read, parts, kept, mix, record)
        else:
            out_BGO, dead_E = self._sparse(read, parts, kept, execution, routes, limit, record)
            unmixed = None

        together = self.policy.most_pairs is not None and return_gates
        return MixtureOutput(
            out_BGO=cast(Tensor, out_BGO),
            auxiliary_losses=decision.auxiliary_losses or {},
            gate_weights_BGE=decision.as_weights(self.num_experts) if return_gates else None,
            dropped=dropped,
            statistics=measure(decision, kept, sees_GE, dead_E) if return_statistics else None,
            gates_wanted_BGE=wanted(self.gate, inputs, sees_GE, rows) if together else None,
            unmixed=unmixed,
        )

    def _sources(
        self, x: Tensor | Inputs | Sequence[Tree | Inputs]
    ) -> tuple[tuple[Tree, ...], Inputs | None]:
        """Returns the S inputs, whole, and the rows' `Inputs` if any; refuses what it cannot read.

        That is by types, shapes and the number of sources. Of rows of requests nothing is whole.
        """
        if self.input_dim is None and self.num_sources == 1:
            sources: tuple[Tree, ...] = (x,)
        elif isinstance(x, Tensor):
            sources = x.unbind(1) if x.dim() == 3 else (x,)
        else:
            sources = tuple(x) if isinstance(x, Sequence) else (x,)
        if len(sources) != self.num_sources:
            raise ValueError(
                f"x: expected {self.num_sources} input source(s), got {len(sources)}; several go "
                "in as [rows, sources, width] or as a list of [rows, width]"
            )
        device, rows = self.visibility_GE.device, None
        # The first source speaks for the rows: which gates they ask, of which domain they are
        if isinstance(sources[0], Inputs):
            rows = sources[0]
            if rows.shares and self.num_sources == 1:
                _check_requests(rows, self.input_dim, device)
                return sources, rows
            sources = tuple(Inputs.of(source).whole for source in sources)
        for leaf in leaves_of("x", list(sources)) if self.input_dim is None else sources:
            if not isinstance(leaf, Tensor):
                got = "None" if leaf is None else f"a {type(leaf).__name__}"
                raise ValueError(f"x: expected a tensor, or one per source, got {got}")
            if leaf.device != device:
                raise ValueError(
                    f"x: expected a tensor on device {device} as the layer, got {leaf.device}; "
                    "move one with .to()"
                )
        if self.input_dim is None:
            return sources, rows
        height = 0
        for s, source in enumerate(sources):
            height = height if s else source.shape[0] if source.dim() else 0
            own = source.shape[-1] if source.dim() else 0
            width = self.input_dim if s in self.expert_source else own
            if source.dim() != 2 or source.shape != (height, width):
                expected = f"{height} (rows of source 0)" if s else "rows"
                which = f" of source {s}" if len(sources) > 1 else ""
                raise ValueError(
                    f"x: expected shape [{expected}, {width}]{which}, got {list(source.shape)}"
                )
            if not source.is_floating_point():
                raise ValueError(f"x: expected floating point numbers, got {source.dtype}")
        return sources, rows

    def _within(self, capacity: Capacity, decision: GateOutput) -> tuple[GateOutput, Tensor, int]:
        """Applies capacities; returns the routes, the share dropped and an expert's most rows."""
        # Dense weights too, as picks of all that is seen: what a capacity drops are picks
        experts_BGK, weights_BGK = decision.as_picks(self.visible_GV)
        k, most = self.policy.k, self.policy.most_pairs
        room = drop_over_capacity(capacity, experts_BGK, weights_BGK, self.num_experts, k, most)
        kept = decision._replace(weights=weights_BGK, experts=room.experts_BGK)
        return kept, room.dropped, room.limit

    def _choose(
        self, sources: Sequence[Tree], parts: Inputs | None, kept: GateOutput, limit: int | None
    ) -> tuple[Literal["dense", "grouped", "padded"], RoutePlan | None]:
        """Chooses this call's execution; returns the routes where the choice counted pairs."""
        routes = None
        shared = SharedWork() if parts is None else self.experts.shared_work(parts)
        # Experts of the request run once a request, dense or grouped: they decide nothing
        counted = without_first(kept, shared.experts).experts if shared.experts else kept.experts
        if counted is not None and self.policy.counts_pairs(counted, self.training):
            routes = plan_routes(counted, self.num_experts, limit, self.policy.most_pairs)
        read = sources[self.expert_source[0]] if parts is None else parts.x_BR
        read = read if isinstance(read, Tensor) else leaves_of("x", read)[0]
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
        self,
        sources: Sequence[Tree],
        parts: Inputs | None,
        kept: GateOutput,
        mix: bool,
        record: Record | None,
    ) -> tuple[Tree, Unmixed | None, Tensor | None]:
        """Runs every expert on all rows, and reads each output once for all gates."""
        read = self.expert_source
        read = read[:1] if len(set(read)) == 1 else read  # one input serves all experts
        recorded = {} if record is None else {"record": record}
        if parts is not None:
            y = self.experts.of_requests(parts, **recorded)
        else:
            y = self.experts.dense([sources[s] for s in read], **recorded)
        dead_E = None
        if record is not None:
            dead_E = dead_share(record, kept.picked(self.visibility_GE).any(1).unbind(1))
        weights_BGE = kept.weights if kept.experts is None else kept.as_weights(self.num_experts)
        unmixed = Unmixed.of(y, weights_BGE)
        if unmixed is None:
            return mix_dense(y, weights_BGE), None, dead_E
        if mix:
            return unmixed.mixes(), None, dead_E
        # Nothing is mixed here: the caller mixes a few rows at a time, in the cache
        return weights_BGE.new_empty(0), unmixed, dead_E

    def _sparse(
        self,
        sources: Sequence[Tree],
        parts: Inputs | None,
        kept: GateOutput,
        execution: Literal["grouped", "padded"],
        routes: RoutePlan | None,
        limit: int | None,
        record: Record | None,
    ) -> tuple[Tree, Tensor | None]:
        """Runs each expert on the rows that some gate picked it for."""
        shared_BGO, most = None, self.policy.most_pairs
        if parts is not None:
            if execution == "grouped" and self.policy.local:
                kept, shared_BGO = self._mix_shared(parts, kept)
            sources = [cast_for_autocast(parts.whole)]
        experts_BGK, weights_BGK = kept.as_picks(self.visible_GV)
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
            # At the first call ranks agree on it, where modules of somebody's may not say it
            output_dim=self.output_dim if self.width_agreed else known_width(self, sources),
            most_pairs=most,
        )
        if execution == "padded":
            return self._padded(sources, plan, width, record)
        out_BGO, dead_E = self._grouped(sources, plan, record)
        return out_BGO if shared_BGO is None else out_BGO + shared_BGO, dead_E

    def _mix_shared(self, rows: Inputs, kept: GateOutput) -> tuple[GateOutput, Tensor | None]:
        """Mixes the experts that run once a request, if any; returns the rest of the picks too."""
        count = self.experts.shared_work(rows).experts
        if not count or kept.experts is None:  # every expert is wanted: nothing is left to group
            return kept, None
        weights_BGE = kept.as_weights(self.num_experts)[:, :, :count].contiguous()
        return without_first(kept, count), mix_dense(self.experts.shared_outputs(rows), weights_BGE)

    def _grouped(
        self, sources: Sequence[Tree], plan: DispatchPlan, record: Record | None
    ) -> tuple[Tree, Tensor | None]:
        """The dispatcher takes rows to the experts, wherever they are, and mixes what they gave."""
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, LocalDispatcher):
            record = None  # others' rows are nobody's statistics
        # The pool itself reads the rows, which on a GPU saves the gathered copy; a subclass may do
        # more
        if self.policy.local and type(dispatcher) is LocalDispatcher:
            x, routes, handle = dispatcher.read(sources, plan)
            offsets_E1 = routes.offsets_E1
            y = self.experts.gathered(x, routes, **({} if record is None else {"record": record}))
        else:
            compute = PoolCompute(self.experts, record)
            if self.policy.overlaps:
                return cast(Any, dispatcher).run(sources, plan, compute), None
            rows, offsets_E1, handle = dispatcher.dispatch(sources, plan)
            y = compute(rows, offsets_E1)
        out_BGO = dispatcher.combine(y, handle)
        if record is None:
            return out_BGO, None
        assert offsets_E1 is not None, "the local dispatcher tells where each expert's rows are"
        return out_BGO, dead_share(record, offsets_E1)

    def _padded(
        self, sources: Sequence[Tree], plan: DispatchPlan, width: int, record: Record | None
    ) -> tuple[Tree, Tensor | None]:
        """Runs each expert on `width` rows, padded with zeros, so that shapes never change."""
        assert plan.routes is not None
        dispatcher = LocalDispatcher()
        rows, _, handle = dispatcher.dispatch(sources, plan)
        widths = [width] * self.num_experts
        recorded = {} if record is None else {"record": record}
        y = self.experts.dense(split_rows(rows, widths), **recorded)
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


def mixtures_in(network: nn.Module) -> Iterator[tuple[str, MultiGateMixture]]:
    """Yields all mixtures of a network, with their names."""
    for name, module in network.named_modules():
        if isinstance(module, MultiGateMixture):
            yield name, module


def _check_requests(rows: Inputs, input_dim: int | None, device: torch.device) -> None:
    if rows.shape[1] != input_dim:
        width = "any structure" if input_dim is None else f"{input_dim} columns"
        raise ValueError(
            f"x: expected rows of {width}, got rows of requests of {rows.shape[1]} columns"
        )
    if rows.x_BR.device != device:
        raise ValueError(
            f"x: expected rows on device {device} as the layer, got {rows.x_BR.device}; move the "
            "batch with .to()"
        )

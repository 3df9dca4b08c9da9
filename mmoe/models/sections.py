"""Builders from a `ModelConfig`'s sections to modules: levels, gates, experts, towers.

A model is a file here with a function that builds it (`omoe.py` is the shortest), and a class of
config with its line in `mmoe.config.model.MODELS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from mmoe.config import EXPERTS, GATES, MODELS, TOWERS, ExpertConfig, ModelConfig, ParallelConfig
from mmoe.config.training import stage_of
from mmoe.mixture import (
    Capacity,
    DSelectKGate,
    ExpertPool,
    FixedGate,
    GateTraits,
    MixedExperts,
    MultiGateMixture,
    Pool,
    Selection,
    StaticGate,
    traits_of,
)
from mmoe.mixture.checks import find_width
from mmoe.mixture.dispatcher import ONE_RANK, RankSums
from mmoe.mixture.execution import make_policy
from mmoe.mixture.experts.norm import share_statistics
from mmoe.mixture.experts.pool import are_alike
from mmoe.mixture.gates.joined import GateGroup, JoinedGates, modules_of
from mmoe.mixture.gates.select import Selector
from mmoe.mixture.inputs import RequestColumns
from mmoe.models.layout import Layout, choose_layout
from mmoe.models.network import Level, MixtureNetwork
from mmoe.parallel import AllReduceSums, AllToAllDispatcher, ExpertPlacement
from mmoe.tasks import TaskTowers


class Sources(TypedDict, total=False):
    """Keywords of `MultiGateMixture`: which gate sees which expert, and what both read."""

    visibility: Tensor | None
    expert_source: Sequence[int] | None  # None: the network's input
    gate_source: Sequence[int] | None


_NO_TASKS = ("shared", "all tasks")  # gates of these names have been there from the first


def build_network(
    model: ModelConfig,
    input_dim: int,
    task_names: Sequence[str],
    parallel: ParallelConfig | None = None,
    stage_columns: Sequence[Sequence[int] | None] = (),
    requests: RequestColumns | None = None,
) -> MixtureNetwork:
    """Builds the network that `model.kind` names; weights come from torch's random generator.

    Over several ranks that seed it alike they are those of one process: each rank builds the
    network with all gates and towers, and all experts or its part of them. Gates' losses, and
    batch norms, are then those of all ranks' rows; capacities, and the noise of gates and dropout,
    are each rank's own.

    Args:
        model: The `model` section of a config.
        input_dim: Width of x, dense features and embeddings together.
        task_names: The tasks, in the order of the logits' columns.
        parallel: The `parallel` section, where the ranks of the process group share each batch;
            None: this process is on its own, whatever ranks there are.
        stage_columns: For each of `model.stages`, the columns of x that there were; None: all.
        requests: Which columns of x are of requests; None: rows have none.

    Returns:
        `network(x_BD, return_gates=False)` → `NetworkOutput`.

    Raises:
        ValueError: No tasks, no input, or a setting that does not fit, with its name.

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.models import build_network
        >>> network = build_network(ModelConfig(kind="ple"), 20, ["click", "purchase"])
        >>> output = network(torch.zeros(4, 20), return_gates=True)
        >>> output.logits_BT.shape, [record.gate_names for record in output.gates]
        (torch.Size([4, 2]), [('click', 'purchase', 'shared'), ('click', 'purchase')])
    """
    if not task_names:
        raise ValueError("task_names: expected at least one task, got none")
    if input_dim < 1:
        raise ValueError(
            f"input_dim: expected 1 or more, got {input_dim}; a model needs at least one feature"
        )
    layout = choose_layout(model, parallel)
    layout = replace(layout, stage_columns=tuple(stage_columns), requests=requests)
    network: MixtureNetwork = MODELS.implementation(model)(model, input_dim, task_names, layout)
    if parallel is not None and parallel.shadowed:
        _shadow(network, parallel.shadowed)
    return network


def _shadow(network: MixtureNetwork, numbers: Sequence[int]) -> None:
    """Shadows experts by their numbers, from 1 on, level by level, where they are spread."""
    mixtures = [level.mixture for level in network.levels]
    count = sum(mixture.num_experts for mixture in mixtures)
    if unknown := [number for number in numbers if number > count]:
        raise ValueError(
            f"parallel.shadowed: there is no expert {unknown[0]}; the model has 1 to {count}, as "
            "`mmoe explain` numbers them"
        )
    first = 1
    for mixture in mixtures:
        mine = range(first, first + mixture.num_experts)
        first = mine.stop
        dispatcher = mixture.dispatcher
        if isinstance(dispatcher, AllToAllDispatcher):
            chosen = tuple(number - mine.start for number in numbers if number in mine)
            dispatcher.mode = replace(dispatcher.mode, shadowed=chosen)


@dataclass(frozen=True)
class _Grown:
    """Gates and experts of a level by the stage in which they came.

    Experts stand stage by stage, so that those that a stage knew are the first ones.

    Attributes:
        gate_names: Of the level's gates.
        expert_names: Of its experts, in that order.
        order: Number of each before they were put into it.
        gates: For each stage, and at last for what is new, the numbers of its gates.
        experts: How many experts each had come with.
        columns: Of x, those that each reads; None: all.
    """

    gate_names: tuple[str, ...]
    expert_names: tuple[str, ...]
    order: tuple[int, ...]
    gates: tuple[tuple[int, ...], ...]
    experts: tuple[int, ...]
    columns: tuple[Sequence[int] | None, ...]

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        layout: Layout,
        gate_names: Sequence[str],
        expert_names: Sequence[str],
        *,
        reads_x: bool,
    ) -> "_Grown":
        """Sorts the gates and experts of a level.

        Gates that have a task's name came with it, others were there from the first. Levels that
        read the network's input, `reads_x`, have columns that each stage knew.
        """
        numbers = [number for number, stage in enumerate(model.stages) if stage.experts]
        stages = [model.stages[number] for number in numbers]
        for name in (name for stage in stages for name in stage.experts):
            if name not in expert_names:
                raise ValueError(
                    f"model.stages: {name!r} is no expert of this model; `mmoe train` writes the "
                    "stages: remove them, or keep the model's experts"
                )
        came = [stage_of(name, [stage.experts for stage in stages]) for name in expert_names]
        order = sorted(range(len(expert_names)), key=came.__getitem__)
        tasks = [[*stage.tasks, *_NO_TASKS] for stage in stages]
        of_gate = [stage_of(name, tasks) for name in gate_names]
        every = range(len(stages) + 1)
        columns = [layout.stage_columns[n] if layout.stage_columns else None for n in numbers]
        return cls(
            tuple(gate_names),
            tuple(expert_names[e] for e in order),
            tuple(order),
            tuple(tuple(g for g, own in enumerate(of_gate) if own == stage) for stage in every),
            tuple(came.count(stage) for stage in every),
            (*(columns if reads_x else [None] * len(stages)), None),
        )

    @property
    def is_one(self) -> bool:
        """Returns whether nothing was added, so that one module does for all."""
        return len(self.gates) == 1

    def visibility(self, visibility_GE: Tensor | None) -> Tensor:
        """Returns which gate sees which expert, in their order: none that came after it."""
        gates, experts = len(self.gate_names), len(self.expert_names)
        seen_GE = torch.ones(gates, experts, dtype=torch.bool)
        if visibility_GE is not None:
            seen_GE = visibility_GE[:, list(self.order)].clone()
        for own, known in zip(self.gates, self._known, strict=True):
            seen_GE[list(own), known:] = False
        return seen_GE

    @property
    def groups(self) -> list[GateGroup]:
        """Gates that came together."""
        parts = zip(self.gates, self._known, self.columns, strict=True)
        return [
            GateGroup(places=own, num_experts=known, columns=columns)
            for own, known, columns in parts
            if own
        ]

    @property
    def pools(self) -> list[tuple[int, Sequence[int] | None]]:
        """Number and columns of experts that came together."""
        return [pair for pair in zip(self.experts, self.columns, strict=True) if pair[0]]

    @property
    def _known(self) -> list[int]:
        """Returns the number of experts at the end of each stage."""
        return [sum(self.experts[: stage + 1]) for stage in range(len(self.experts))]


def _score_as_before(mixture: MultiGateMixture, grown: _Grown, first: Pool, width: int) -> None:
    """Lets a mixture run in evaluation as the one that it grew from did, dense or grouped.

    The two round differently, and which is cheaper depends on how many gates and experts there are.
    `first` is the pool that there was at first, which reads a row of `width`.
    """
    gates, experts = grown.gates[0], grown.experts[0]
    policy = mixture.policy
    if not policy.local or not gates or not experts:
        return
    before = make_policy(
        policy.execution,
        first,
        traits_of(modules_of(mixture.gate)[0], GateTraits),
        mixture.visibility_GE[list(gates), :experts].tolist(),
        input_dim=width,
        dispatcher=None,
        limited=mixture.capacity is not None,
    )
    mixture.policy = replace(policy, scores_as=before)


def build_level(
    model: ModelConfig,
    layout: Layout,
    width: int,
    gate_names: Sequence[str],
    expert_names: Sequence[str],
    *,
    fixed: Tensor | None = None,
    gate_tasks: Sequence[str | None] | None = None,
    **sources: Unpack[Sources],
) -> Level:
    """Builds a level of a model; of one that grew (`model.stages`), what came when stays apart.

    Args:
        model: Experts, gates, capacity, execution, stages.
        layout: Who holds the experts, what stages read.
        width: D.
        gate_names: One per gate: its task's, where it is a task's.
        expert_names: One per expert; those that came later are put behind.
        fixed: Weights of gates that learn nothing, `[G, E]`; None: `model.gate` says.
        gate_tasks: The task of each gate, None for one of several.
        **sources: As in `MultiGateMixture`.
    """
    grown, source = None, sources.get("expert_source")
    if model.stages:
        grown = _Grown.of(model, layout, gate_names, expert_names, reads_x=source is None)
    if grown is None or grown.is_one:
        gate = None if fixed is None else FixedGate(fixed)
        sizes = len(gate_names), len(expert_names)
        mixture = build_mixture(
            model, layout, width, *sizes, gate=gate, gate_tasks=gate_tasks, **sources
        )
        return Level(mixture, gate_names, expert_names)
    pool, first, read = _staged_pool(model, layout, width, grown)
    gate = _staged_gate(model, layout, width, grown, gate_tasks, fixed)
    sources["visibility"] = grown.visibility(sources.get("visibility"))
    if source is not None:
        sources["expert_source"] = [source[e] for e in grown.order]
    mixture = _mixture(model, layout, width, pool, gate, len(gate_names), **sources)
    _score_as_before(mixture, grown, first, read)
    return Level(mixture, grown.gate_names, grown.expert_names)


def build_mixture(
    model: ModelConfig,
    layout: Layout,
    width: int,
    num_gates: int,
    num_experts: int,
    *,
    gate: nn.Module | None = None,
    gate_tasks: Sequence[str | None] | None = None,
    **sources: Unpack[Sources],
) -> MultiGateMixture:
    """Builds one mixture, whole or this rank's part of it.

    Spread experts start with the weights that they have on one process: every rank draws the whole
    pool, and keeps its part. So a level's pool must fit into the memory of a rank once, while it is
    built; twice, where it is cut into slices.

    Args:
        model: Experts, gates, capacity, execution.
        layout: Who holds the experts.
        width: D.
        num_gates: G.
        num_experts: E, over all ranks.
        gate: Default: the one that `model.gate` asks for.
        gate_tasks: The task of each gate, None for one of several; default: not known.
        **sources: As in `MultiGateMixture`.

    Raises:
        ValueError: The model grew (`model.stages`), which `build_level` is for.
    """
    if any(stage.experts for stage in model.stages):
        raise ValueError(
            f"model.stages: model.kind {model.kind} does not name its gates and experts, so that "
            "those of before cannot be told from new ones; freeze neither experts nor gates"
        )
    pool = build_experts(model, width, num_experts, layout.requests)
    if gate is None:
        gate = build_gate(model, width, num_gates, num_experts, layout.sums, gate_tasks)
    return _mixture(model, layout, width, pool, gate, num_gates, **sources)


def _mixture(
    model: ModelConfig,
    layout: Layout,
    width: int,
    pool: Pool,
    gate: nn.Module,
    num_gates: int,
    **sources: Unpack[Sources],
) -> MultiGateMixture:
    """Builds the mixture of all experts, or of this rank's part of them."""
    dispatcher = None
    experts = pool
    # A rank that has an expert alone sees all of its rows; with copies it does not
    sums = layout.sums
    if layout.spread:
        own = layout.own_groups(len(pool))
        cut = layout.cut(pool, own.size)
        placement = ExpertPlacement.even(len(pool), own.size, cut.slices)
        experts = cut.part(placement.on(own.place))
        dispatcher = AllToAllDispatcher(
            placement,
            group=own.experts,
            replicas=own.gradients,
            wire_dtype=layout.wire_dtype,
            mode=layout.mode,
            hosts=layout.hosts_of(own),
        )
        sums = ONE_RANK if own.replicas == 1 else AllReduceSums(own.statistics)
    if sums is not ONE_RANK:
        share_statistics(experts, sums)
    return MultiGateMixture(
        width,
        num_gates,
        experts,
        gate=gate,
        execution=model.execution,
        dispatcher=dispatcher,
        capacity=None if model.capacity is None else Capacity(**model.capacity.model_dump()),
        **sources,
    )


def _staged_gate(
    model: ModelConfig,
    layout: Layout,
    width: int,
    grown: _Grown,
    gate_tasks: Sequence[str | None] | None,
    fixed: Tensor | None,
) -> nn.Module:
    """A module for all gates, in which those that came together are one."""
    if fixed is not None:
        return FixedGate(fixed[:, list(grown.order)])
    groups, modules = grown.groups, list[nn.Module]()
    for group in groups:
        gate = build_gate(
            model,
            width if group.columns is None else len(group.columns),
            len(group.places),
            group.num_experts,
            layout.sums,
            None if gate_tasks is None else [gate_tasks[g] for g in group.places],
            modules[0] if modules else None,
        )
        modules.append(gate)
    # Where there are domains the module may know fewer of them than the others
    alone = len(groups) == 1 and groups[0].columns is None and model.domains is None
    return (
        modules[0]
        if alone and groups[0].num_experts == len(grown.order)
        else JoinedGates(modules, groups)
    )


def _staged_pool(
    model: ModelConfig, layout: Layout, width: int, grown: _Grown
) -> tuple[Pool, Pool, int]:
    """A pool of all experts, those that were there at first, and the width that these read.

    Kinds of experts are told by their counts, which are of all.
    """
    if model.experts_of_requests and (len(grown.pools) > 1 or grown.columns[0] is not None):
        raise ValueError(
            "model.request_experts: frozen experts of the request are joined neither by other "
            "experts nor by new features; freeze no experts, or keep their number and the features"
        )
    if model.expert_kinds[0][1] is not None and len(grown.pools) > 1:
        raise ValueError(
            "model.experts lists kinds of experts, to which none can be added where the others are "
            "frozen; keep their counts, or use model.expert and num_experts"
        )
    columns = [own for _, own in grown.pools]
    widths = [width if own is None else len(own) for own in columns]
    pools = [
        build_experts(model, read, count, layout.requests)
        for read, (count, _) in zip(widths, grown.pools, strict=True)
    ]
    staged = len(pools) > 1 or columns[0] is not None
    pool = MixedExperts(pools, columns=columns) if staged else pools[0]
    return pool, pools[0], widths[0]


def build_experts(
    model: ModelConfig, input_dim: int, num_experts: int, requests: RequestColumns | None = None
) -> Pool:
    """Builds `num_experts` experts as `model.expert` says, or those of `model.experts`.

    Args:
        model: Its kinds of experts, and how many are of the request.
        input_dim: D.
        num_experts: E.
        requests: Which columns experts of the request read.

    Raises:
        ValueError: They return rows of several widths, or do not say how wide theirs are; or there
            are experts of the request, but no columns.
    """
    if model.experts_of_requests:
        if requests is None or not requests.of_request:
            raise ValueError(
                f"model.request_experts is {model.experts_of_requests}, but the network reads no "
                "feature of the request; give features of user and context level: request, or do "
                "without experts of the request"
            )
        (config, _), count = model.expert_kinds[0], model.experts_of_requests
        of_request = _pool(config, len(requests.of_request), count)
        of_row = _pool(config, input_dim, num_experts - count)
        return MixedExperts([of_request, of_row], requests=requests)
    pools = [_pool(expert, input_dim, n or num_experts) for expert, n in model.expert_kinds]
    if len(pools) == 1:
        return pools[0]
    names = [f"experts.{i} ({expert.kind})" for i, (expert, _) in enumerate(model.expert_kinds)]
    return MixedExperts(pools, names)


def _pool(config: ExpertConfig, input_dim: int, num_experts: int) -> Pool:
    """Experts of one kind; modules that differ in their tensors stay modules."""
    build, keywords = EXPERTS.implementation(config), config.keywords()
    if config.makes_pools:
        pool = build(num_experts, input_dim, **keywords)
    else:
        modules = [build(input_dim, **keywords) for _ in range(num_experts)]
        pool = ExpertPool(modules, stacked=are_alike(modules))
    if pool.output_dim is None:
        try:
            pool.output_dim = find_width(pool, torch.zeros(1, input_dim))
        except Exception as error:  # somebody's modules may raise anything
            raise ValueError(
                f"expert kind {config.kind}: its modules do not say how wide their output is, and "
                f"one row of zeros does not tell ({error}); give them an attribute output_dim"
            ) from error
    return pool


def build_towers(model: ModelConfig, num_tasks: int, input_dim: int | None) -> TaskTowers:
    """Builds a tower per task over outputs of the last experts' width."""
    assert input_dim is not None, "build_experts asks for it"
    build, keywords = TOWERS.implementation(model.tower), model.tower.keywords()
    return TaskTowers.of(build(input_dim, **keywords) for _ in range(num_tasks))


def build_gate(
    model: ModelConfig,
    input_dim: int,
    num_gates: int,
    num_experts: int,
    ranks: RankSums = ONE_RANK,
    tasks: Sequence[str | None] | None = None,
    first: nn.Module | None = None,
) -> nn.Module:
    """Builds the gates that `model.gate` asks for; losses are those of all `ranks`' rows.

    What implements their kind is called with the three sizes and the section's keys; where these
    are the options of learned gates, `ranks` is among them. Where gates decide together, those of
    `tasks` that `select_voters` does not name have no vote; None: gates of no single task, which
    have one. Where they join those of `first`, which were there before, they have none at all.

    Example:
        >>> from mmoe.config import ModelConfig
        >>> model = ModelConfig(gate={"kind": "cosine", "k": 3, "dropout": 0.1})
        >>> gate = build_gate(model, input_dim=20, num_gates=2, num_experts=8)
        >>> type(gate).__name__, gate.k, gate.options.dropout
        ('CosineGate', 3, 0.1)
    """
    keywords, said = model.gate.keywords(), model.gate.selection()
    if model.gate.learns:
        keywords["ranks"] = ranks
    if said is not None:
        keywords["selection"] = _selection(said, model.gate.voters, tasks, num_gates, first)
    return GATES.implementation(model.gate)(input_dim, num_gates, num_experts, **keywords)


def _selection(
    said: Mapping[str, Any],
    voters: Sequence[str] | None,
    tasks: Sequence[str | None] | None,
    num_gates: int,
    first: nn.Module | None,
) -> Selection:
    """Returns the rule by which the gates decide together."""
    votes = None
    if first is not None:
        there = cast(Selector, first.select)
        votes = (*(there.selection.votes or [1.0] * len(there.votes_G)), *[0.0] * num_gates)
    elif voters is not None and tasks is not None:
        votes = tuple(float(task is None or task in voters) for task in tasks)
    return Selection(votes=votes, **said)


def static_gate(input_dim: int, num_gates: int, num_experts: int, **keywords: Any) -> StaticGate:
    """Builds a static gate, which reads no input."""
    return StaticGate(num_gates, num_experts, **keywords)


def dselect_k_gate(
    input_dim: int, num_gates: int, num_experts: int, *, per_sample: bool, **keywords: Any
) -> DSelectKGate:
    """Builds a DSelect-k gate, which reads no input where tasks choose once for all samples."""
    return DSelectKGate(input_dim if per_sample else None, num_gates, num_experts, **keywords)

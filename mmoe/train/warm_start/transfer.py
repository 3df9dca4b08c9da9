"""Transfers an earlier run's best checkpoint into a new training state, tensor by tensor."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmoe.checkpoint import StoredTensors
from mmoe.checkpoint.resume_state import unflatten_optimizer
from mmoe.checkpoint.weights import outline
from mmoe.config import RunConfig, TableSpec
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import EmbeddingBackend, managed_ids, table_of_state
from mmoe.embeddings.row_updates import LAST_STEP
from mmoe.mixture.gates.fixed import constants_of
from mmoe.mixture.moves import NEW, NewExperts, TensorSource, fits, moved, moved_moments
from mmoe.parallel import Shard, Sharded, from_all, local_shards
from mmoe.parallel.sharded_tensors import first_rows, spread_out, taken_from
from mmoe.train.state import TrainingState
from mmoe.train.warm_start.earlier import EarlierRun, WarmStartReport, model_difference, named_pairs
from mmoe.train.warm_start.places import (
    NamedNetwork,
    begin_as_before,
    expert_origins,
    tensor_sources,
)


@torch.no_grad()
def transfer(
    earlier: EarlierRun,
    state: TrainingState,
    config: RunConfig,
    encoder: FeatureEncoder,
    new_experts: NewExperts = "fresh",
) -> WarmStartReport:
    """Copies into a fresh state what the earlier run had learnt.

    Tables, their optimizer state, owners of managed rows, the network, its average and its
    optimizer's moments start from the best checkpoint. New rows of tables, new gates, experts and
    towers keep the values that `state` has. Kept gates and experts read new features with weights
    of zero: at first they compute what they did; the weights' own gradients are not zero, so they
    learn at once. Where a task's negative_sampling_rate changed, its logit is moved so that its
    probabilities stay.

    Over several ranks each reads what it holds shards of, one tensor at a time, whatever ranks
    trained the earlier run; all return the same report.

    Args:
        earlier: Passed `check(config)`.
        state: As for a new run of `config`; changed in place, unless it raises.
        config: Of the new run.
        encoder: Of the new run, as `extend_encoder` made it.
        new_experts: `copy`: new experts begin as copies of kept ones of the same owner.

    Returns:
        What was kept, grown, initialised and dropped.

    Raises:
        ValueError: A tensor cannot be mapped; names it and the key of the config that differs.
    """
    report = WarmStartReport(str(earlier.path), earlier.step, new_experts)
    model, training = earlier.model(), earlier.training()
    network, scoring = state.ranker.network, model.part("network")
    now, before = NamedNetwork.of(network, config, encoder), _earlier_network(earlier, model)
    origins, dense = _dense_transfer(now, before, earlier, state, config, new_experts)
    check_tables(encoder.tables, model.part("tables"), str(earlier.path))
    raw = training.part("raw")
    # Training goes on from the weights behind the average, where both runs average
    continued = raw if state.average is not None and raw.names() else scoring
    for stored in (continued, scoring):
        dense.check(network, stored)
    dense.check_frozen(state.frozen.names, now.names["domains"])
    dense.copy(network, continued)
    dense.copy(network, scoring, only=state.frozen.names)  # the average, where there is one
    _start_average(state, scoring, training, dense)
    scored = [network] if state.average is None else [network, state.average.module]
    report.initialised += begin_as_before(scored, now, before, dense.sources)
    _say_names(report, now, before, config, earlier, origins[0])
    if state.ranker.wide is not None:
        report.initialised.append("the wide part (fitted to these rows)")
    accumulators, moments = _usable_state(training, earlier.config, config)
    _continue_embeddings(encoder.tables, state.ranker.tables, model, training, accumulators, report)
    kept, left = dense.moments(network, moments)
    unflatten_optimizer(state.optimizer, network, kept)
    (report.kept if kept else report.initialised).append("the optimizer's moments")
    left = [*dense.not_carried(scoring), *(f"optimizer's moments of {name}" for name in left)]
    report.not_carried += sorted({name for names in from_all(left) for name in names})  # all ranks'
    return report


def _earlier_network(earlier: EarlierRun, model: StoredTensors) -> NamedNetwork:
    """Builds the earlier run's network without memory, and holds it against what is stored."""
    network = outline(earlier.config, earlier.encoder, model)
    model.part("network").check(network.state_dict())
    return NamedNetwork.of(network, earlier.config, earlier.encoder)


def _dense_transfer(
    now: NamedNetwork,
    before: NamedNetwork,
    earlier: EarlierRun,
    state: TrainingState,
    config: RunConfig,
    new_experts: NewExperts,
) -> tuple[list[dict[str, str]], "_DenseTransfer"]:
    """Returns each level's earlier experts, and what copies the network by them."""
    try:
        origins = expert_origins(now, before, new_experts)
        sources = tensor_sources(now, before, origins)
        shifts = bias_shifts(now, earlier.config, config)
    except ValueError as error:
        raise ValueError(f"--warm-start {earlier.path}: {error}") from None
    for name in constants_of(now.network):  # they follow from the model's kind
        del sources[name]
    return origins, _DenseTransfer(sources, state.layout, shifts, earlier, config)


@dataclass(frozen=True)
class _DenseTransfer:
    """Copies an earlier run's network into a new one, tensor by tensor.

    One earlier tensor is in memory at a time. Of experts that are spread over ranks a rank takes
    its own out of it.

    Attributes:
        sources: Of the whole tensors.
        layout: This rank's shards of those that lie on several ranks.
        shifts: What to add to biases of logits whose task has another base rate.
        earlier: Where they come from.
        config: Of the new run.
    """

    sources: Mapping[str, TensorSource]
    layout: Mapping[str, Sequence[Shard]]
    shifts: Mapping[str, float]
    earlier: EarlierRun
    config: RunConfig

    def check(self, network: nn.Module, old: StoredTensors) -> None:
        """Refuses an earlier network whose tensors do not fit, whole or sharded here.

        Raises:
            ValueError: It is not there, or has another shape.
        """
        for name, own in network.state_dict().items():
            origin = self._origin(name)
            if origin is None:
                continue
            shape, there = self._whole_shape(name, own), _shape(old, origin)
            if there is None or not fits(shape, there, self.sources[name]):
                what = "does not exist" if there is None else f"has shape {list(there)}"
                key = model_difference(self.earlier.config, self.config)
                raise ValueError(
                    f"--warm-start {self.earlier.path}: tensor {origin!r} {what} there, but "
                    f"{list(shape)} is needed here{f' ({key})' if key else ''}; keep the model's "
                    "sizes, or train without --warm-start"
                )

    def check_frozen(self, frozen: Mapping[str, str], domains: Sequence[str]) -> None:
        """Refuses frozen parts that the earlier run lacks, wholly or in part."""
        for name in sorted(frozen):
            source = self.sources.get(name)
            if source is None:
                continue  # a constant
            new = any((place == NEW).any() for place in source.places.values())
            if source.name is None or new:
                what, mend = self._what_is_new(source, domains)
                raise ValueError(
                    f"training.freeze: {frozen[name]} {what} --warm-start {self.earlier.path}, and "
                    f"those would stay as they were drawn; {mend}"
                )
        for name in self.shifts.keys() & frozen.keys():
            raise ValueError(
                f"training.freeze: {frozen[name]} is to stay, but the task's "
                "negative_sampling_rate is another than there, which moves its logit; keep it"
            )

    def _what_is_new(self, source: TensorSource, domains: Sequence[str]) -> tuple[str, str]:
        """Names what a part has that the earlier network lacked, and how to mend it."""
        leave = "leave it out of training.freeze"
        if source.name is None:
            return "has weights that are not in", leave
        dim, there = source.domain_dim, self.earlier.encoder.domains
        if dim is not None and there is not None and NEW in source.places[dim]:
            names = [name for name in domains if name not in there.names]
            return f"has weights for each domain, and for {', '.join(names)} none in", leave
        had = {task.name for task in self.earlier.config.tasks}
        names = [task.name for task in self.config.tasks if task.name not in had]
        if not names:
            return "has more inputs than in", leave
        what = f"has weights for each task, and for {', '.join(names)} none in"
        return what, f"{leave}, or add no task"

    def copy(
        self, network: nn.Module, old: StoredTensors, only: Collection[str] | None = None
    ) -> None:
        """Fills every tensor that has an origin, or `only` frozen ones; what is new in it stays.

        The logits of frozen towers do not move.
        """
        tensors = network.state_dict()
        for name, own in tensors.items():
            origin = self._origin(name)
            if origin is not None and (only is None or name in only):
                own.copy_(self._moved(name, own, old.read(origin)))
        if only is not None:
            return
        for name, shift in self.shifts.items():
            tensors[name].add_(shift)

    def not_carried(self, old: StoredTensors) -> list[str]:
        """Lists tensors of this rank that the earlier network has as well, and whose numbers there
        no tensor takes over, under this name or another.
        """
        taken = {source.name for source in self.sources.values() if source.carries}
        return [
            name
            for name, source in self.sources.items()
            if name in old and name not in taken and not source.carries
        ]

    def moments(
        self, network: nn.Module, old: StoredTensors
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Returns the optimizer's moments, `PARAMETER/MOMENT`, where there is an origin.

        Beside them the parameters whose moments do not fit, which begin as those of a new one.
        """
        by_parameter: dict[str, dict[str, str]] = {}
        for full_name in old.names():
            name, _, key = full_name.rpartition("/")
            by_parameter.setdefault(name, {})[key] = full_name
        flat, left = {}, []
        for name, own in network.named_parameters():
            names = by_parameter.get(self._origin(name) or "", {})
            if not (own.requires_grad and names and self.sources[name].carries):
                continue  # no optimizer has it, or had it; or all of its entries are new
            shapes = [old.shape(full_name) for full_name in names.values()]
            whole = self._whole_shape(name, own)
            if not all(not shape or fits(whole, shape, self.sources[name]) for shape in shapes):
                left.append(name)
                continue
            found = {key: old.read(full_name) for key, full_name in names.items()}
            for key, moment in self._moved_moments(name, own, found).items():
                flat[f"{name}/{key}"] = moment
        return flat, left

    def _moved(self, name: str, own: Tensor, old: Tensor) -> Tensor:
        """Values of a tensor; of shards, what this rank has of the whole."""
        shards, source = self.layout.get(name), self.sources[name]
        if not shards:
            return moved(own, old, source)
        return taken_from(moved(spread_out(own, shards), old, source), own, shards)

    def _moved_moments(
        self, name: str, own: Tensor, found: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Moments of a parameter, likewise."""
        shards, source = self.layout.get(name), self.sources[name]
        if not shards:
            return moved_moments(own, found, source)
        return {
            key: taken_from(moment, own, shards) if moment.dim() else moment
            for key, moment in moved_moments(spread_out(own, shards), found, source).items()
        }

    def _origin(self, name: str) -> str | None:
        """The tensor that it was."""
        source = self.sources.get(name)
        return None if source is None else source.name

    def _whole_shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Returns the whole shape of a tensor that this rank may hold shards of."""
        return self.layout[name][0].shape if name in self.layout else tuple(own.shape)


def _usable_state(
    training: StoredTensors, before: RunConfig, now: RunConfig
) -> tuple[StoredTensors, StoredTensors]:
    """State of the tables' optimizer and of the dense one; empty where another kind follows."""
    one, two = before.training, now.training
    same = one.embedding_optimizer.kind == two.embedding_optimizer.kind
    kinds = {one.optimizer.kind, two.optimizer.kind}
    alike = len(kinds) == 1 or kinds <= {"adam", "adamw"}  # these two have the same moments
    nothing = training.part("nothing")  # no tensor's name begins with it
    return (
        training.part("accumulators") if same else nothing,
        training.part("optimizer") if alike else nothing,
    )


def _shape(stored: StoredTensors, name: str) -> tuple[int, ...] | None:
    """The shape of a whole tensor; None: it is not there."""
    return stored.shape(name) if name in stored else None


def _start_average(
    state: TrainingState, scoring: StoredTensors, training: StoredTensors, dense: _DenseTransfer
) -> None:
    """The average goes on; where there was none it begins with the network as it is."""
    average = state.average
    if average is None:
        return
    module, weights = average.module.state_dict(), state.ranker.network.state_dict()
    for name, value in weights.items():
        module[name].copy_(value)
    if "averaged" in training:
        training.load({"averaged": average.n_averaged}, all_names=False)
        dense.copy(average.module, scoring)


def _say_names(
    report: WarmStartReport,
    now: NamedNetwork,
    before: NamedNetwork,
    config: RunConfig,
    earlier: EarlierRun,
    origins: Mapping[str, str],
) -> None:
    zero = " (read with weights of zero at first)"
    if any(stage.experts for stage in config.model.stages):
        zero = " (read by new gates and experts alone)"
    features, there = ([f.name for f in c.features] for c in (config, earlier.config))
    report.compare("feature", features, there, zero)
    report.compare("task", now.names["tasks"], before.names["tasks"])
    report.compare(
        "domain",
        now.names["domains"],
        before.names["domains"],
        " (as the mean of the others at first)",
    )
    for task, shift in _rate_shifts(earlier.config, config).items():
        report.kept.append(f"probabilities of {task} (logit {shift:+.3f}: negative_sampling_rate)")
    # All levels have the same experts
    experts = [
        name if origins.get(name, name) == name else f"{name} (a copy of {origins[name]})"
        for name in now.network.levels[0].expert_names
    ]
    report.compare("expert", experts, before.network.levels[0].expert_names)


def _rate_shifts(before: RunConfig, now: RunConfig) -> dict[str, float]:
    """Returns by task what to add to its logit so that probabilities stay what they were.

    A logit learnt under the rate r predicts `σ(logit + ln r)`; under the rate r′ it has to be
    `logit + ln(r / r′)`. Tasks whose rate stayed are left out, and all where a wide part is fitted
    to the new rows: its bias has the shift.
    """
    if now.model.wide:
        return {}
    pairs = named_pairs(before, now, lambda config: config.tasks)
    return {
        here.name: math.log(there.negative_sampling_rate / here.negative_sampling_rate)
        for there, here in pairs
        if there.negative_sampling_rate != here.negative_sampling_rate
    }


def bias_shifts(now: NamedNetwork, before: RunConfig, config: RunConfig) -> dict[str, float]:
    """Returns the shifts of `_rate_shifts` by the bias that each is added to.

    Raises:
        ValueError: A tower does not say which of its tensors that is.
    """
    shifts, found = _rate_shifts(before, config), dict[str, float]()
    if not shifts:
        return found
    tensors, axes = now.network.state_dict(), now.axes()
    for task, shift in shifts.items():
        biases = [
            name
            for name, own in axes.items()
            if own.owner("tasks") == task and own.dim("logits") == 0 and tensors[name].dim() == 1
        ]
        if not biases:
            raise ValueError(
                f"tasks.{task}.negative_sampling_rate changed, and the task's tower does not say "
                "which tensor is the bias of its logit; keep the rate, or give the tower a method "
                '`axes`, which returns for example {"bias": {0: "logits"}}'
            )
        found |= dict.fromkeys(biases, shift)
    return found


def check_tables(tables: Sequence[TableSpec], old: StoredTensors, run: str) -> None:
    """Refuses tables that cannot take the rows of an earlier run.

    Raises:
        ValueError: It has another width, or fewer rows.
    """
    for table in tables:
        there = _shape(old, table.name)
        if there is None:
            continue
        rows, dim = there
        if dim != table.dim or rows > table.num_rows:
            raise ValueError(
                f"--warm-start {run}: table {table.name!r} has {rows:,} rows of width "
                f"{dim} there, and {table.num_rows:,} of width {table.dim} here; "
                "keep its sizes, give the feature another name, or train without --warm-start"
            )


def _continue_embeddings(
    tables: Sequence[TableSpec],
    embeddings: EmbeddingBackend,
    model: StoredTensors,
    training: StoredTensors,
    accumulators: StoredTensors,
    report: WarmStartReport,
) -> None:
    """Continues tables, the state of their optimizer, and the ids that own their rows."""
    old = model.part("tables")
    _continue_tables(tables, embeddings.table_shards(), old, report)
    continue_accumulators(embeddings.optimizer_shards(), accumulators, old, report)
    ids = managed_ids(embeddings)
    if ids is not None:  # they keep their standing for admission and eviction too
        kept = ids.continue_from(model.part("ids").whole(), training.part("ids").whole())
        report.compare("managed ids of table", kept, kept)


def _continue_tables(
    tables: Sequence[TableSpec],
    shards: Mapping[str, Sharded],
    old: StoredTensors,
    report: WarmStartReport,
) -> None:
    """Loads known rows into this rank's shards; the others keep their fresh values."""
    same, known = [], {}
    for table in tables:
        there = _shape(old, table.name)
        if there is None:
            continue
        known[table.name] = first_rows(shards[table.name], there[0])
        more = table.num_rows - there[0]
        if more:
            size = f"{there[0]:,} → {table.num_rows:,} rows (+{more:,})"
            report.grown.append(f"table {table.name} {size}")
        else:
            same.append(table.name)
    old.load(known, all_names=False)
    names = [table.name for table in tables]
    report.compare("table", [n for n in names if n in same or n not in old], same)
    report.compare("table", [], [name for name in old.names() if name not in names])


def continue_accumulators(
    states: Mapping[str, Sharded],
    old: StoredTensors,
    old_tables: StoredTensors,
    report: WarmStartReport,
) -> None:
    """Returns optimizer state by `TABLE/NAME`, which grows with the rows.

    New rows keep their fresh state, and so does what the earlier run has not, or in another form.
    """
    without: dict[str, None] = {}
    known: dict[str, list[Shard]] = {}
    for name, state in states.items():
        table, there = table_of_state(name), _shape(old, name)
        if table is not None and table not in old_tables:
            continue
        rows = None if table is None else _shape(old_tables, table)
        own = local_shards(state) if rows is None else first_rows(state, rows[0])
        # Kinds and widths are those of the earlier run, so ranks without a shard agree
        if there is not None and all(shard.shape == there for shard in own):
            known[name] = own
        elif table is not None:
            without[table] = None
    old.load(known, all_names=False)
    _decay_from_now(states, known)
    if without:
        report.compare("embedding optimizer state of table", list(without), [])


def _decay_from_now(states: Mapping[str, Sharded], known: Mapping[str, list[Shard]]) -> None:
    """Lets rows that are new make up for steps from here on: the count is the earlier run's."""
    steps = states.get("steps")
    for name, state in states.items():
        if isinstance(steps, Tensor) and name.endswith(f"/{LAST_STEP}"):
            rows = sum(len(shard.tensor) for shard in known.get(name, []))
            for shard in local_shards(state):  # never cut: tables that decay are copies
                shard.tensor[rows:] = int(steps)

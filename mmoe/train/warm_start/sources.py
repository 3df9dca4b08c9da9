"""Where each entry of a network's tensors stood in the network of an earlier run.

Tensors have dimensions of gates, of experts and of inputs. Entries are told by name (the task of a
gate, `shared expert 2`, the feature of an input column), never by position.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import nn

from mmoe.config import RunConfig, TaskConfig
from mmoe.config.tasks import EntireSpaceTask
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.mixture import DSelectKGate, FixedGate, MLPExperts, StackedExperts
from mmoe.mixture.gates.logits import GateLogits
from mmoe.mixture.requests.experts import RequestExperts
from mmoe.mixture.resize_experts import expert_dims, expert_owners, expert_ranges
from mmoe.models.input_layers import projected_feature
from mmoe.models.interactions.add import Columns, added_names
from mmoe.models.interactions.layers import Interaction
from mmoe.models.network import Level, MixtureNetwork
from mmoe.models.sequences.inputs import sequence_of_tensor
from mmoe.parallel.sharded_tensors import Shard, is_whole, lie_in_places
from mmoe.train.warm_start.places import (
    NEW,
    NewExperts,
    TensorSource,
    expert_places,
    places_of,
    places_within,
)
from mmoe.train.warm_start.staged import copied_names, is_staged, staged_names

_OF_REQUEST = "experts.pools.0."  # of `RequestExperts`


@dataclass(frozen=True)
class Shape:
    """Names of a network's dimensions: gates, experts, towers and input columns.

    Attributes:
        network: The module.
        tasks: Names, in the order of the towers.
        inputs: Names of the columns of x, `feature` or `feature[i]`.
        num_numbers: How many of them are no embeddings; they stand first.
        added: Names of the columns that an interaction puts beside them.
        settings: Of the tasks, where relations between them left something in the network.
        bias_inputs: Of those that the bias tower reads in their place; empty: there is none.
        domains: Names; empty: there are none.
    """

    network: MixtureNetwork
    tasks: list[str]
    inputs: list[str]
    num_numbers: int = 0
    added: list[str] = field(default_factory=list)
    settings: Sequence[TaskConfig] = ()
    bias_inputs: list[str] = field(default_factory=list)
    domains: Sequence[str] = ()

    @classmethod
    def of(cls, network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder) -> "Shape":
        """Returns that of a run."""
        columns, every = Columns.of(encoder, config.model.bias), Columns.of(encoder)
        read = set(columns.names)
        return cls(
            network,
            [task.name for task in config.tasks],
            columns.names,
            len(columns.numbers),
            added_names(config, columns),
            config.tasks,
            [name for name in every.names if name not in read],
            () if encoder.domains is None else encoder.domains.names,
        )

    def columns(self, reads: Literal["inputs", "numbers", "embeddings"]) -> list[str]:
        """Names of all inputs, or of a part of them."""
        first, last = self.inputs[: self.num_numbers], self.inputs[self.num_numbers :]
        return {"inputs": self.inputs, "numbers": first, "embeddings": last}[reads]

    @property
    def levels(self) -> list[Level]:
        """Levels of experts, from the first on."""
        return [level for level in self.network.levels if isinstance(level, Level)]


def tensor_sources(
    now: Shape, before: Shape, new_experts: NewExperts = "fresh"
) -> dict[str, TensorSource]:
    """Finds for every tensor of `now.network` what it was in `before.network`.

    Tensors of constant gates are left out: they follow from the model's kind.

    Raises:
        ValueError: A gate's codes spell the numbers of experts, and they have other numbers now.
    """
    sources = {name: TensorSource(name) for name in now.network.state_dict()}
    towers = places_of(now.tasks, before.tasks)
    for name in sources:
        part, _, rest = name.partition(".")
        feature = projected_feature(name)
        if feature is not None and f"{feature} projected[0]" not in before.inputs:
            sources[name] = TensorSource(None)
        sequence = sequence_of_tensor(name)
        if sequence is not None and f"{sequence} encoded[0]" not in before.inputs:
            sources[name] = TensorSource(None)
        if part == "towers":
            number, _, tensor = rest.partition(".")
            old = int(towers[int(number)])
            sources[name] = TensorSource(None if old == NEW else f"towers.{old}.{tensor}")
            if tensor.startswith("own_"):
                sources[name] = _with_domains(name, sources[name], 0, now, before)
        if part in ("transfer", "imputation"):
            sources[name] = _related_source(name, now, before)
    logits = _places_of_logits(towers, now.network, before.network)
    sources.update(_interaction_sources(now, before, logits))
    sources |= _bias_sources(now, before, logits)
    # By name, not by place: features come and go. Only the first level reads x
    read, old_read = now.inputs + now.added, before.inputs + before.added
    columns = places_of(read, old_read)
    for number, (level, old_level) in enumerate(zip(now.levels, before.levels, strict=False)):
        prefix = f"levels.{number}.mixture"
        if is_staged(level) or is_staged(old_level):
            sources |= _staged_sources(level, old_level, prefix, new_experts)
            sources |= _domain_sources(level, prefix, sources, now, before)
            continue
        for name, source in _level_sources(level, old_level, prefix, new_experts):
            sources[name] = source
        if number == 0:
            chosen, old_chosen = _request_columns(level), _request_columns(old_level)
            of_request = places_of([read[c] for c in chosen], [old_read[c] for c in old_chosen])
            for name, dims in _input_dims(level, {len(read), len(chosen)}):
                own = of_request if chosen and name.startswith(_OF_REQUEST) else columns
                places = {**sources[f"{prefix}.{name}"].places, **dict.fromkeys(dims, own)}
                sources[f"{prefix}.{name}"] = TensorSource(f"{prefix}.{name}", places, dims[-1])
        sources |= _domain_sources(level, prefix, sources, now, before)
    return {name: sources[name] for name in sources.keys() - _constants(now.network)}


def _domain_sources(
    level: Level, prefix: str, sources: Mapping[str, TensorSource], now: Shape, before: Shape
) -> dict[str, TensorSource]:
    """Of what domains have of their own in a level's gates; behind the dimension of gates."""
    names = [f"{prefix}.{name}" for name in level.mixture.state_dict() if name.startswith("gate.")]
    own = [name for name in names if name.rpartition(".")[2].startswith("own_")]
    return {name: _with_domains(name, sources[name], 1, now, before) for name in own}


def _with_domains(
    name: str, source: TensorSource, dim: int, now: Shape, before: Shape
) -> TensorSource:
    """Of what domains have of their own, along `dim`; nothing where there were none."""
    there = None if source.name is None else before.network.state_dict().get(source.name)
    if there is None:
        return TensorSource(None)
    # What came in an earlier stage knows its domains alone, which are the first ones
    known = now.network.state_dict()[name].shape[dim]
    domains = places_of(now.domains[:known], before.domains[: there.shape[dim]])
    return replace(source, places={**source.places, dim: domains}, domain_dim=dim)


def _interaction_sources(
    now: Shape, before: Shape, logits: np.ndarray
) -> Iterator[tuple[str, TensorSource]]:
    """Of what multiplies features before the levels, and of what it adds to logits."""
    for part in ("crossing", "interaction"):
        module: Interaction | None = getattr(now.network, part)
        if module is None:
            continue
        columns = places_of(now.columns(module.reads), before.columns(module.reads))
        for tensor, dims in module.input_dims.items():
            name = f"{part}.{tensor}"
            yield name, TensorSource(name, dict.fromkeys(dims, columns), dims[-1])
        for tensor, dim in module.task_dims.items():
            yield f"{part}.{tensor}", TensorSource(f"{part}.{tensor}", {dim: logits})


def _related_source(name: str, now: Shape, before: Shape) -> TensorSource:
    """A tensor by which a task reads those before it, or of its imputation tower."""
    part, *rest = name.split(".")
    turn = 0 if part == "imputation" else 1  # imputation.TASK.…, transfer.tasks.TASK.…
    task = now.settings[int(rest[turn])]
    names = [one.name for one in before.settings]
    if task.name not in names:
        return TensorSource(None)
    old, rest[turn] = before.settings[names.index(task.name)], str(names.index(task.name))
    if part == "imputation":
        had = isinstance(old, EntireSpaceTask) and old.counterfactual == "dr"
        return TensorSource(".".join([part, *rest]) if had else None)
    if not old.after:
        return TensorSource(None)
    places = places_of(task.after, old.after)
    if "carries" in rest:
        place = int(places[int(rest[3])])  # transfer.tasks.TASK.carries.PARENT.…
        rest[3] = str(place)
        return TensorSource(None if place == NEW else ".".join([part, *rest]))
    if rest[-3:] != ["layers", "0", "weight"]:
        return TensorSource(".".join([part, *rest]))
    # Its own hidden layer, then that of each task before it, all as wide; new ones read as zeros
    width = now.network.state_dict()[name].shape[0]
    blocks = [0, *(place if place == NEW else place + 1 for place in places.tolist())]
    columns = [NEW if b == NEW else b * width + i for b in blocks for i in range(width)]
    return TensorSource(".".join([part, *rest]), {1: np.array(columns, np.int64)}, 1)


def _bias_sources(now: Shape, before: Shape, logits: np.ndarray) -> dict[str, TensorSource]:
    """Tensors of the bias tower: one of inputs, and a row of each logit."""
    tower = now.network.bias_tower
    if tower is None:
        return {}
    names = [f"bias_tower.{name}" for name in tower.state_dict()]
    if not before.bias_inputs:
        return {name: TensorSource(None) for name in names}
    found = {name: TensorSource(name) for name in names}
    for name in ("bias_tower.logits.weight", "bias_tower.logits.bias"):
        found[name] = TensorSource(name, {0: logits})
    columns = places_of(now.bias_inputs, before.bias_inputs)
    # The first layer reads them; it is the last one as well where there is no other
    first = "bias_tower.mlp.layers.0.weight" if len(tower.mlp.layers) else names[0]
    found[first] = TensorSource(first, {**found[first].places, 1: columns}, 1)
    return found


def own_sources(
    sources: Mapping[str, TensorSource], layout: Mapping[str, Sequence[Shard]]
) -> dict[str, TensorSource]:
    """Cuts the sources as experts are sharded, to those of what this rank holds.

    Args:
        sources: Of the whole tensors.
        layout: This rank's shards, along the dimension of experts, the first one; those that lie
            in places of their own are left out.

    Example:
        >>> import torch
        >>> source = TensorSource("w", {0: np.array([2, 0, NEW])})
        >>> layout = {"w": [Shard(torch.zeros(2, 4), (3, 4), (1, 0))]}
        >>> own_sources({"w": source}, layout)["w"].places[0].tolist()
        [0, -1]
    """
    own = dict(sources)
    for name, shards in layout.items():
        if name in own and not is_whole(shards) and not lie_in_places(shards):
            experts = np.concatenate(
                [np.arange(s.region[0].start, s.region[0].stop) for s in shards]
            )
            places = own[name].places
            first = places[0] if 0 in places else np.arange(shards[0].shape[0])
            own[name] = replace(own[name], places={**places, 0: first[experts]})
    return own


def _places_of_logits(
    towers: np.ndarray, now: MixtureNetwork, before: MixtureNetwork
) -> np.ndarray:
    """Of each logit that a row has, its earlier place among these, or `NEW`.

    Args:
        towers: Of each task, its earlier place.
        now: The network.
        before: The earlier one; a task that stays has as many logits there.
    """
    ends = np.cumsum([0, *map(len, before.towers.columns.of_rows)])
    places = []
    for old, mine in zip(towers.tolist(), now.towers.columns.of_rows, strict=True):
        first = NEW if old == NEW else int(ends[old])
        places += [NEW if old == NEW else first + i for i in range(len(mine))]
    return np.array(places, np.int64)


def _level_sources(
    level: Level, before: Level, prefix: str, new_experts: NewExperts
) -> Iterator[tuple[str, TensorSource]]:
    """Gates and experts of one level. Every tensor of a gate begins with a dimension of gates."""
    experts = expert_places(level.expert_names, before.expert_names, new_experts)
    gates = places_of(level.gate_names, before.gate_names)
    _refuse_moved(level, experts)
    dims, ranges = expert_dims(level.mixture), expert_ranges(level.mixture)
    old_ranges = expert_ranges(before.mixture)
    owners, of_before = expert_owners(level.mixture), expert_owners(before.mixture)
    named = {(_of_any_expert(name), e): name for name, e in of_before.items()}
    for name in level.mixture.state_dict():
        if name in owners:  # one expert's own: as a whole, or not
            old = named.get((_of_any_expert(name), int(experts[owners[name]])))
            yield f"{prefix}.{name}", TensorSource(None if old is None else f"{prefix}.{old}")
            continue
        places: dict[int, np.ndarray] = {}
        if name.startswith("gate."):
            places[0] = gates
        dim = dims.get(name)
        if dim is not None:
            places[dim] = experts
        if name in ranges:
            places[dim or 0] = places_within(experts, ranges[name], old_ranges.get(name, range(0)))
        yield f"{prefix}.{name}", TensorSource(f"{prefix}.{name}", places)


def _of_any_expert(name: str) -> str:
    """`experts.3.weight` → `experts.*.weight`, and likewise in a pool of `experts.pools.1`."""
    parts = name.split(".")
    parts[3 if parts[1] == "pools" else 1] = "*"
    return ".".join(parts)


def _staged_sources(
    level: Level, before: Level, prefix: str, new_experts: NewExperts
) -> dict[str, TensorSource]:
    """Of a level that grew: whole modules, as they were."""
    found = {}
    for name, old in staged_names(level, before):
        found[f"{prefix}.{name}"] = TensorSource(None if old is None else f"{prefix}.{old}")
    if new_experts == "copy":
        for name, old, turns in copied_names(level, before):
            found[f"{prefix}.{name}"] = TensorSource(f"{prefix}.{old}", {0: turns})
    return found


def _refuse_moved(level: Level, experts: np.ndarray) -> None:
    moved = (experts != NEW) & (experts != np.arange(len(experts)))
    if moved.any() and any(isinstance(module, DSelectKGate) for module in level.modules()):
        name = level.expert_names[int(moved.argmax())]
        raise ValueError(
            f"{name!r} would get another number, which the codes of model.gate.kind dselect_k "
            "spell; add tasks and experts with another gate"
        )


def _request_columns(level: Level) -> list[int]:
    """Columns of x that experts of the request read; none where there are no such experts."""
    pool = level.mixture.experts
    return list(pool.columns.of_request) if isinstance(pool, RequestExperts) else []


def _input_dims(level: Level, widths: Set[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of the first level that have dimensions of the network's inputs, and which.

    By the last of them inputs are read, all or those of the request: `widths` of them.
    """
    for name, module in level.mixture.named_modules():
        if isinstance(module, MLPExperts | GateLogits) and module.input_dim in widths:
            yield f"{name}.weights.0", (1 if isinstance(module, MLPExperts) else 2,)
            own = module.own_GMED if isinstance(module, GateLogits) else None
            if own is not None and len(module.weights) == 1:  # else hidden layers read the inputs
                yield f"{name}.own_GMED", (3,)
        if isinstance(module, StackedExperts):
            for tensor, dims in module.input_dims.items():
                yield f"{name}.{tensor}", dims


def _constants(network: nn.Module) -> set[str]:
    return {
        f"{name}.{tensor}"
        for name, module in network.named_modules()
        if isinstance(module, FixedGate)
        for tensor in module.state_dict()
    }

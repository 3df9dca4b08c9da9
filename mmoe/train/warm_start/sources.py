"""Where each entry of a network's tensors stood in the network of an earlier run.

Tensors have dimensions of gates, of experts and of inputs. Entries are told by name (the task of a
gate, `shared expert 2`, the feature of an input column), never by position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import nn

from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.mixture import DSelectKGate, FixedGate, MLPExperts, StackedExperts
from mmoe.mixture.gates.logits import GateLogits
from mmoe.mixture.resize_experts import expert_dims, expert_ranges
from mmoe.models.input_layers import projected_feature, replaced_names
from mmoe.models.network import Level, MixtureNetwork
from mmoe.parallel.sharded_tensors import Shard

NewExperts = Literal["fresh", "copy"]
NEW = -1  # the place of an entry that the earlier network did not have


@dataclass(frozen=True)
class TensorSource:
    """Where the entries of a tensor stood in an earlier one, dimension by dimension.

    Attributes:
        name: In the earlier network; None: there was none.
        places: By dimension, for each entry its earlier place or `NEW`; other dimensions are equal.
        input_dim: The dimension of inputs, if there is one. Kept gates and experts read new inputs
            with weights of zero, so that they compute what they did.
    """

    name: str | None
    places: dict[int, np.ndarray] = field(default_factory=dict)
    input_dim: int | None = None


@dataclass(frozen=True)
class Shape:
    """Names of a network's dimensions: gates, experts, towers and input columns.

    Attributes:
        network: The module.
        tasks: Names, in the order of the towers.
        inputs: Names of the columns of x, `feature` or `feature[i]`.
    """

    network: MixtureNetwork
    tasks: list[str]
    inputs: list[str]

    @property
    def levels(self) -> list[Level]:
        """Levels of experts, from the first on."""
        return [level for level in self.network.levels if isinstance(level, Level)]


def input_names(encoder: FeatureEncoder) -> list[str]:
    """Names each column of x, in the order in which the ranker joins them."""
    names = replaced_names(encoder.dense_names, encoder.input_layers)
    dims = {table.name: table.dim for table in encoder.tables}
    for feature in [*encoder.categorical, *encoder.lists]:
        # A feature that looks up another table now gives other numbers
        names += [f"{feature.name}@{feature.table}[{i}]" for i in range(dims[feature.table])]
    return names


def tensor_sources(
    now: Shape, before: Shape, new_experts: NewExperts = "fresh"
) -> dict[str, TensorSource]:
    """Finds for every tensor of `now.network` what it was in `before.network`.

    Tensors of constant gates are left out: they follow from the model's kind.

    Raises:
        ValueError: A gate's codes spell the numbers of experts, and they have other numbers now.
    """
    sources = {name: TensorSource(name) for name in now.network.state_dict()}
    towers = _places_of(now.tasks, before.tasks)
    for name in sources:
        part, _, rest = name.partition(".")
        feature = projected_feature(name)
        if feature is not None and f"{feature} projected[0]" not in before.inputs:
            sources[name] = TensorSource(None)
        if part == "towers":
            number, _, tensor = rest.partition(".")
            old = int(towers[int(number)])
            sources[name] = TensorSource(None if old == NEW else f"towers.{old}.{tensor}")
        if part == "interaction":  # a row of each task
            sources[name] = TensorSource(name, {0: towers})
    # By name, not by place: features come and go. Only the first level reads x
    columns = _places_of(now.inputs, before.inputs)
    if now.network.crossing is not None:
        for tensor, dims in now.network.crossing.input_dims.items():
            name = f"crossing.{tensor}"
            sources[name] = TensorSource(name, dict.fromkeys(dims, columns), dims[-1])
    for number, (level, old_level) in enumerate(zip(now.levels, before.levels, strict=False)):
        prefix = f"levels.{number}.mixture"
        for name, source in _level_sources(level, old_level, prefix, new_experts):
            sources[name] = source
        if number == 0:
            for name, dims in _input_dims(level, len(now.inputs)):
                places = {**sources[f"{prefix}.{name}"].places, **dict.fromkeys(dims, columns)}
                sources[f"{prefix}.{name}"] = TensorSource(f"{prefix}.{name}", places, dims[-1])
    return {name: sources[name] for name in sources.keys() - _constants(now.network)}


def own_sources(
    sources: Mapping[str, TensorSource], layout: Mapping[str, Sequence[Shard]]
) -> dict[str, TensorSource]:
    """Cuts the sources as experts are sharded, to those of what this rank holds.

    Args:
        sources: Of the whole tensors.
        layout: This rank's shards, along the dimension of experts, the first one.

    Example:
        >>> import torch
        >>> source = TensorSource("w", {0: np.array([2, 0, NEW])})
        >>> layout = {"w": [Shard(torch.zeros(2, 4), (3, 4), (1, 0))]}
        >>> own_sources({"w": source}, layout)["w"].places[0].tolist()
        [0, -1]
    """
    own = dict(sources)
    for name, shards in layout.items():
        if name in own:
            experts = np.concatenate(
                [np.arange(s.region[0].start, s.region[0].stop) for s in shards]
            )
            places = own[name].places
            own[name] = replace(own[name], places={**places, 0: places[0][experts]})
    return own


def _places_of(now: Sequence[str], before: Sequence[str]) -> np.ndarray:
    """Returns for each name its earlier place, or `NEW`.

    Example:
        >>> _places_of(["click", "like", "buy"], ["click", "buy"]).tolist()
        [0, -1, 1]
    """
    places = {name: place for place, name in enumerate(before)}
    return np.array([places.get(name, NEW) for name in now], np.int64)


def expert_places(now: Sequence[str], before: Sequence[str], new_experts: NewExperts) -> np.ndarray:
    """Returns earlier places of experts; with `copy`, new ones copy their owner's kept ones.

    Example:
        >>> now = ["click expert 1", "click expert 2", "shared expert 1"]
        >>> expert_places(now, ["click expert 1", "shared expert 1"], "copy").tolist()
        [0, 0, 1]
    """
    places = _places_of(now, before)
    if new_experts == "fresh":
        return places
    filled = places.copy()
    owners = [name.rpartition(" ")[0] for name in now]
    for owner in set(owners):
        mine = [e for e, name in enumerate(owners) if name == owner]
        kept = [places[e] for e in mine if places[e] != NEW]
        fresh = [e for e in mine if places[e] == NEW]
        for turn, e in enumerate(fresh if kept else []):
            filled[e] = kept[turn % len(kept)]
    return filled


def _level_sources(
    level: Level, before: Level, prefix: str, new_experts: NewExperts
) -> Iterator[tuple[str, TensorSource]]:
    """Gates and experts of one level. Every tensor of a gate begins with a dimension of gates."""
    experts = expert_places(level.expert_names, before.expert_names, new_experts)
    gates = _places_of(level.gate_names, before.gate_names)
    _refuse_moved(level, experts)
    dims, ranges = expert_dims(level.mixture), expert_ranges(level.mixture)
    old_ranges = expert_ranges(before.mixture)
    for name in level.mixture.state_dict():
        places: dict[int, np.ndarray] = {}
        if name.startswith("gate."):
            places[0] = gates
        dim = dims.get(name)
        if dim is not None:
            places[dim] = experts
        if name in ranges:
            places[dim or 0] = _within(experts, ranges[name], old_ranges.get(name, range(0)))
        yield f"{prefix}.{name}", TensorSource(f"{prefix}.{name}", places)


def _within(experts: np.ndarray, own: range, old: range) -> np.ndarray:
    """The places of a kind's experts among the earlier ones of that kind."""
    places = experts[own.start : own.stop]
    return np.where((places >= old.start) & (places < old.stop), places - old.start, NEW)


def _refuse_moved(level: Level, experts: np.ndarray) -> None:
    moved = (experts != NEW) & (experts != np.arange(len(experts)))
    if moved.any() and any(isinstance(module, DSelectKGate) for module in level.modules()):
        name = level.expert_names[int(moved.argmax())]
        raise ValueError(
            f"{name!r} would get another number, which the codes of model.gate.kind dselect_k "
            "spell; add tasks and experts with another gate"
        )


def _input_dims(level: Level, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of the first level that have dimensions of the network's inputs, and which.

    By the last of them inputs are read.
    """
    for name, module in level.mixture.named_modules():
        if isinstance(module, MLPExperts | GateLogits) and module.input_dim == width:
            yield f"{name}.weights.0", (1 if isinstance(module, MLPExperts) else 2,)
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

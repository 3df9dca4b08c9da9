"""Sources of a network's entries in the network of an earlier run.

Entries are told by their names (the task of a gate, `shared expert 2`, the feature of an input
column), never by position: `mmoe.mixture.axes`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.mixture.axes import Entry, TensorAxes, axes_of, owners_of
from mmoe.mixture.resize_experts import NewExperts
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.models.interactions.add import Columns, added_names
from mmoe.models.network import Level, MixtureNetwork

NEW = -1  # the place of an entry that the earlier network did not have
# Adam's second moments. Zeros would make a new entry's first steps several times too large, because
# the correction for that (by the number of steps) is over in a tensor that has been trained.
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


@dataclass(frozen=True)
class TensorSource:
    """Source of a tensor's entries in an earlier one, dimension by dimension.

    Attributes:
        name: In the earlier network; None: there was none.
        places: By dimension, for each entry its earlier place or `NEW`; other dimensions are equal.
        input_dim: The dimension of inputs, if there is one. Kept gates and experts read new inputs
            with weights of zero, so that they compute what they did.
        domain_dim: That of domains, if there is one; new ones begin as the mean of the earlier ones
            does, by which their rows were scored before.
    """

    name: str | None
    places: dict[int, np.ndarray] = field(default_factory=dict)
    input_dim: int | None = None
    domain_dim: int | None = None

    @property
    def carries(self) -> bool:
        """Whether any of its entries were in the earlier network."""
        kept = all((place != NEW).any() for place in self.places.values() if len(place))
        return self.name is not None and (kept or self.domain_dim is not None)


def places_of(now: Sequence[object], before: Sequence[object]) -> np.ndarray:
    """Returns for each name its earlier place, or `NEW`.

    Example:
        >>> places_of(["click", "like", "buy"], ["click", "buy"]).tolist()
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
    places = places_of(now, before)
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


def _network_names(config: RunConfig, encoder: FeatureEncoder) -> Mapping[str, Sequence[str]]:
    """Returns the names of what a run's network has: `MixtureNetwork.named_parts` says of what."""
    columns, every = Columns.of(encoder, config.model.bias), Columns.of(encoder)
    count, read = len(columns.numbers), set(columns.names)
    return {
        "tasks": [task.name for task in config.tasks],
        "inputs": columns.names,
        "numbers": columns.names[:count],
        "embeddings": columns.names[count:],
        "added": added_names(config, columns),
        "displayed": [name for name in every.names if name not in read],
        "domains": () if encoder.domains is None else encoder.domains.names,
    }


@dataclass(frozen=True)
class NamedNetwork:
    """A network, and the names of what it has.

    Attributes:
        network: The module.
        names: As `_network_names` returns them.
    """

    network: MixtureNetwork
    names: Mapping[str, Sequence[str]]

    @classmethod
    def of(
        cls, network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder
    ) -> "NamedNetwork":
        """Returns that of a run."""
        return cls(network, _network_names(config, encoder))

    def axes(self) -> dict[str, TensorAxes]:
        """Names the entries of its tensors."""
        return axes_of(self.network, self.names)


def tensor_sources(
    now: NamedNetwork,
    before: NamedNetwork,
    origins: Sequence[Mapping[str, str]] | None = None,
    *,
    regroups: bool = False,
) -> dict[str, TensorSource]:
    """Finds for every tensor of `now.network` what it was in `before.network`.

    Args:
        now: The network that takes entries over.
        before: Where they come from.
        origins: By level, of each expert that is not made anew, which one it was or is a copy of;
            None: what is called as it is.
        regroups: Whether experts that came in one stage may lack some that they came with.

    Raises:
        ValueError: Gates or experts that lie in one tensor did not there, though either came in
            stages.
    """
    axes, old = now.axes(), _Earlier(before.axes())
    together, sources = _Earlier(axes), {}
    origins = expert_origins(now, before) if origins is None else origins
    levels = zip(now.network.levels, before.network.levels, strict=False)
    kept: dict[Hashable, Mapping[str, str]] = dict(enumerate(origins))
    grown: dict[Hashable, bool] = dict(enumerate(any(map(_is_staged, both)) for both in levels))
    for name, own in axes.items():
        level = own.owner("levels")
        staged = level in grown and (grown[level] or own.of_gate)
        alike = [one for one, _ in together.of(own.path)]
        if staged and not regroups:
            old.check_groups(own, alike)
        sources[name] = old.source(name, own, kept.get(level, {}), alike, staged)
    return sources


class _Earlier:
    """The tensors of a network, to be found by what they are called and whose entries they have."""

    def __init__(self, axes: Mapping[str, TensorAxes]) -> None:
        self._by_path: dict[tuple[str | Entry, ...], list[tuple[str, TensorAxes]]] = {}
        self._owners = set[tuple[str | Entry, ...]]()
        for name, own in axes.items():
            self._by_path.setdefault(own.path, []).append((name, own))
            self._owners |= set(owners_of(own.path))

    def of(self, path: tuple[str | Entry, ...]) -> list[tuple[str, TensorAxes]]:
        """Lists the tensors called so: several where gates or experts came in stages."""
        return self._by_path.get(path, [])

    def source(
        self,
        name: str,
        own: TensorAxes,
        origins: Mapping[str, str],
        alike: Sequence[str],
        staged: bool,
    ) -> TensorSource:
        """Finds what a later tensor was.

        Args:
            name: Of that tensor, which stands for what is missing where it should be.
            own: Its entries.
            origins: Of each expert that is not made anew, which one it was, or is a copy of.
            alike: Names of the tensors that are called as it is, one after another: those of
                several kinds of experts, which are told by their turn, or of several stages.
            staged: Whether it may be of these.
        """
        path = tuple(_renamed(part, origins) for part in own.path)
        there = self.of(path)
        if not there:
            known = own.dim("domains") is None and set(owners_of(path)) <= self._owners
            return TensorSource(name if known else None)
        if len(alike) > 1 or len(there) > 1:
            if 0 in own.dims and (staged or len(alike) != len(there)):
                there = [one for one in there if _shares(own, one[1], origins)]
            else:
                turn = alike.index(name)
                there = there[turn : turn + 1]
            if not there:
                return TensorSource(None)
        old_name, old = there[0]
        places = {
            dim: places_of([_origin(kind, e, origins) for e in entries], _along(old, dim))
            for dim, (kind, entries) in own.dims.items()
        }
        return TensorSource(old_name, places, own.dim("inputs"), own.dim("domains"))

    def check_groups(self, own: TensorAxes, alike: Sequence[str]) -> None:
        """Refuses gates or experts that lie in one tensor, and of which some alone did before.

        Raises:
            ValueError: Names them.
        """
        there, names = self.of(own.path), own.dims.get(0, ("", ()))[1]
        if len(alike) < 2 and len(there) < 2:
            return
        for _, old in there:
            if names != _along(old, 0) and set(names) & set(_along(old, 0)):
                some = [str(name) for name in names[:4]]
                raise ValueError(
                    f"{', '.join(some)}{', …' * (len(names) > 4)} lie together here, but did not "
                    "there (model.stages); go on with that run's own config, or freeze its experts "
                    "and gates"
                )


def _along(axes: TensorAxes, dim: int) -> tuple[object, ...]:
    return axes.dims[dim][1] if dim in axes.dims else ()


def _origin(kind: str, name: object, origins: Mapping[str, str]) -> object:
    return origins.get(str(name)) if kind == "experts" else name


def _renamed(part: str | Entry, origins: Mapping[str, str]) -> str | Entry:
    """Returns the name that stood for it in the earlier network."""
    if isinstance(part, str) or part.kind != "experts":
        return part
    return Entry("experts", origins.get(str(part.name)))


def _shares(own: TensorAxes, old: TensorAxes, origins: Mapping[str, str]) -> bool:
    """Whether gates or experts of a tensor were those of another, which lay together."""
    kind, names = own.dims[0]
    return bool({_origin(kind, name, origins) for name in names} & set(_along(old, 0)))


def expert_origins(
    now: NamedNetwork, before: NamedNetwork, new_experts: NewExperts = "fresh"
) -> list[dict[str, str]]:
    """Returns by level which expert of `before` each one was, or begins as a copy of.

    Raises:
        ValueError: Codes of gates spell the experts' numbers, and one has another now.
    """
    levels = zip(now.network.levels, before.network.levels, strict=False)
    return [_origins(level, old, new_experts) for level, old in levels]


def _origins(level: Level, before: Level, new_experts: NewExperts) -> dict[str, str]:
    """Returns the earlier level's expert that each one was, or begins as a copy of.

    A copied one is of the same owner, and in turn; where experts came in stages, those that came
    together are copies of the first that did.
    """
    now, old = level.expert_names, before.expert_names
    if new_experts == "copy" and _is_staged(level):
        kept = {name: name for name in now if name in old}
        for names in _pools(level):
            if not kept.keys() & set(names):
                first = _pools(before)[0]
                kept |= {name: first[i % len(first)] for i, name in enumerate(names)}
        return kept
    places = expert_places(now, old, new_experts).tolist()
    moved = next((e for e, place in enumerate(places) if place not in (NEW, e)), None)
    gates = [traits_of(part, GateTraits) for part in level.mixture.gate.modules()]
    if moved is not None and any(gate.spells_numbers for gate in gates):
        raise ValueError(
            f"{now[moved]!r} would get another number, which the codes of model.gate.kind "
            "dselect_k spell; add tasks and experts with another gate"
        )
    return {name: old[place] for name, place in zip(now, places, strict=True) if place != NEW}


def _is_staged(level: Level) -> bool:
    """Whether experts of a level came in several stages."""
    return bool(level.mixture.experts.expert_stages)


def _pools(level: Level) -> list[tuple[str, ...]]:
    """Names of the experts that came together."""
    names = level.expert_names
    return [names[own.start : own.stop] for own in level.mixture.experts.expert_stages] or [names]


def fits(own: Sequence[int], old: Sequence[int], source: TensorSource) -> bool:
    """Returns whether shapes differ in mapped dimensions alone, with no place beyond `old`."""
    if len(own) != len(old):
        return False
    for dim, (size, old_size) in enumerate(zip(own, old, strict=True)):
        places = source.places.get(dim)
        if places is None and size != old_size:
            return False
        if places is not None and (len(places) != size or int(places.max(initial=NEW)) >= old_size):
            return False
    return True


def moved(own: Tensor, old: Tensor, source: TensorSource, new_input: float = 0.0) -> Tensor:
    """Returns `old`'s entries in their new places, and `own`'s where there are none.

    Of domains that are new it is the mean of the earlier ones.

    Args:
        own: Values of entries that are new.
        old: The earlier tensor, on the CPU; `fits`.
        source: Where the entries stood.
        new_input: Value of kept gates and experts for new inputs.

    Example:
        >>> source = TensorSource("w", {1: np.array([1, NEW])}, input_dim=1)
        >>> moved(torch.ones(1, 2), torch.tensor([[5.0, 6.0]]), source).tolist()
        [[6.0, 0.0]]
    """
    if not source.places:
        return old.clone()
    places = {dim: source.places.get(dim, np.arange(size)) for dim, size in enumerate(own.shape)}
    if source.domain_dim is not None:  # the mean stands behind them, for those that are new
        dim, count = source.domain_dim, old.shape[source.domain_dim]
        old = torch.cat([old, old.mean(dim, keepdim=True)], dim)
        places[dim] = np.where(places[dim] == NEW, count, places[dim])
    kept = {dim: np.flatnonzero(place != NEW) for dim, place in places.items()}
    result = own.detach().cpu().clone().numpy()
    if source.input_dim is not None:
        everything = {**kept, source.input_dim: np.arange(own.shape[source.input_dim])}
        result[np.ix_(*everything.values())] = new_input
    olds = [place[kept[dim]] for dim, place in places.items()]
    result[np.ix_(*kept.values())] = old.numpy()[np.ix_(*olds)]
    return torch.from_numpy(result)


def moved_moments(
    own: Tensor, moments: Mapping[str, Tensor], source: TensorSource
) -> dict[str, Tensor]:
    """Returns the optimizer state of a parameter that kept some of its entries.

    New entries start with no first moment, and with the mean second moment of the kept ones.

    Args:
        own: The parameter.
        moments: Its earlier state by key; what has not the parameter's shape (the number of steps)
            is kept as it is.
        source: Where the parameter's entries stood.
    """
    result = {}
    for key, old in moments.items():
        if old.dim() == 0:
            result[key] = old.clone()
            continue
        fill = float(old.mean()) if key in _SECOND_MOMENTS else 0.0
        result[key] = moved(torch.full(own.shape, fill, dtype=old.dtype), old, source, fill)
    return result

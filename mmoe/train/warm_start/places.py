"""Sources of a network's entries in the network of an earlier run.

Entries are told by their names (the task of a gate, `shared expert 2`, the feature of an input
column), never by position: `mmoe.mixture.axes`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch import nn

from mmoe.config import RunConfig
from mmoe.datasets import FeatureEncoder
from mmoe.mixture import GateTraits, traits_of
from mmoe.mixture.axes import Entry, TensorAxes, axes_of, owners_of
from mmoe.mixture.gates.joined import modules_of
from mmoe.mixture.gates.learned import ROUTED_SHARE, SHARED_LOGITS
from mmoe.mixture.moves import NewExperts, TensorSource, check_said, places_of
from mmoe.models import Level, MixtureNetwork
from mmoe.models.columns import Columns
from mmoe.models.interactions.add import added_names


@dataclass(frozen=True)
class NamedNetwork:
    """A network, and the names of what it has.

    Attributes:
        network: The module.
        names: Of its tasks, inputs, …; `MixtureNetwork.named_parts` says of what.
    """

    network: MixtureNetwork
    names: Mapping[str, Sequence[str]]

    @classmethod
    def of(
        cls, network: MixtureNetwork, config: RunConfig, encoder: FeatureEncoder
    ) -> "NamedNetwork":
        """Returns that of a run."""
        columns, every = Columns.of(encoder, config.model.bias), Columns.of(encoder)
        count, read = len(columns.numbers), set(columns.names)
        names = {
            "tasks": [task.name for task in config.tasks],
            "inputs": columns.names,
            "numbers": columns.names[:count],
            "embeddings": columns.names[count:],
            "added": added_names(config, columns),
            "displayed": [name for name in every.names if name not in read],
            "domains": () if encoder.domains is None else encoder.domains.names,
        }
        return cls(network, names)

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
            stages; or experts change of a gate that does not say where it has them.
    """
    axes, old = now.axes(), _Earlier(before.axes())
    together, sources = _Earlier(axes), {}
    origins = expert_origins(now, before) if origins is None else origins
    levels = zip(now.network.levels, before.network.levels, strict=False)
    kept: dict[Hashable, Mapping[str, str]] = dict(enumerate(origins))
    grown: dict[Hashable, bool] = {}
    for number, (level, earlier) in enumerate(levels):
        grown[number] = _is_staged(level) or _is_staged(earlier)
        if not grown[number] and level.expert_names != earlier.expert_names:
            check_said(level.mixture.gate, f"levels.{number}.mixture.gate.", axes)
    adding = {own.owner("levels") for own in axes.values() if own.path[-1] == ROUTED_SHARE}
    for name, own in axes.items():
        level = own.owner("levels")
        staged = level in grown and (grown[level] or own.of_gate)
        alike = [one for one, _ in together.of(own.path)]
        of_level = kept.get(level, {})
        if own.of_gate and level in adding:
            # Copies that gates want alike would be picked together, and stay alike
            of_level = {
                e: old for e, old in of_level.items() if e == old or of_level.get(old) != old
            }
        if staged and not regroups:
            old.check_groups(own, alike)
        sources[name] = old.source(name, own, of_level, alike, staged)
    return sources


class _Earlier:
    """Tensors of the earlier network, found by name and by the entries that they hold."""

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
            if path[-1] in (ROUTED_SHARE, SHARED_LOGITS):
                return TensorSource(None)
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
        """Refuses gates or experts of one tensor where only some of them were in it before.

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
    kept, staged = {name: name for name in now if name in old}, _is_staged(level)
    for names in _together(level) if new_experts == "copy" else ():
        mine = [name for name in names if name in kept]
        # Experts that came in a stage of its own have none that could be copied there
        sources = mine if not staged else [] if mine else _together(before)[0]
        fresh = [name for name in names if name not in kept] if sources else []
        kept |= {name: sources[turn % len(sources)] for turn, name in enumerate(fresh)}
    if staged and new_experts == "copy":
        return kept
    numbers = ((e, name) for e, name in enumerate(now) if name in kept)
    moved = next((name for e, name in numbers if old.index(kept[name]) != e), None)
    gates = [traits_of(part, GateTraits) for part in level.mixture.gate.modules()]
    if moved is not None and any(gate.spells_numbers for gate in gates):
        raise ValueError(
            f"{moved!r} would get another number, which the codes of model.gate.kind dselect_k "
            "spell; add tasks and experts with another gate"
        )
    return kept


def _is_staged(level: Level) -> bool:
    """Whether experts of a level came in several stages."""
    return bool(level.mixture.experts.expert_stages)


def _together(level: Level) -> list[Sequence[str]]:
    """Names of the experts that came in a stage each; where there are none, of an owner each."""
    names = level.expert_names
    if stages := level.mixture.experts.expert_stages:
        return [names[own.start : own.stop] for own in stages]
    return [list(own) for _, own in groupby(names, lambda name: name.rpartition(" ")[0])]


def _always(level: Level) -> int:
    """Returns how many experts every row mixes, of gates that say it."""
    return sum(cast(Any, part).options.always for part in modules_of(level.mixture.gate))


@torch.no_grad()
def begin_as_before(
    networks: Sequence[nn.Module],
    now: NamedNetwork,
    before: NamedNetwork,
    sources: Mapping[str, TensorSource],
) -> list[str]:
    """Lets what gates have by a new setting change nothing of what they say of kept experts.

    Weights that gates share begin with 0 for these. Where all experts of softmax gates go on as
    those of every row, picks add nothing at first.

    Args:
        networks: The new network and its average; changed in place.
        now: The new network, with its names.
        before: The earlier one.
        sources: Of the new tensors; those without a name are new.

    Returns:
        What begins so, in words.
    """
    new = [name for name, source in sources.items() if source.name is None]
    said: list[str] = []
    levels = zip(now.network.levels, before.network.levels, strict=False)
    for j, (level, old) in enumerate(levels):
        kept = [name in old.expert_names for name in level.expert_names]
        weighs_all = traits_of(old.mixture.gate, GateTraits).k is None
        for name in (name for name in new if name.startswith(f"levels.{j}.mixture.gate.")):
            tensors = [network.state_dict()[name] for network in networks]
            if name.endswith(SHARED_LOGITS):
                for tensor in tensors:
                    tensor[kept[: len(tensor)]] = 0
            elif name.endswith(ROUTED_SHARE) and weighs_all and _always(level) == sum(kept):
                for tensor in tensors:
                    tensor.zero_()
                said.append("what picks add to the mix of every row's experts (0 at first)")
    return said

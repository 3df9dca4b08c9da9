"""Levels of a network that grew: parts that came together are told by their names."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mmoe.mixture import FixedGate
from mmoe.mixture.experts.staged import StagedExperts
from mmoe.mixture.gates.joined import JoinedGates
from mmoe.mixture.requests.experts import RequestExperts
from mmoe.models.network import Level


class _Part(NamedTuple):
    """Gates or experts of one module of a level.

    Attributes:
        prefix: Of its tensors, `gate.gates.0.` or `experts.`.
        names: Of its gates or experts.
    """

    prefix: str
    names: tuple[str, ...]


def is_staged(level: Level) -> bool:
    """Returns whether gates or experts of a level came in several stages."""
    experts = level.mixture.experts
    staged = isinstance(experts, StagedExperts) and not isinstance(experts, RequestExperts)
    return staged or isinstance(level.mixture.gate, JoinedGates)


def staged_names(level: Level, before: Level) -> Iterator[tuple[str, str | None]]:
    """Yields the name of each tensor of a level, and what it was called before; None: it is new.

    Raises:
        ValueError: Gates or experts that came together there are not together here.
    """
    for now, old in (
        (_gates(level), _gates(before)),
        (_experts(level), _experts(before)),
    ):
        for part in now:
            match = next((one for one in old if one.names == part.names), None)
            known = {name for one in old for name in one.names}
            if match is None and known.intersection(part.names):
                raise ValueError(
                    f"{', '.join(part.names[:4])}{', …' * (len(part.names) > 4)} lie together "
                    "here, but did not there (model.stages); go on with that run's own config, or "
                    "freeze its experts and gates"
                )
            for name in level.mixture.state_dict():
                if name.startswith(part.prefix):
                    rest = name.removeprefix(part.prefix)
                    yield name, None if match is None else f"{match.prefix}{rest}"


def copied_names(level: Level, before: Level) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields tensors of new experts, and of which experts before they begin as copies.

    New ones that read other columns than those have no copies.
    """
    if not isinstance(level.mixture.experts, StagedExperts):
        return
    old = _experts(before)
    known = {name for one in old for name in one.names}
    sizes = before.mixture.state_dict()
    for part in _experts(level):
        if known.intersection(part.names) or not old:
            continue
        source = old[0]
        turns = np.arange(len(part.names)) % len(source.names)
        for name in level.mixture.state_dict():
            if name.startswith(part.prefix):
                origin = f"{source.prefix}{name.removeprefix(part.prefix)}"
                if origin in sizes:
                    yield name, origin, turns


def _gates(level: Level) -> Sequence[_Part]:
    gate = level.mixture.gate
    if isinstance(gate, FixedGate):
        return []
    if not isinstance(gate, JoinedGates):
        return [_Part("gate.", level.gate_names)]
    return [
        _Part(f"gate.gates.{i}.", tuple(level.gate_names[g] for g in group.places))
        for i, group in enumerate(gate.groups)
    ]


def _experts(level: Level) -> Sequence[_Part]:
    experts = level.mixture.experts
    if not isinstance(experts, StagedExperts):
        return [_Part("experts.", level.expert_names)]
    return [
        _Part(f"experts.pools.{i}.", level.expert_names[own.start : own.stop])
        for i, own in enumerate(experts.ranges)
    ]

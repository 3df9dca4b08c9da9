"""Tensors whose entries come from others: those of other experts, tasks, inputs or domains.

What the dimensions of a tensor are, modules say (`axes.py`). Here is what becomes of its entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mmoe.mixture.axes import TensorAxes, axes_of
from mmoe.mixture.experts.mixed import MixedExperts
from mmoe.mixture.multi_gate import MultiGateMixture, mixtures_in
from mmoe.mixture.traits import GateTraits, traits_of

NewExperts = Literal["fresh", "copy"]

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
        old: The earlier tensor; `fits`. The result is where it is, and of `own`'s type.
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
    # Copied: it is written to, and `own` is the caller's
    result = own.detach().to(old.device, copy=True)
    if source.input_dim is not None:
        result[_mesh({**kept, source.input_dim: np.arange(own.shape[source.input_dim])})] = (
            new_input
        )
    olds = {dim: place[kept[dim]] for dim, place in places.items()}
    result[_mesh(kept)] = old[_mesh(olds)].to(result.dtype)
    return result


def _mesh(places: Mapping[int, np.ndarray]) -> tuple[Tensor, ...]:
    """Indices of every combination of places, one array a dimension, in the dimensions' order."""
    return tuple(map(torch.from_numpy, np.ix_(*places.values())))


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
        if old.dim() == 0:  # a count of steps, which all entries share
            result[key] = old.clone()
            continue
        fill = float(old.mean()) if key in _SECOND_MOMENTS else 0.0
        result[key] = moved(torch.full(own.shape, fill, dtype=old.dtype), old, source, fill)
    return result


def check_said(gate: nn.Module, prefix: str, axes: Mapping[str, TensorAxes]) -> None:
    """Refuses to move the experts of a gate that does not say where it has them.

    Args:
        gate: Of a mixture.
        prefix: Of the names of its tensors in `axes`, with the dot.
        axes: What is known of them.

    Raises:
        ValueError: Names the first tensor of which nobody speaks.
    """
    for name in gate.state_dict():
        of = axes.get(f"{prefix}{name}")
        if of is not None and not of.said:
            raise ValueError(
                f"{type(gate).__name__} does not say which dimensions of {prefix + name!r} are the "
                "experts', whose number or order changes; give it a method `axes`, which returns "
                'for example {"weights_GE": {0: "gates", 1: "experts"}}'
            )


class LoadReport(NamedTuple):
    """Report of what `load_experts` did with each tensor; `print` it.

    Attributes:
        before: Experts in the state.
        after: Experts in the layer.
        kept: Pairs (expert of the layer, expert of the state it was).
        new: Experts of the layer that the state did not have, with the expert each was copied
            from; None: it has the values that the layer had.
        dropped: Experts of the state that are gone.
        resized: Names of the tensors that have another size than in the state.
    """

    before: int
    after: int
    kept: tuple[tuple[int, int], ...]
    new: tuple[tuple[int, int | None], ...]
    dropped: tuple[int, ...]
    resized: tuple[str, ...]

    @classmethod
    def of(
        cls,
        before: int,
        sources: Sequence[int | None],
        filled: Sequence[int | None],
        resized: tuple[str, ...],
    ) -> "LoadReport":
        """Reports what each expert of the layer was, or, in `filled`, is a copy of."""
        kept = tuple((e, old) for e, old in enumerate(sources) if old is not None)
        new = tuple((e, filled[e]) for e, old in enumerate(sources) if old is None)
        dropped = tuple(sorted(set(range(before)) - {old for _, old in kept}))
        return cls(before, len(sources), kept, new, dropped, resized)

    def __str__(self) -> str:
        """Renders the report as one line."""
        kept = ", ".join(str(e) if e == old else f"{old} as {e}" for e, old in self.kept)
        new = ", ".join(
            f"{e} (initialised)" if old is None else f"{e} (copy of {old})" for e, old in self.new
        )
        return (
            f"{self.before} experts before, {self.after} now; kept: {kept or 'none'}; new: "
            f"{new or 'none'}; dropped: {', '.join(map(str, self.dropped)) or 'none'}"
        )


@torch.no_grad()
def load_experts(
    layer: nn.Module,
    state: Mapping[str, Tensor],
    *,
    sources: Sequence[int | None] | None = None,
    new_experts: NewExperts = "fresh",
) -> LoadReport:
    """Loads the state of a mixture that may have had fewer or more experts.

    Experts that both have are kept, with their place in the gates (columns of logits, biases);
    everything that does not depend on the number of experts is loaded as it is. A `FixedGate` then
    weighs its experts in proportion to what it held for each, and the sum is 1 again. A gate of
    your own has a method `axes`, which returns for example `{"weights_GE": {0: "gates", 1:
    "experts"}}`; tensors of a pool without it begin with the experts.

    Args:
        layer: A `MultiGateMixture` or `MoE`; changed in place.
        state: The `state_dict` of one that differs in the number of experts alone.
        sources: For each expert of the layer, its number in the state; None: it is new. Default:
            each keeps its number.
        new_experts: `fresh`: new experts and their gate columns keep the values that the layer has
            now; `copy`: they are copies of the state's experts, from number 0 on (upcycling).

    Returns:
        What was kept, made and dropped.

    Raises:
        ValueError: Names or shapes do not fit, a gate does not say what its dimensions are, or kept
            experts of a `DSelectKGate`, whose codes name them by number, would get another one. The
            layer is then unchanged.

    Example:
        >>> from mmoe.mixture import MLPExperts, MoE, load_experts
        >>> small, large = MoE(4, MLPExperts(2, 4, [3])), MoE(4, MLPExperts(3, 4, [3]))
        >>> print(load_experts(large, small.state_dict()))
        2 experts before, 3 now; kept: 0, 1; new: 2 (initialised); dropped: none

    Source: Komatsuzaki et al., "Sparse upcycling" (ICLR 2023), for copies as new experts.
    """
    prefix, mixture = _mixture_of(layer)
    pool, after, own = f"{prefix}experts.", len(mixture.experts), layer.state_dict()
    axes = _axes_of(layer, own, after)
    # Experts that are modules: the state may have more of them
    apart = any(of.owner("experts") is not None for of in axes.values())
    before = _experts_in(state, pool, axes, apart)
    sources = _check_sources(sources, before, after)
    filled = _filled(sources, before, new_experts)
    found = {name: _source(name, axes[name], filled) for name in own}
    _check_names(state, [source.name for source in found.values()], pool if apart else None)
    if before != after or sources != tuple(range(after)):
        check_said(mixture.gate, f"{prefix}gate.", axes)
        _check_numbers(mixture.gate, sources)
    olds = {name: state[source.name] for name, source in found.items() if source.name is not None}
    for name, old in olds.items():
        _check_shape(name, own[name], old, found[name], before, after)
    # Only now that nothing was refused: else the layer would be half another one
    for name, old in olds.items():
        own[name].copy_(moved(own[name], old, found[name]))
    resized = tuple(name for name, old in olds.items() if own[name].shape != old.shape)
    return LoadReport.of(before, sources, filled, resized)


def _axes_of(layer: nn.Module, own: Mapping[str, Tensor], experts: int) -> dict[str, TensorAxes]:
    """Returns the axes of a layer's tensors; a dimension of another size is not the experts'."""
    found = axes_of(layer, {"experts": range(experts)})
    for name, of in found.items():
        dim = of.dim("experts")
        if dim is not None and own[name].shape[dim] != experts:
            found[name] = replace(of, dims={d: kind for d, kind in of.dims.items() if d != dim})
    return found


def _mixture_of(layer: nn.Module) -> tuple[str, MultiGateMixture]:
    """Returns the mixture that a layer is or has, and what its tensors' names begin with."""
    for name, module in mixtures_in(layer):
        if name in ("", "mixture"):
            if isinstance(module.experts, MixedExperts):
                raise ValueError("layer: expected experts of one kind, got a pool of several kinds")
            return f"{name}.".lstrip("."), module
    raise ValueError(f"layer: expected a MultiGateMixture or MoE, got {type(layer).__name__}")


def _experts_in(
    state: Mapping[str, Tensor], prefix: str, axes: Mapping[str, TensorAxes], apart: bool
) -> int:
    """Counts the experts in a state, by the first tensor that has a dimension of them."""
    names = [name.removeprefix(prefix) for name in state if name.startswith(prefix)]
    if apart:
        numbers = [int(name.split(".")[0]) for name in names if name.split(".")[0].isdecimal()]
        found = max(numbers, default=-1) + 1
    else:
        dims = ((state[name], of.dim("experts")) for name, of in axes.items() if name in state)
        sizes = (old.shape[dim] for old, dim in dims if dim is not None and dim < old.dim())
        found = next(sizes, 0) if names else 0
    if not found:
        raise ValueError(
            f"state: expected the experts' tensors under {prefix!r}, got {', '.join(state) or '{}'}"
        )
    return found


def _check_sources(
    sources: Sequence[int | None] | None, before: int, after: int
) -> tuple[int | None, ...]:
    if sources is None:
        return tuple(e if e < before else None for e in range(after))
    sources = tuple(sources)
    if len(sources) != after or any(s is not None and not 0 <= s < before for s in sources):
        raise ValueError(
            f"sources: expected {after} numbers from 0 to {before - 1} or None, one per expert of "
            f"the layer, got {list(sources)}"
        )
    return sources


def _filled(
    sources: tuple[int | None, ...], before: int, new_experts: NewExperts
) -> tuple[int | None, ...]:
    """Sources in which new experts may be copies, of one after another."""
    if new_experts not in get_args(NewExperts):
        raise ValueError(f"new_experts: expected fresh or copy, got {new_experts!r}")
    if new_experts == "fresh":
        return sources
    turns = count()
    return tuple(next(turns) % before if old is None else old for old in sources)


def _source(name: str, axes: TensorAxes, sources: Sequence[int | None]) -> TensorSource:
    """Finds what a tensor of the layer was in the state."""
    places = np.array([NEW if source is None else source for source in sources], np.int64)
    owner, dim = axes.owner("experts"), axes.dim("experts")
    if owner is not None:
        place = int(places[cast(int, owner)])
        parts = (part if isinstance(part, str) else str(place) for part in axes.path)
        return TensorSource(None if place == NEW else ".".join(parts))
    return TensorSource(name, {} if dim is None else {dim: places})


def _check_names(
    state: Mapping[str, Tensor], names: Sequence[str | None], spare: str | None
) -> None:
    """Refuses tensors that only one of both has, but for those whose names begin with `spare`."""
    missing = [name for name in names if name is not None and name not in state]
    if missing:
        raise ValueError(f"state: expected a tensor {missing[0]!r}, got none")
    expected = set(names)
    for name in state:
        if name not in expected and not (spare is not None and name.startswith(spare)):
            raise ValueError(f"state: expected only the layer's tensors, got {name!r} as well")


def _check_numbers(gate: nn.Module, sources: Sequence[int | None]) -> None:
    """Refuses to renumber the experts of gates that learned their numbers."""
    moved = [(e, old) for e, old in enumerate(sources) if old not in (None, e)]
    gates = [traits_of(part, GateTraits) for part in gate.modules()]
    if moved and any(gate.spells_numbers for gate in gates):
        raise ValueError(
            "sources: expected every kept expert of a DSelectKGate under its old number, which "
            f"its codes spell, got {moved[0][1]} as {moved[0][0]}"
        )


def _check_shape(
    name: str, own: Tensor, old: Tensor, source: TensorSource, before: int, after: int
) -> None:
    """Refuses a tensor of the state that differs in more than the number of experts."""
    sizes = [before if dim in source.places else size for dim, size in enumerate(own.shape)]
    if list(old.shape) != sizes or not fits(own.shape, old.shape, source):
        raise ValueError(
            f"state: expected {name!r} of shape {list(own.shape)}, or with {before} in place of "
            f"{after} for the experts, got {list(old.shape)}"
        )

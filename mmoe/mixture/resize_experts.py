"""Loads weights of a mixture into one with another number of experts."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import TensorAxes, axes_of
from mmoe.mixture.experts.mixed import MixedExperts
from mmoe.mixture.multi_gate import mixtures_in
from mmoe.mixture.traits import GateTraits, traits_of

NewExperts = Literal["fresh", "copy"]


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
    weighs its experts in proportion to what it held for each, and the sum is 1 again. Of a gate or
    pool of your own, the dimension of experts is told by its size, or by a method `axes`, which
    returns for example `{"weights_GE": {0: "gates", 1: "experts"}}`.

    Args:
        layer: A `MultiGateMixture` or `MoE`, changed in place.
        state: The `state_dict` of one that differs in the number of experts alone.
        sources: For each expert of the layer, its number in the state, or None for a new one;
            default: expert e is what it was, as far as there are that many.
        new_experts: `fresh`: new experts and their gate columns keep the values that the layer has
            now; `copy`: they are copies of the state's experts, from number 0 on (upcycling).

    Returns:
        What was kept, made and dropped.

    Raises:
        ValueError: Names or shapes that do not fit, a tensor that cannot be resized, or kept
            experts of a `DSelectKGate` whose number, by which its codes name them, would change;
            the layer is then unchanged.

    Example:
        >>> from mmoe.mixture import MoE, load_experts, mlp_experts
        >>> small, large = MoE(4, mlp_experts(2, 4, [3])), MoE(4, mlp_experts(3, 4, [3]))
        >>> print(load_experts(large, small.state_dict()))
        2 experts before, 3 now; kept: 0, 1; new: 2 (initialised); dropped: none

    Source: Komatsuzaki et al., "Sparse upcycling" (ICLR 2023), for copies as new experts.
    """
    prefix, after = _pool_of(layer)
    own, axes = layer.state_dict(), axes_of(layer, {"experts": range(after)})
    # Experts that are modules, of which the state may have some that the layer does without
    apart = any(of.owner("experts") is not None for of in axes.values())
    before = _experts_in(state, prefix, apart)
    sources = _check_sources(sources, before, after)
    filled = _filled(sources, before, new_experts)
    names = {name: _name_before(name, axes[name], filled) for name in own}
    _check_names(state, names, prefix if apart else None)
    _check_numbers(layer, sources)
    olds = {name: state[old] for name, old in names.items() if old is not None}
    values = {
        name: _resized(name, axes[name], own[name], old, before, filled, prefix)
        for name, old in olds.items()
    }
    # Only now that nothing was refused: else the layer would be half another one
    for name, value in values.items():
        own[name].copy_(value)
    resized = tuple(name for name, old in olds.items() if own[name].shape != old.shape)
    return LoadReport.of(before, sources, filled, resized)


def _pool_of(layer: nn.Module) -> tuple[str, int]:
    """The name before the pool's tensors, and how many experts it has."""
    for name, module in mixtures_in(layer):
        if name in ("", "mixture"):
            if isinstance(module.experts, MixedExperts):
                raise ValueError("layer: expected experts of one kind, got a pool of several kinds")
            return f"{name}.experts.".lstrip("."), len(module.experts)
    raise ValueError(f"layer: expected a MultiGateMixture or MoE, got {type(layer).__name__}")


def _experts_in(state: Mapping[str, Tensor], prefix: str, apart: bool) -> int:
    names = [name.removeprefix(prefix) for name in state if name.startswith(prefix)]
    if apart:
        numbers = [int(name.split(".")[0]) for name in names if name.split(".")[0].isdecimal()]
        found = max(numbers, default=-1) + 1
    else:
        found = state[prefix + names[0]].shape[0] if names and state[prefix + names[0]].dim() else 0
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


def _name_before(name: str, axes: TensorAxes, sources: Sequence[int | None]) -> str | None:
    """The tensor's name in the state; None for a new expert's own tensor."""
    owner = axes.owner("experts")
    if owner is None:
        return name
    source = sources[cast(int, owner)]
    if source is None:
        return None
    return ".".join(part if isinstance(part, str) else str(source) for part in axes.path)


def _check_names(
    state: Mapping[str, Tensor], names: Mapping[str, str | None], spare: str | None
) -> None:
    """Refuses tensors that only one of both has, but for those whose names begin with `spare`."""
    missing = [name for name in names.values() if name is not None and name not in state]
    if missing:
        raise ValueError(f"state: expected a tensor {missing[0]!r}, got none")
    expected = set(names.values())
    for name in state:
        if name not in expected and not (spare is not None and name.startswith(spare)):
            raise ValueError(f"state: expected only the layer's tensors, got {name!r} as well")


def _check_numbers(layer: nn.Module, sources: Sequence[int | None]) -> None:
    """Refuses to renumber the experts of gates that learned their numbers."""
    moved = [(e, old) for e, old in enumerate(sources) if old not in (None, e)]
    parts = (part for _, mixture in mixtures_in(layer) for part in mixture.gate.modules())
    gates = [traits_of(part, GateTraits) for part in parts]
    if moved and any(gate.spells_numbers for gate in gates):
        raise ValueError(
            "sources: expected every kept expert of a DSelectKGate under its old number, which "
            f"its codes spell, got {moved[0][1]} as {moved[0][0]}"
        )


def _resized(
    name: str,
    axes: TensorAxes,
    own: Tensor,
    old: Tensor,
    before: int,
    sources: Sequence[int | None],
    prefix: str,
) -> Tensor:
    """The state's tensor with one entry per expert of the layer, in its place.

    Where a gate or pool says nothing, the dimension of experts is the one whose sizes are their
    numbers; in a pool's tensors the first.

    Args:
        name: In the layer.
        axes: What is known of its dimensions.
        own: The layer's tensor, whose entries new experts keep.
        old: The state's.
        before: Experts in the state.
        sources: For each expert of the layer, which of them it was.
        prefix: Of the names of a pool's tensors.
    """
    after, alike = len(sources), own.shape == old.shape
    dims = [dim for dim in range(own.dim()) if _differ_in(own, old, dim, after, before)]
    if axes.said or axes.owner("experts") is not None:
        dim = axes.dim("experts")
        fits = alike if dim is None else dim in dims
    else:
        dims = [0] if name.startswith(prefix) and 0 in dims else dims
        unmoved = before == after and list(sources) == list(range(before))
        dim = None if alike and (unmoved or not dims) else next(iter(dims), None)
        fits = len(dims) == 1 if dim is not None else alike
    if not fits:
        raise ValueError(
            f"state: expected {name!r} of shape {list(own.shape)}, or with {before} in place of "
            f"{after} for the experts, got {list(old.shape)}"
        )
    if dim is None:
        return old
    new = [e for e, source in enumerate(sources) if source is not None]
    entries = old.index_select(dim, torch.tensor([sources[e] for e in new], device=old.device))
    places = torch.tensor(new, device=own.device)
    return own.clone().index_copy_(dim, places, entries.to(own.device, own.dtype))


def _differ_in(own: Tensor, old: Tensor, dim: int, after: int, before: int) -> bool:
    """Returns whether dimension `dim` can be the experts': all others are equal."""
    if own.dim() != old.dim() or (own.shape[dim], old.shape[dim]) != (after, before):
        return False
    return own.shape[:dim] + own.shape[dim + 1 :] == old.shape[:dim] + old.shape[dim + 1 :]

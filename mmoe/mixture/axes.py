"""Named axes: which experts, gates, tasks, inputs or domains the entries of a tensor belong to.

A module says it once. Everything that moves entries of tensors by name loops over `axes_of`: warm
starts, other numbers of experts, pruning, freezing, and experts that lie on several ranks.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

# By kind: `experts`, `gates`, `tasks`, `logits`, `inputs`, `domains`; what is absent has no names
Names = Mapping[str, Sequence[Hashable]]


class Entry(NamedTuple):
    """A module, in a name, that belongs to one expert, task or feature as a whole.

    Attributes:
        kind: `levels`, `experts`, `tasks`, `features` or `parts`, which a network may lack.
        name: Which one.
    """

    kind: str
    name: Hashable


class Part(NamedTuple):
    """Statement of a module about one inside it.

    Attributes:
        child: Its dotted name there.
        path: What its tensors are called by in place of that, whatever its number.
        names: What it has in its axes.
        first: What the first dimension of its tensors is, where it says nothing itself.
    """

    child: str
    path: tuple[str | Entry, ...]
    names: Names
    first: str | None = None


@dataclass(frozen=True)
class TensorAxes:
    """Meaning of each dimension of a tensor.

    Attributes:
        dims: By dimension, its kind and the name of each entry, on all ranks together; absent: it
            has no names.
        path: What the tensor is called, with an `Entry` in place of a module's number.
        said: Whether a module spoke for it.
    """

    dims: Mapping[int, tuple[str, tuple[Hashable, ...]]] = field(default_factory=dict)
    path: tuple[str | Entry, ...] = ()
    said: bool = False

    def dim(self, kind: str) -> int | None:
        """Returns the last dimension of a kind; None: there is none."""
        return max((dim for dim, (own, _) in self.dims.items() if own == kind), default=None)

    def entries(self, kind: str) -> tuple[Hashable, ...]:
        """Names of the entries of that dimension, or of what the tensor belongs to as a whole."""
        dim = self.dim(kind)
        if dim is not None:
            return self.dims[dim][1]
        return tuple(p.name for p in self.path if isinstance(p, Entry) and p.kind == kind)

    @property
    def entry(self) -> Entry | None:
        """Returns the first of what the tensor belongs to as a whole; None: to nothing."""
        return next((part for part in self.path if isinstance(part, Entry)), None)

    @property
    def of_gate(self) -> bool:
        """Whether it is a gate's of a level: its name is the level's, then `mixture.gate`."""
        return self.path[1:3] == ("mixture", "gate")

    def owner(self, kind: str) -> Hashable | None:
        """Returns what the tensor belongs to as a whole; None: to nothing of that kind."""
        found = (p.name for p in self.path if isinstance(p, Entry) and p.kind == kind)
        return next(found, None)


@runtime_checkable
class HasAxes(Protocol):
    """Interface of a module that says what the dimensions of its tensors are.

    A module inside it none of whose tensors it names is asked itself.
    """

    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Returns by the names of its tensors, and dimension, the kind; others have none."""
        ...


@runtime_checkable
class HasParts(Protocol):
    """Interface of a module that knows whose the modules inside it are."""

    def named_parts(self, names: Names) -> Iterable[Part]:
        """Says it of each whose tensors `axes` leaves out."""
        ...


def axes_of(module: nn.Module, names: Names, first: str | None = None) -> dict[str, TensorAxes]:
    """Returns what the dimensions of each tensor of a module are.

    Args:
        module: Modules inside one that says nothing are asked themselves.
        names: Of what there is of each kind, in the order of its numbers.
        first: What the first dimension of tensors is of which nobody speaks.

    Returns:
        By the names of its `state_dict`.

    Example:
        >>> from mmoe.mixture import MLPExperts, MoE
        >>> axes = axes_of(MoE(4, MLPExperts(2, 4, [4])), {"experts": ["a", "b"]})
        >>> axes["mixture.experts.weights.0"].dims, axes["mixture.gate.logits.weights.0"].dims
        ({0: ('experts', ('a', 'b'))}, {1: ('experts', ('a', 'b'))})
    """
    said = module.axes() if isinstance(module, HasAxes) else None
    speaks, first = said is not None, None if said is not None else first
    if isinstance(module, HasParts):
        parts = list(module.named_parts(names))
    else:
        unnamed = [
            child
            for child, _ in module.named_children()
            if not any(name.startswith(f"{child}.") for name in said or ())
        ]
        parts = [Part(child, (child,), names, first) for child in unnamed]
    found: dict[str, TensorAxes] = {}
    for part in parts:
        inside = axes_of(module.get_submodule(part.child), part.names, part.first)
        for name, axes in inside.items():
            path = (*part.path, *axes.path)
            found[f"{part.child}.{name}"] = TensorAxes(axes.dims, path, axes.said or speaks)
    tensors: dict[str, Tensor] = module.state_dict()
    for name, tensor in tensors.items():
        if name not in found:  # a module inside that says it itself goes before
            default = {0: first} if first is not None and tensor.dim() else {}
            kinds = (said or {}).get(name, default)
            dims = {dim: (kind, _along(tensor, dim, kind, names)) for dim, kind in kinds.items()}
            dims = {dim: own for dim, own in dims.items() if own[1]}
            found[name] = TensorAxes(dims, tuple(name.split(".")), speaks)
    return {name: found[name] for name in tensors}


def owners_of(path: Sequence[str | Entry]) -> list[tuple[str | Entry, ...]]:
    """Returns what a tensor of this name is of as a whole: the name up to each entry in it."""
    return [tuple(path[: i + 1]) for i, part in enumerate(path) if isinstance(part, Entry)]


def _along(tensor: Tensor, dim: int, kind: str, names: Names) -> tuple[Hashable, ...]:
    """The names of a tensor's entries; none where the dimension is of something else."""
    own, size = tuple(names.get(kind, ())), tensor.shape[dim]
    if kind == "domains":  # what came in an earlier stage knows those alone that come first
        own = own[:size]
    # Experts may lie on several ranks, of which this one has a part
    return own if len(own) == size or kind == "experts" else ()


def without(names: Names, *kinds: str) -> Names:
    """Returns the names of other kinds alone."""
    return {kind: own for kind, own in names.items() if kind not in kinds}


def picked(names: Names, kind: str, numbers: Iterable[int] | None) -> Names:
    """Returns the names with some of a kind, where it has any; None: all of them."""
    if kind not in names or numbers is None:
        return names
    return {**names, kind: [names[kind][number] for number in numbers]}


def named(names: Names, kind: str, number: int) -> Hashable:
    """Returns the name of one, or its number where there are no names."""
    known = names.get(kind, ())
    return known[number] if number < len(known) else number

"""Traits: what pools, gates and dispatchers declare about themselves."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from mmoe.mixture.capacity import Capacity


@dataclass(frozen=True, kw_only=True)
class PoolTraits:
    """Traits of a pool: how it may be run.

    Attributes:
        static_shapes: `grouped` never reads `offsets_E1` on the host, so that it can run inside
            `torch.compile` and on a GPU without waiting for it.
        uses_batch: In training, an expert's result for a row depends on which other rows it got.
            Such a pool is never run dense for gates that pick, and over ranks it gets all of its
            rows at once; others may get them in parts.
        has_dead_units: `dense`, `grouped` and `gathered` take `record`, a list, and add what each
            layer gave whose units can be 0 for all rows.
        joinable: Its experts differ in their tensors alone, all of which have the experts in front,
            and a copy of it with another `num_experts` computes by so many experts' tensors. Then
            tensors of experts that lie on several ranks may be joined for a call.
    """

    static_shapes: bool = False
    uses_batch: bool = False
    has_dead_units: bool = False
    joinable: bool = False


class SharedWork(NamedTuple):
    """Work that rows of a request share in dense execution, left out of its cost.

    Attributes:
        experts: How many, the first ones, run once a request whatever the execution.
        parameters: Of each other expert, whose products are computed once a request.
    """

    experts: int = 0
    parameters: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GateTraits:
    """Traits of a gate: how it picks.

    Attributes:
        k: How many experts each gate picks; None: all of them, or it does not say.
        capacity: What goes with it; None: nothing is dropped.
        shared_k: How many of the k are the same for all gates of a row.
        most_pairs: How many distinct experts all gates pick for a row at most; None: any number.
            A gate that says so tells by `wanted`, called as its `forward`, how much each of its
            gates alone would weigh every expert, `[B, G, E]`.
        spells_numbers: What it has learnt depends on experts' numbers, so that those which stay
            keep theirs.
        takes_rows: It is called with `rows` too, `Inputs`, where rows ask some of the gates
            (`rows.asked_BG`) or have gates of their domain (`rows.domains_B`).
    """

    k: int | None = None
    capacity: "Capacity | None" = None
    shared_k: int = 0
    most_pairs: int | None = None
    spells_numbers: bool = False
    takes_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class DispatcherTraits:
    """Traits of a dispatcher: what it places, and whether it calls the experts itself.

    Attributes:
        num_experts: E, over all ranks; None: what the mixture's `visibility` says.
        num_local_experts: e, those of this rank; None: those of the pool.
        run: `(sources, plan, compute)`: returns what `combine` would, and calls the experts itself,
            as often as it likes: work on some rows may go on while others travel. It is used where
            an expert's result for a row does not depend on other rows. None: there is none.
        agree_width: Called at the first call of a mixture, on all ranks alike, with the width of
            what the experts of this rank return (None: it has none; text: why they cannot say).
            Returns that of all ranks. None: the pool is asked alone.
    """

    num_experts: int | None = None
    num_local_experts: int | None = None
    run: Callable[..., Any] | None = None
    agree_width: Callable[[int | str | None], int] | None = None


Traits = TypeVar("Traits", GateTraits, DispatcherTraits)


def traits_of(part: object, kind: type[Traits]) -> Traits:
    """Returns what a gate or dispatcher says of itself, and defaults for the rest.

    The one place that looks for what may be missing. It may be said by `traits`, by plain
    attributes with the names of the traits, which come first, or not at all.

    Args:
        part: Somebody's.
        kind: Of the traits.

    Example:
        >>> import torch
        >>> from mmoe.mixture import GateTraits, TopKGate
        >>> traits_of(TopKGate(8, 2, 4, k=2), GateTraits).k
        2
        >>> traits_of(torch.nn.Linear(8, 2), GateTraits).k is None
        True
    """
    said = getattr(part, "traits", None)
    traits = said if isinstance(said, kind) else kind()
    names = [field.name for field in fields(kind)]
    return replace(traits, **{name: getattr(part, name) for name in names if hasattr(part, name)})

"""Checks of a mixture's settings and of what its gate returns: every failure is a ValueError."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.routing.capacity import Capacity
from mmoe.mixture.traits import DispatcherTraits


def check_visibility(
    visibility: Tensor | Sequence[Sequence[bool]] | None, num_gates: int, num_experts: int
) -> Tensor:
    """Checks `visibility_GE` and returns it as bool: each gate sees one, each expert is seen."""
    if num_gates < 1:
        raise ValueError(f"num_gates: expected 1 or more, got {num_gates}")
    if visibility is None:
        return torch.ones(num_gates, num_experts, dtype=torch.bool)
    matrix_GE = torch.as_tensor(visibility).bool()
    if matrix_GE.dim() != 2 or len(matrix_GE) != num_gates:
        raise ValueError(
            f"visibility: expected a [gates, experts] matrix with {num_gates} rows, one per gate, "
            f"got shape {list(matrix_GE.shape)}"
        )
    for g, row in enumerate(matrix_GE):
        if not row.any():
            raise ValueError(f"visibility: gate {g} sees no expert; every gate needs one or more")
    for e, column in enumerate(matrix_GE.T):
        if not column.any():
            raise ValueError(
                f"visibility: no gate sees expert {e}; remove it, or show it to a gate"
            )
    return matrix_GE


def check_dispatcher(dispatcher: DispatcherTraits, pool: Pool) -> int:
    """Refuses a pool that lacks the experts of this rank; returns E, over all ranks."""
    here = dispatcher.num_local_experts
    if here not in (None, len(pool)):
        raise ValueError(
            f"experts: expected the {here} experts that the dispatcher places on this rank, got "
            f"{len(pool)}; take them with pool.part([…])"
        )
    return len(pool) if dispatcher.num_experts is None else dispatcher.num_experts


def check_source(name: str, source: Sequence[int] | None, count: int, what: str) -> tuple[int, ...]:
    """Returns source numbers as a tuple; without any, every expert reads source 0."""
    source = (0,) * count if source is None else tuple(source)
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in source)
    if len(source) != count or not whole or min(source) < 0:
        raise ValueError(
            f"{name}: expected {count} source numbers from 0 on, one per {what}, got {list(source)}"
        )
    return source


def as_pool(experts: object, input_dim: int | None) -> Pool:
    """Returns the experts as a pool: a pool as it is, modules in an `ExpertPool`."""
    got = f"a {type(experts).__name__}"
    if isinstance(experts, type):
        got = f"the class {experts.__name__}; make one, as {experts.__name__}(…)"
    elif isinstance(experts, Pool):
        return experts
    elif isinstance(experts, Iterable):
        modules: list[Any] = list(experts)
        if all(isinstance(module, nn.Module) for module in modules):
            return ExpertPool(modules)
        wrong = next(module for module in modules if not isinstance(module, nn.Module))
        got += f" with a {type(wrong).__name__} in it"
    elif isinstance(experts, int):
        width = "D" if input_dim is None else input_dim
        got = f"{experts}; for equal MLPs pass MLPExperts({experts}, {width}, [width, …])"
    elif isinstance(experts, nn.Module):
        got += "; pass a list, even of one, or derive a pool of your own from Pool"
    raise ValueError(f"experts: expected a pool, or a list of modules, got {got}")


def check_gate(gate: object) -> None:
    """Refuses what cannot be called as a gate is."""
    if isinstance(gate, type):
        name = gate.__name__
        raise ValueError(f"gate: expected a module, got the class {name}; make one, as {name}(…)")
    forward: Any = gate.forward if isinstance(gate, nn.Module) else gate
    missing = getattr(forward, "__func__", None) is nn.Module.forward  # as in nn.ModuleList
    try:
        signature = inspect.signature(forward)
    except ValueError:  # code that does not tell
        return
    except TypeError:
        missing, signature = True, inspect.Signature()
    try:
        signature.bind((), None)
    except TypeError:
        missing = True
    if missing:
        raise ValueError(
            "gate: expected a module with forward(inputs, visibility_GE) → GateOutput, got a "
            f"{type(gate).__name__}; help(mmoe.mixture.Gate) shows a gate of one's own"
        )


def check_capacity(capacity: object) -> Capacity | None:
    """Refuses a bare number in place of a `Capacity`, which says more than a factor."""
    if capacity is None or isinstance(capacity, Capacity):
        return capacity
    raise ValueError(f"capacity: expected None or a Capacity, as Capacity(1.25), got {capacity!r}")

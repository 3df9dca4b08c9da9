"""Checks of a mixture's settings and of what its gate returns: every failure is a ValueError."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.errors import NotFinite
from mmoe.mixture.experts.pool import ExpertPool, Pool
from mmoe.mixture.gates import GateOutput
from mmoe.mixture.pytrees import Tree, leaves_of
from mmoe.mixture.requests.rows import RequestRows
from mmoe.mixture.routing.capacity import Capacity
from mmoe.mixture.routing.routes import host_is_near
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
        got += "; pass a list, even of one"
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


def check_inputs(
    sources: Sequence[Tree],
    num_sources: int,
    widths: tuple[int, Sequence[int]] | None,
    device: torch.device,
) -> None:
    """Refuses inputs that a mixture cannot read: types, shapes, number of sources.

    Args:
        sources: What came.
        num_sources: S.
        widths: D, and the sources that experts read; None: sources may have any structure.
        device: The layer's.
    """
    if len(sources) != num_sources:
        raise ValueError(
            f"x: expected {num_sources} input source(s), got {len(sources)}; several go "
            "in as [rows, sources, width] or as a list of [rows, width]"
        )
    if isinstance(sources[0], RequestRows) and num_sources == 1:
        _check_requests(sources[0], widths, device)
        return
    for leaf in leaves_of("x", list(sources)) if widths is None else sources:
        if not isinstance(leaf, Tensor):
            raise ValueError(f"x: expected a tensor, or one per source, got {_kind_of(leaf)}")
        if leaf.device != device:
            raise ValueError(
                f"x: expected a tensor on device {device} as the layer, got {leaf.device}; move "
                "one with .to()"
            )
    if widths is not None:
        _check_rows(sources, *widths)


def _check_requests(
    rows: RequestRows, widths: tuple[int, Sequence[int]] | None, device: torch.device
) -> None:
    if widths is None or rows.columns.width != widths[0]:
        width = "any structure" if widths is None else f"{widths[0]} columns"
        raise ValueError(
            f"x: expected rows of {width}, got rows of requests of {rows.columns.width} columns"
        )
    if rows.x_BR.device != device:
        raise ValueError(
            f"x: expected rows on device {device} as the layer, got {rows.x_BR.device}; move the "
            "batch with .to()"
        )


def _check_rows(sources: Sequence[Tensor], input_dim: int, expert_source: Sequence[int]) -> None:
    rows = sources[0].shape[0] if sources[0].dim() else 0
    for s, source in enumerate(sources):
        width = input_dim if s in expert_source else source.shape[-1] if source.dim() else 0
        if source.dim() != 2 or source.shape != (rows, width):
            height = f"{rows} (rows of source 0)" if s else "rows"
            which = f" of source {s}" if len(sources) > 1 else ""
            raise ValueError(
                f"x: expected shape [{height}, {width}]{which}, got {list(source.shape)}"
            )
        if not source.is_floating_point():
            raise ValueError(f"x: expected floating point numbers, got {source.dtype}")


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def check_decision(
    decision: object, rows: int, visibility_GE: Tensor, sees_all: bool
) -> GateOutput:
    """Refuses weights or picks that no gate of this mixture may return.

    Args:
        decision: What the gate returned.
        rows: B.
        visibility_GE: Which gate may see which expert.
        sees_all: Whether every gate sees every expert.

    Returns:
        The decision, with picks in int32 and a dict of losses.

    Values are looked at where that is cheap: on the CPU, while no program is traced.
    """
    if not isinstance(decision, GateOutput) or not isinstance(decision.weights, Tensor):
        got = f"a {type(decision).__name__}"
        if isinstance(decision, GateOutput):
            got = f"one with a {type(decision.weights).__name__} for weights"
        raise ValueError(
            f"gate: expected a GateOutput(weights, experts, auxiliary_losses) of tensors, got {got}"
        )
    weights, experts = decision.weights, decision.experts
    num_gates, num_experts = visibility_GE.shape
    if weights.dim() != 3 or tuple(weights.shape[:2]) != (rows, num_gates):
        raise ValueError(
            f"gate: expected weights of shape [{rows}, {num_gates}, …] (rows, gates), "
            f"got {list(weights.shape)}"
        )
    if not weights.is_floating_point():
        raise ValueError(f"gate: expected floating point weights, got {weights.dtype}")
    _check_device("weights", weights, visibility_GE)
    if experts is None and weights.shape[2] != num_experts:
        raise ValueError(
            f"gate: expected a weight for each of {num_experts} experts, got {weights.shape[2]}; "
            "a gate that picks experts must return the picks as well"
        )
    if experts is not None:
        if experts.shape != weights.shape:
            raise ValueError(
                "gate: expected as many picks as weights, got shapes "
                f"{list(experts.shape)} and {list(weights.shape)}"
            )
        if experts.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"gate: expected picks in torch.int32 or torch.int64, got {experts.dtype}; use "
                ".to(torch.int32)"
            )
        _check_device("picks", experts, visibility_GE)
    # Elsewhere a look at values would make the host wait for the GPU
    if host_is_near(weights) and weights.numel():
        _check_values(weights.detach(), experts, visibility_GE, sees_all)
    return GateOutput(
        weights,
        None if experts is None else experts.to(torch.int32),
        dict(decision.auxiliary_losses or {}),
    )


def _check_device(what: str, tensor: Tensor, visibility_GE: Tensor) -> None:
    if tensor.device != visibility_GE.device:
        raise ValueError(
            f"gate: expected {what} on device {visibility_GE.device} as the mixture, got "
            f"{tensor.device}"
        )


def _check_values(
    weights: Tensor, experts: Tensor | None, visibility_GE: Tensor, sees_all: bool
) -> None:
    if experts is not None:
        low, high = (int(bound) for bound in experts.aminmax())
        if low < -1 or high >= visibility_GE.shape[1]:
            raise ValueError(
                f"gate: expected picks from -1 (unused) to {visibility_GE.shape[1] - 1}, got "
                f"{low if low < -1 else high}"
            )
    # One sum tells of any NaN or infinity; only then it pays to look for them.
    if not math.isfinite(weights.sum()):
        _check_finite(weights, experts)
    if not sees_all:
        _check_seen(weights, experts, visibility_GE)


def _check_finite(weights: Tensor, experts: Tensor | None) -> None:
    wrong = ~weights.isfinite()
    if experts is not None:
        wrong = wrong & (experts >= 0)
    for g, count in enumerate(wrong.any(2).sum(0).tolist()):
        if count:
            raise NotFinite(
                f"gate: expected finite weights, got NaN or infinity in {count} of {len(weights)} "
                f"rows of gate {g}; look for them in the gate's input and parameters"
            )


def _check_seen(weights: Tensor, experts: Tensor | None, visibility_GE: Tensor) -> None:
    if experts is None:
        unseen = weights.masked_fill(visibility_GE, 0) != 0
    else:
        visible_BGE = visibility_GE.expand(len(weights), -1, -1)
        unseen = ~visible_BGE.gather(2, experts.clamp(min=0).long()) & (experts >= 0)
    if unseen.any():
        b, g, k = (int(index) for index in unseen.nonzero()[0])
        expert = k if experts is None else int(experts[b, g, k])
        raise ValueError(
            f"gate: expected no weight of gate {g} on expert {expert}, which it does not see, got "
            f"{float(weights[b, g, k]):g} in row {b}"
        )

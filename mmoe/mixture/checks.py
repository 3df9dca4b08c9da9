"""Checks of a mixture's settings, and the width of experts' outputs where nobody has said it.

Every failure is a ValueError.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.mixture.capacity import Capacity
from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.traits import DispatcherTraits, traits_of
from mmoe.process_settings import borrowed_generators


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


def known_width(mixture: Any, sources: Sequence[Tree]) -> int | None:
    """Returns O of a `MultiGateMixture`; at its first call over ranks, they agree on it.

    Args:
        mixture: Its pool is told the width too.
        sources: What it reads in this call.

    Raises:
        ValueError: Ranks, or experts of one, return other widths, or no rows; on all ranks alike.
    """
    if not mixture.width_agreed:
        agree = traits_of(mixture.dispatcher, DispatcherTraits).agree_width
        assert agree is not None, "else nothing is to be agreed on"
        read = sources[mixture.expert_source[0]]
        mixture.output_dim = agree(_said(mixture.experts, read))
        if mixture.experts.output_dim is None:
            mixture.experts.output_dim = mixture.output_dim
        mixture.width_agreed = True
    return mixture.output_dim


def find_width(pool: Pool, x_BD: Tensor) -> int:
    """Finds how wide the rows are that a pool's experts return, by running each on one row.

    The pool runs in evaluation mode and without gradients, and no random numbers are used up.

    Args:
        pool: Of one expert or more.
        x_BD: Rows as the experts get them; only their width, type and device are looked at.

    Returns:
        O.

    Raises:
        ValueError: An expert returns no `[rows, O]` tensor, or another width than the others.

    Example:
        >>> import torch
        >>> from mmoe.mixture import ExpertPool
        >>> expert = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.ReLU())
        >>> find_width(ExpertPool([expert]), torch.zeros(5, 8))
        3
    """
    with trial_run(pool, x_BD.device):
        pool.eval()  # a batch norm in training refuses a single row
        outputs = pool.dense([x_BD.new_zeros(1, x_BD.shape[1])])
    widths = [y.shape[1] if isinstance(y, Tensor) and y.dim() == 2 else None for y in outputs]
    for e, (width, y) in enumerate(zip(widths, outputs, strict=True)):
        if width is None or width != widths[0]:
            got = list(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
            expected = "O" if width is None else widths[0]
            raise ValueError(
                f"experts: expected outputs of shape [rows, {expected}], got {got} from expert {e} "
                "for one row"
            )
    assert widths[0] is not None
    return widths[0]


def _said(pool: Pool, read: Tree) -> int | str | None:
    """The width of a rank's pool; None: it has no experts; text: why it cannot say."""
    if not len(pool):
        return None
    # Where each module is somebody's own, one of them may say what others do not do
    if pool.output_dim is not None and not isinstance(pool, ExpertPool):
        return pool.output_dim
    if not isinstance(read, Tensor) or read.dim() != 2:
        return pool.output_dim  # the dispatcher refuses such rows
    try:
        return find_width(pool, read)
    except Exception as error:  # raised on all ranks: one alone would leave them waiting
        return f"{type(error).__name__}: {error}"


@contextmanager
def trial_run(module: object, device: torch.device) -> Iterator[None]:
    """Encloses calls that leave nothing behind: no gradients, no numbers drawn, no other mode.

    Args:
        module: Each of its parts gets its own mode back; what is no `nn.Module` has none.
        device: Of the rows, whose generator is kept beside the CPU's.

    Example:
        >>> import torch
        >>> dropout = torch.nn.Dropout()
        >>> with trial_run(dropout, torch.device("cpu")):
        ...     y = dropout.eval()(torch.ones(2))
        >>> y.tolist(), dropout.training
        ([1.0, 1.0], True)
    """
    parts = module.modules() if isinstance(module, nn.Module) else ()
    # Part by part: `train()` would give all of them one mode
    modes = [(part, part.training) for part in parts]
    try:
        with borrowed_generators(device), torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training

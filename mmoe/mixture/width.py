"""Width of experts' outputs, found by one tiny run where nobody has said it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.traits import DispatcherTraits, traits_of
from mmoe.process_settings import borrowed_generators


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
    modes = [(part, part.training) for part in parts]
    try:
        with borrowed_generators(device), torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training

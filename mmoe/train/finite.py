"""Refuses NaN and infinite numbers in training: in what the network reads, and in the losses."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.errors import Diverged


def not_finite(x: Tensor) -> Tensor:
    """Returns a bool scalar: is a number of `x` NaN or infinite?

    One pass, where `isfinite` takes three; nothing is read on the host.

    Example:
        >>> not_finite(torch.tensor([1.0, torch.nan]))
        tensor(True)
    """
    return ~torch.stack(torch.aminmax(x)).isfinite().all()


def check_losses(total: float, losses: Sequence[float], tasks: Sequence[str]) -> None:
    """Refuses a step whose loss is no finite number.

    Args:
        total: Tasks' and auxiliary losses together.
        losses: Of the tasks alone.
        tasks: Their names.

    Raises:
        Diverged: `total` is NaN or infinite; names the tasks whose loss is.

    Example:
        >>> check_losses(math.nan, [0.7, math.nan], ["click", "purchase"])
        Traceback (most recent call last):
        mmoe.errors.Diverged: the loss of task purchase is nan
    """
    if math.isfinite(total):
        return
    names = [task for task, loss in zip(tasks, losses, strict=True) if not math.isfinite(loss)]
    whose = f"of task {', '.join(names)}" if names else "(an auxiliary loss)"
    raise Diverged(f"the loss {whose} is {total}")

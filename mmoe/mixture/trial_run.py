"""`trial_run`: a module is asked what it computes, and is afterwards what it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mmoe.process_settings import borrowed_generators


@contextmanager
def trial_run(module: object, device: torch.device) -> Iterator[None]:
    """Encloses calls that leave nothing behind: no gradients, no numbers drawn, no other mode.

    Args:
        module: Each of its parts gets its own mode back; what is no `nn.Module` has none.
        device: Of the rows, whose generator is kept beside the CPU's.

    Example:
        >>> import torch
        >>> from mmoe.mixture.trial_run import trial_run
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

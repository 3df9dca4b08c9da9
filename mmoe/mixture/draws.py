"""Torch's global generators, lent to one thread at a time and handed back unchanged."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CPU = torch.device("cpu")
# Held while they are lent. Reentrant: a module that is made while a run draws borrows them again
LENT = threading.RLock()


@contextmanager
def borrowed_generators(device: torch.device = _CPU) -> Iterator[None]:
    """Encloses draws after which torch's global generators are in the states of before.

    Dropout and initialisers draw from those alone, so two runs in two threads would take numbers
    from each other: another thread that borrows them waits.

    Args:
        device: A GPU's generator is kept in addition to the CPU's.

    Example:
        >>> import torch
        >>> from mmoe.mixture.draws import borrowed_generators
        >>> state = torch.get_rng_state()
        >>> with borrowed_generators():
        ...     x = torch.rand(3)
        >>> torch.equal(torch.get_rng_state(), state)
        True
    """
    devices = [device] if device.type == "cuda" else []
    with LENT, torch.random.fork_rng(devices=devices):
        yield

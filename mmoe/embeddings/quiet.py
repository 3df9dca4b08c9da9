"""Warnings of TorchRec and FBGEMM that a user can do nothing about."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """To import what imports TorchRec: both packages deprecate modules that they import themselves.

    The caller's own filters hold again afterwards.
    """
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def quiet_tracing() -> None:
    """Once a process, the first forward warns about a check of tracing inside TorchRec."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

"""Warnings of TorchRec and FBGEMM that a user can do nothing about."""

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

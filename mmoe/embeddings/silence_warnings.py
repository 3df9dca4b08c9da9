"""Warnings of TorchRec and FBGEMM that a user can do nothing about."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silences what TorchRec and FBGEMM deprecate of themselves while they are imported.

    The caller's own filters hold again afterwards.
    """
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield

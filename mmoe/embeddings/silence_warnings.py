"""Warnings of TorchRec and FBGEMM that a user can do nothing about."""

import logging
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


def quiet_tracing() -> None:
    """Silences what TorchRec's first forward makes torch say once a process.

    It is of a check inside TorchRec. The logger is as it was afterwards.
    """
    from torch.fx import _symbolic_trace as tracing  # where TorchRec finds it, too

    logger = logging.getLogger(tracing.__name__)
    logger.addFilter(_nothing)
    try:
        tracing.is_fx_tracing()
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False

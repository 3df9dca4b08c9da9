"""Batches on the device that trains, each copied while the one before is trained on."""

from collections.abc import Generator, Iterator

import torch

from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.prefetch import prefetch

_COPIED_AHEAD = 1  # batches: beside the one in use, one lies ready on the GPU


def on_device(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    """Yields the batches on `device`, each copied while the one before is trained on.

    To a GPU they are copied by a thread of their own, through pinned memory and on a stream of
    their own, so that neither the host nor the GPU waits for a copy while it has work. Closing the
    result closes `batches`.

    Example:
        >>> from mmoe.train.on_device import on_device
        >>> batches = (batch for batch in ())
        >>> on_device(batches, torch.device("cpu")) is batches
        True
    """
    return _copied_ahead(batches, device) if device.type == "cuda" else batches


def _copied_ahead(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    here = torch.cuda.current_stream(device)
    for batch, copied in prefetch(_copies(batches, device), _COPIED_AHEAD):
        here.wait_event(copied)
        # Made on the other stream: not to be given to its next batch before this one has read it
        batch.record_stream(here)
        yield batch


def _copies(
    batches: Generator[Batch], device: torch.device
) -> Iterator[tuple[Batch, torch.cuda.Event]]:
    """Runs in the background thread."""
    aside = torch.cuda.Stream(device)
    try:
        for batch in batches:
            with torch.cuda.stream(aside):
                moved = batch.to(device)
                copied = torch.cuda.Event()
                copied.record(aside)
            yield moved, copied
    finally:
        batches.close()

"""TorchRec's warnings that a user can do nothing about."""

import logging


def quiet_tracing() -> None:
    """Once a process, the first forward warns about a check of tracing inside TorchRec."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

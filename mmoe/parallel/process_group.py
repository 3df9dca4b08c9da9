"""The process group that sharded embeddings need, on one process too."""

import os

import torch.distributed as dist


def ensure_process_group() -> None:
    """Starts a gloo world of one, unless a process group exists already.

    A world of one makes one process run the same code, with the same state names, as many. It
    meets itself in memory (`HashStore`): no port is opened.

    Raises:
        ValueError: The process was launched as one of several (torchrun sets WORLD_SIZE).
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1" and not dist.is_initialized():
        raise ValueError(
            f"this process is one of {world} (WORLD_SIZE), but mmoe trains and scores on one "
            "process so far; start it without torchrun"
        )
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

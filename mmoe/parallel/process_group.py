"""The process group that sharded embeddings need, on one process too."""

import torch.distributed as dist


def ensure_process_group() -> None:
    """Starts a gloo world of one, unless a process group exists already.

    A world of one makes one process run the same code, with the same state names, as many. It
    meets itself in memory (`HashStore`): no port is opened.
    """
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in __all__
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

"""Inside a rank: the bytes that its collectives send to other ranks, counted below all of ours."""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Counts what all-to-alls of one group send to other ranks, in forward and backward passes.

    It looks at the operators that `torch.distributed` itself calls, so it knows nothing of who
    calls them, and misses nothing that somebody sends in another way.

    Attributes:
        bytes: Sent so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.bytes += _sent(func._schema.name, args)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Any) -> int:
    """Bytes for other ranks.

    Raises:
        ValueError: A collective of which it is not clear what it sends.
    """
    if name != "c10d::alltoall_base_":
        raise ValueError(f"expected all-to-alls alone, whose bytes can be counted, got {name}")
    message, sizes = args[1], args[4]
    assert isinstance(message, Tensor)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = sizes or [len(message) // ranks] * ranks
    return (sum(rows) - rows[rank]) * message[:1].numel() * message.element_size()

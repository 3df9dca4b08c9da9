"""Bytes that the collectives of a rank send, counted below all of ours, beside the told ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Counts what all-to-alls of any group send to other hosts, in forward and backward passes.

    It looks at the operators that `torch.distributed` itself calls, so it knows nothing of who
    calls them, and misses nothing that somebody sends in another way.

    Args:
        per_host: Ranks of each host; 1: what goes to any other rank counts.

    Attributes:
        bytes: Sent so far.
    """

    def __init__(self, per_host: int = 1) -> None:
        super().__init__()
        self.per_host, self.bytes = per_host, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.bytes += _sent(func._schema.name, args, self.per_host)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Any, per_host: int) -> int:
    """Bytes for other hosts.

    Raises:
        ValueError: A collective of which it is not clear what it sends.
    """
    if name != "c10d::alltoall_base_":
        raise ValueError(f"expected all-to-alls alone, whose bytes can be counted, got {name}")
    message, sizes = args[1], args[4]
    assert isinstance(message, Tensor)
    members = dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[2]))
    rows = sizes or [len(message) // len(members)] * len(members)
    here = dist.get_rank() // per_host
    away = sum(n for n, member in zip(rows, members, strict=True) if member // per_host != here)
    return away * message[:1].numel() * message.element_size()


def sums_of(told: str, answers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bytes over all ranks: as told, as counted, and the fewest that there can be.

    Args:
        told: The counter that tells them.
        answers: `told`, `counted` and `bound` of each rank.

    Raises:
        ValueError: It does not tell what was sent.
    """
    total = {key: sum(answer[key] for answer in answers) for key in ("told", "counted", "bound")}
    if total["told"] != total["counted"]:
        raise ValueError(
            f"{told}: expected the {total['counted']:,} bytes that were sent, got {total['told']:,}"
        )
    return total

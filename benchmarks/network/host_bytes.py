"""What goes between hosts for a layer over two levels, beside the fewest bytes that could."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.network.layers import How, RankLayer
from benchmarks.parallel.bound import count_link
from mmoe.parallel import rank, world_size

FLOAT_BYTES = 4


class BetweenHosts(TorchDispatchMode):
    """Counts what all-to-alls of any group send to other hosts, below the library.

    Args:
        per_host: Ranks of each host.

    Attributes:
        bytes: Sent so far.
    """

    def __init__(self, per_host: int) -> None:
        super().__init__()
        self.per_host, self.bytes = per_host, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.bytes += self._sent(func._schema.name, args)
        return func(*args, **(kwargs or {}))

    def _sent(self, name: str, args: Sequence[Any]) -> int:
        if name != "c10d::alltoall_base_":
            raise ValueError(f"expected all-to-alls alone, whose bytes can be counted, got {name}")
        message, sizes = args[1], args[4]
        members = dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[2]))
        rows = sizes or [len(message) // len(members)] * len(members)
        here = dist.get_rank() // self.per_host
        away = sum(
            n for n, member in zip(rows, members, strict=True) if member // self.per_host != here
        )
        return away * message[:1].numel() * message.element_size()


def count_host_bytes(*, layer: Mapping[str, Any]) -> dict[str, Any]:
    """Forward and backward pass of one batch over two levels: bytes of this rank to other hosts.

    Args:
        layer: Of `RankLayer`.

    Returns:
        As the dispatcher tells, as counted, and the fewest: of each other host the distinct rows
        and the smaller way back, whose sizes are not counted.
    """
    counted = RankLayer.of(layer)
    per_host = counted.setting.per_host
    run = counted.as_contestant(How(hierarchical=True))
    run.step()  # groups of ranks meet on first use
    traffic = counted.dispatcher.wire.traffic
    before = traffic.bytes_between_hosts
    with BetweenHosts(per_host) as between:
        run.step()
    told = traffic.bytes_between_hosts - before
    return {"told": told, "counted": between.bytes, "bound": _fewest(counted, per_host)}


def _fewest(counted: RankLayer, per_host: int) -> int:
    """Of this rank's rows; what other hosts send back counts here: the sum over ranks is one."""
    work, placement = counted.work, counted.placement
    assert work.k is not None
    picks_BGK = counted.logits_BGE.topk(work.k, dim=-1).indices
    widths = (work.D * FLOAT_BYTES, work.output_dim * FLOAT_BYTES)
    found = 0
    for host in range(world_size() // per_host):
        if host != rank() // per_host:
            held = [
                e for r in range(host * per_host, (host + 1) * per_host) for e in placement.on(r)
            ]
            found += _link(picks_BGK, held[0], held[-1] + 1, widths)
    return found


def _link(picks_BGK: Tensor, first: int, last: int, widths: tuple[int, int]) -> int:
    return count_link(picks_BGK, first, last).bytes(*widths) if last > first else 0


def sums_of(answers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Over all ranks.

    Raises:
        ValueError: The dispatcher does not tell what was sent.
    """
    total = {key: sum(answer[key] for answer in answers) for key in ("told", "counted", "bound")}
    if total["told"] != total["counted"]:
        raise ValueError(
            f"hosts: expected bytes_between_hosts to be the {total['counted']:,} bytes that were "
            f"sent, got {total['told']:,}"
        )
    return total

"""What goes between hosts for a layer over two levels, beside the fewest bytes that could."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from benchmarks.network.layers import How, RankLayer
from benchmarks.parallel.bound import count_link
from benchmarks.parallel.traffic import Traffic
from mmoe.parallel import rank, world_size

FLOAT_BYTES = 4


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
    with Traffic(per_host) as between:
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

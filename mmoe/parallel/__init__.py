"""Many ranks: process groups, who holds which experts, how rows reach them, and sums over ranks.

Names are imported on first use: what a launcher says can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe.parallel.all_reduce_sums import AllReduceSums
    from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
    from mmoe.parallel.experts.links import WayBack
    from mmoe.parallel.experts.placement import ExpertPlacement
    from mmoe.parallel.experts.shards import (
        expert_shards,
        is_spread,
        replicated_parameters,
        spread_layout,
        spread_parameters,
    )
    from mmoe.parallel.experts.wire import Wire
    from mmoe.parallel.gradient_sum import GradientSum
    from mmoe.parallel.launch.launcher import launched_ranks
    from mmoe.parallel.launch.process_group import (
        ensure_process_group,
        join_ranks,
        rank,
        training_group,
        world_size,
    )
    from mmoe.parallel.object_collectives import first_other, from_all, from_first, to_first
    from mmoe.parallel.shards import Shard

_HOMES = {
    "AllReduceSums": "mmoe.parallel.all_reduce_sums",
    "AllToAllDispatcher": "mmoe.parallel.experts.all_to_all",
    "ExpertPlacement": "mmoe.parallel.experts.placement",
    "GradientSum": "mmoe.parallel.gradient_sum",
    "Shard": "mmoe.parallel.shards",
    "WayBack": "mmoe.parallel.experts.links",
    "Wire": "mmoe.parallel.experts.wire",
    "ensure_process_group": "mmoe.parallel.launch.process_group",
    "expert_shards": "mmoe.parallel.experts.shards",
    "first_other": "mmoe.parallel.object_collectives",
    "from_all": "mmoe.parallel.object_collectives",
    "from_first": "mmoe.parallel.object_collectives",
    "is_spread": "mmoe.parallel.experts.shards",
    "join_ranks": "mmoe.parallel.launch.process_group",
    "launched_ranks": "mmoe.parallel.launch.launcher",
    "rank": "mmoe.parallel.launch.process_group",
    "replicated_parameters": "mmoe.parallel.experts.shards",
    "spread_layout": "mmoe.parallel.experts.shards",
    "spread_parameters": "mmoe.parallel.experts.shards",
    "to_first": "mmoe.parallel.object_collectives",
    "training_group": "mmoe.parallel.launch.process_group",
    "world_size": "mmoe.parallel.launch.process_group",
}

__all__ = [
    "AllReduceSums",
    "AllToAllDispatcher",
    "ExpertPlacement",
    "GradientSum",
    "Shard",
    "WayBack",
    "Wire",
    "ensure_process_group",
    "expert_shards",
    "first_other",
    "from_all",
    "from_first",
    "is_spread",
    "join_ranks",
    "launched_ranks",
    "rank",
    "replicated_parameters",
    "spread_layout",
    "spread_parameters",
    "to_first",
    "training_group",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmoe.parallel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

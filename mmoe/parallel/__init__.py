"""Many ranks: process groups, who holds which experts, how rows reach them, and sums over ranks.

Names are imported on first use: what a launcher says can be read without torch.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.parallel.adaptive.adaptive_mode import AdaptiveMode
    from mmoe.parallel.adaptive.link_rates import LinkRates, measure_links
    from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
    from mmoe.parallel.experts.balance import Balance, better_placement
    from mmoe.parallel.experts.links import WayBack
    from mmoe.parallel.experts.mode import Mode
    from mmoe.parallel.experts.moves import (
        CannotMove,
        count_loads,
        move_experts,
        rebalance_experts,
        stop_counting,
    )
    from mmoe.parallel.experts.placement import ExpertPlacement
    from mmoe.parallel.experts.replicas import ReplicaGroups
    from mmoe.parallel.experts.shards import (
        dispatchers_of,
        expert_shards,
        is_spread,
        parameters_by_replicas,
        replicated_parameters,
        spread_layout,
        spread_parameters,
    )
    from mmoe.parallel.experts.wire import Traffic, Wire
    from mmoe.parallel.hosts import Hosts
    from mmoe.parallel.launch.launcher import launched_ranks
    from mmoe.parallel.launch.process_group import (
        ensure_process_group,
        join_ranks,
        rank,
        training_group,
        world_size,
    )
    from mmoe.parallel.object_collectives import first_other, from_all, from_first, to_first
    from mmoe.parallel.sharded_tensors import Shard, Sharded, local_shards
    from mmoe.parallel.sums import AllReduceSums, GradientSum

__all__ = [
    "AdaptiveMode",
    "AllReduceSums",
    "AllToAllDispatcher",
    "Balance",
    "CannotMove",
    "ExpertPlacement",
    "GradientSum",
    "Hosts",
    "LinkRates",
    "Mode",
    "ReplicaGroups",
    "Shard",
    "Sharded",
    "Traffic",
    "WayBack",
    "Wire",
    "better_placement",
    "count_loads",
    "dispatchers_of",
    "ensure_process_group",
    "expert_shards",
    "first_other",
    "from_all",
    "from_first",
    "is_spread",
    "join_ranks",
    "launched_ranks",
    "local_shards",
    "measure_links",
    "move_experts",
    "parameters_by_replicas",
    "rank",
    "rebalance_experts",
    "replicated_parameters",
    "spread_layout",
    "spread_parameters",
    "stop_counting",
    "to_first",
    "training_group",
    "world_size",
]

__getattr__ = lazily(
    __name__,
    {
        "adaptive.adaptive_mode": ["AdaptiveMode"],
        "adaptive.link_rates": ["LinkRates", "measure_links"],
        "experts.all_to_all": ["AllToAllDispatcher"],
        "experts.balance": ["Balance", "better_placement"],
        "experts.links": ["WayBack"],
        "experts.mode": ["Mode"],
        "experts.moves": [
            "CannotMove",
            "count_loads",
            "move_experts",
            "rebalance_experts",
            "stop_counting",
        ],
        "experts.placement": ["ExpertPlacement"],
        "experts.replicas": ["ReplicaGroups"],
        "experts.shards": [
            "dispatchers_of",
            "expert_shards",
            "is_spread",
            "parameters_by_replicas",
            "replicated_parameters",
            "spread_layout",
            "spread_parameters",
        ],
        "experts.wire": ["Traffic", "Wire"],
        "hosts": ["Hosts"],
        "launch.launcher": ["launched_ranks"],
        "launch.process_group": [
            "ensure_process_group",
            "join_ranks",
            "rank",
            "training_group",
            "world_size",
        ],
        "object_collectives": ["first_other", "from_all", "from_first", "to_first"],
        "sharded_tensors": ["Shard", "Sharded", "local_shards"],
        "sums": ["AllReduceSums", "GradientSum"],
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)

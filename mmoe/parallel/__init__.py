"""Many ranks: process groups, who holds which experts, and how rows reach them and come back."""

from mmoe.parallel.all_to_all import AllToAllDispatcher
from mmoe.parallel.expert_placement import ExpertPlacement
from mmoe.parallel.links import WayBack
from mmoe.parallel.process_group import ensure_process_group, launched_ranks, rank, world_size
from mmoe.parallel.telling import from_all, from_first
from mmoe.parallel.wire import Wire

__all__ = [
    "AllToAllDispatcher",
    "ExpertPlacement",
    "WayBack",
    "Wire",
    "ensure_process_group",
    "from_all",
    "from_first",
    "launched_ranks",
    "rank",
    "world_size",
]

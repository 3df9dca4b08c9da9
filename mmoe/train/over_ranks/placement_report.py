"""Says and writes down who holds what, at the start of a run on several ranks."""

import io

import torch.distributed as dist
from rich.console import Console
from torch import nn

from mmoe.config.parallel import ParallelConfig
from mmoe.embeddings import plan_table
from mmoe.models.ranker import Ranker
from mmoe.parallel import (
    Balance,
    CannotMove,
    dispatchers_of,
    is_spread,
    parameters_by_replicas,
    rank,
    stop_counting,
    world_size,
)
from mmoe.run.atomic_files import write_json
from mmoe.run.console import Reporter
from mmoe.run.directory import RunDirectory
from mmoe.train.over_ranks.unused_settings import unused_settings
from mmoe.train.state import TrainingState

_MOVES_SHOWN = 8


def say_plan(
    ranker: Ranker, parallel: ParallelConfig, run: RunDirectory, reporter: Reporter
) -> None:
    """Prints who holds which experts and tables, and writes plan.json; on one rank nothing."""
    if world_size() == 1:
        return
    experts = "spread" if is_spread(ranker.network) else "replicated"
    replicas = _replicas(ranker.network)
    each = f" in {replicas} groups, each with all of them" if replicas > 1 else ""
    slices = max((d.placement.slices for d in dispatchers_of(ranker.network)), default=1)
    cut = f", cut into {slices} slices" if slices > 1 else ""
    tables = ranker.tables.plan_summary()
    reporter.say(
        f"{world_size()} ranks: gates and towers on every one, experts {experts}{cut}{each}, "
        "each batch shared out"
    )
    for line in unused_settings(parallel, ranker.network):
        reporter.say(line)
    if tables:
        text = io.StringIO()
        Console(file=text, width=140).print(plan_table(tables))
        for line in text.getvalue().rstrip().splitlines():
            reporter.say(line.rstrip())
    if rank() == 0:
        write_json(
            run.plan_file,
            {
                "ranks": world_size(),
                "experts": experts,
                "slices": slices,
                "replicas": replicas,
                "tables": tables,
            },
        )


def _replicas(network: nn.Module) -> int:
    """How often a spread expert is there, at most."""
    groups = [group for group, _ in parameters_by_replicas(network) if group is not None]
    return max(map(dist.get_world_size, groups), default=1)


def said_of_moves(state: TrainingState) -> list[str]:
    """Lets experts change ranks, and returns a line for each mixture in which some did."""
    network = state.ranker.network
    try:
        better = state.rebalance()
    except CannotMove as error:
        stop_counting(network)
        return [f"parallel.rebalance: {error}; experts stay where they are from now on"]
    return [_said(network, name, balance) for name, balance in better.items()]


def _said(network: nn.Module, name: str, balance: Balance) -> str:
    level = network.get_submodule(name.rpartition(".")[0])
    slices = balance.placement.slices
    names = getattr(level, "expert_names", range(balance.placement.num_experts // slices))
    if slices > 1:
        names = [f"{name} slice {s}" for name in names for s in range(1, slices + 1)]
    moved = ", ".join(
        f"{names[expert]} to rank {balance.placement.rank_of(expert)}"
        for expert in balance.moved[:_MOVES_SHOWN]
    )
    more = len(balance.moved) - _MOVES_SHOWN
    moved += f" and {more} more" if more > 0 else ""
    return (
        f"{name}: {moved}; the busiest rank had {balance.before:.2f} times the "
        f"mean load, from now on {balance.after:.2f} if loads stay: predicted to be done "
        f"{balance.gain:.2f} times faster"
    )

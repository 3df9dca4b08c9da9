"""Experts change ranks between epochs, by the rows that each computed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import Pool
from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
from mmoe.parallel.experts.moves.balance import Balance, ExpertLoads, better_placement
from mmoe.parallel.experts.moves.move import move_experts
from mmoe.parallel.experts.shards import mixtures_of


def count_loads(network: nn.Module) -> None:
    """Begins to count what the spread experts of a network compute, for `rebalance_experts`.

    Example:
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.parallel import count_loads
        >>> count_loads(MultiGateMixture(8, 2, mlp_experts(4, 8, [3])))  # nothing is spread
    """
    for dispatcher, _ in _dispatchers(network).values():
        dispatcher.loads = ExpertLoads(dispatcher.placement.num_experts)


def stop_counting(network: nn.Module) -> None:
    """Ends what `count_loads` began: `rebalance_experts` then moves nothing.

    Example:
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.parallel import stop_counting
        >>> stop_counting(MultiGateMixture(8, 2, mlp_experts(4, 8, [3])))  # nothing is spread
    """
    for dispatcher, _ in _dispatchers(network).values():
        dispatcher.loads = None


def rebalance_experts(
    network: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    copies: Sequence[nn.Module] = (),
    *,
    least_gain: float = 1.05,
) -> dict[str, Balance]:
    """Moves experts so that the busiest rank has less to compute; all ranks together.

    What an expert costs is its rows, counted since the last call and added up over ranks, times its
    parameters; see `better_placement`.

    Args:
        network: Of which `count_loads` counted.
        optimizer: Whose moments move too.
        copies: Of the network, such as its average, which share its dispatchers.
        least_gain: Below it nothing is moved.

    Returns:
        What became better, by the names of mixtures.

    Raises:
        CannotMove: Modules that cannot be pickled; nothing of this mixture was changed.

    Example:
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.parallel import rebalance_experts
        >>> rebalance_experts(MultiGateMixture(8, 2, mlp_experts(4, 8, [3])))  # nothing is spread
        {}

    Source: He et al., "FasterMoE" (PPoPP 2022), for experts that are placed by their load.
    """
    found = {}
    for name, (dispatcher, pools) in _dispatchers(network).items():
        if dispatcher.loads is None:
            continue
        counts_E = _of_all_ranks(dispatcher.loads.take())
        costs_E = _costs(dispatcher, pools, counts_E.device)
        loads = (counts_E.double() * costs_E.double()).tolist()
        better = better_placement(
            dispatcher.placement, loads, costs_E.tolist(), least_gain=least_gain
        )
        if better is not None:
            move_experts([network, *copies], dispatcher, better.placement, optimizer)
            found[name] = better
    return found


def placements(network: nn.Module) -> dict[str, Tensor]:
    """Returns where experts are, and their loads so far, as tensors for a checkpoint; collective.

    Only of dispatchers whose loads are counted: placements of others never change.

    Example:
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> placements(MultiGateMixture(8, 2, mlp_experts(4, 8, [3])))
        {}
    """
    found = {}
    for name, (dispatcher, _) in _dispatchers(network).items():
        if dispatcher.loads is not None:
            experts = dispatcher.placement.experts
            found[f"{name}/experts"] = torch.tensor(dispatcher.placement.order)
            found[f"{name}/counts"] = torch.tensor([len(own) for own in experts])
            found[f"{name}/loads"] = _of_all_ranks(dispatcher.loads.counts_E.clone())
    return found


def place_as(
    networks: Sequence[nn.Module], optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]
) -> None:
    """Brings experts where `placements` said, if they and the ranks were as many; all together.

    Where experts were cut into another number of slices, they stay where they are.

    Args:
        networks: The network and its copies, before weights are loaded.
        optimizer: Of the network.
        stored: From `placements`.
    """
    for name, (dispatcher, _) in _dispatchers(networks[0]).items():
        counts = stored.get(f"{name}/counts")
        placement = dispatcher.placement
        if counts is None or (len(counts), int(counts.sum())) != (
            placement.num_ranks,
            placement.num_experts,
        ):
            continue
        parts = stored[f"{name}/experts"].split(counts.tolist())
        there = replace(placement, experts=tuple(tuple(part.tolist()) for part in parts))
        if there != placement:
            move_experts(networks, dispatcher, there, optimizer)
        if dispatcher.loads is not None and dist.get_rank() == 0:  # the sum of all, once
            dispatcher.loads.counts_E = stored[f"{name}/loads"].clone()


def _dispatchers(network: nn.Module) -> dict[str, tuple[AllToAllDispatcher, list[Pool]]]:
    """Returns each dispatcher and the pools that it places, by the name of the first mixture."""
    names: dict[int, str] = {}
    found: dict[str, tuple[AllToAllDispatcher, list[Pool]]] = {}
    for prefix, mixture, dispatcher in mixtures_of(network):
        name = names.setdefault(id(dispatcher), prefix.rstrip(".") or "mixture")
        found.setdefault(name, (dispatcher, []))[1].append(mixture.experts)
    return found


def _of_all_ranks(counts_E: Tensor) -> Tensor:
    dist.all_reduce(counts_E)
    return counts_E


def _costs(dispatcher: AllToAllDispatcher, pools: Sequence[Pool], device: torch.device) -> Tensor:
    """Parameters of each expert, of which a rank knows its own."""
    placement = dispatcher.placement
    costs_E = torch.zeros(placement.num_experts, dtype=torch.int64, device=device)
    sizes = map(sum, zip(*(pool.expert_sizes() for pool in pools), strict=True))
    for expert, parameters in zip(placement.on(dispatcher.wire.rank), sizes, strict=True):
        # 0 would make all rows of experts without parameters no load
        costs_E[expert] = max(parameters, 1)
    dist.all_reduce(costs_E, dist.ReduceOp.MAX)
    return costs_E

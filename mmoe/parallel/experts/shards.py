"""Sharded tensors of a network: those of experts that are spread over ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import MLPExperts, MultiGateMixture, Pool
from mmoe.mixture.axes import TensorAxes, axes_of
from mmoe.mixture.experts.sliced import pieces, whole_shape
from mmoe.mixture.multi_gate import mixtures_in
from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
from mmoe.parallel.sharded_tensors import Shard, local_shards


def is_spread(network: nn.Module) -> bool:
    """Returns whether experts lie on several ranks, this one or others.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import is_spread
        >>> is_spread(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))
        False
    """
    return any(True for _ in mixtures_of(network))


def dispatchers_of(network: nn.Module) -> list[AllToAllDispatcher]:
    """Lists what sends rows to experts on several ranks, level by level.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import dispatchers_of
        >>> dispatchers_of(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))
        []
    """
    return [dispatcher for _, _, dispatcher in mixtures_of(network)]


def spread_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Lists the parameters of experts that not every rank holds; the others are on all.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import spread_parameters
        >>> spread_parameters(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))
        []
    """
    return [
        weight for _, mixture, _ in mixtures_of(network) for weight in mixture.experts.parameters()
    ]


def parameters_by_replicas(
    network: nn.Module,
) -> list[tuple[dist.ProcessGroup | None, list[nn.Parameter]]]:
    """Lists `spread_parameters` by the ranks that hold the same ones.

    Returns:
        For each such group, in the order in which the network has them, its parameters; None: this
        rank is the only one that holds them.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import parameters_by_replicas
        >>> parameters_by_replicas(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))
        []
    """
    found: dict[int, tuple[dist.ProcessGroup | None, list[nn.Parameter]]] = {}
    for _, mixture, dispatcher in mixtures_of(network):
        group = dispatcher.replicas  # by identity: `ReplicaGroups` makes each once
        found.setdefault(id(group), (group, []))[1].extend(mixture.experts.parameters())
    return list(found.values())


def replicated_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Lists the parameters that every rank has, in the order of the network's.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import replicated_parameters
        >>> len(replicated_parameters(MultiGateMixture(8, 2, MLPExperts(4, 8, [3]))))
        3
    """
    spread = {id(weight) for weight in spread_parameters(network)}
    return [weight for weight in network.parameters() if id(weight) not in spread]


def expert_shards(
    network: nn.Module, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor | list[Shard]]:
    """Returns each tensor whole where every rank has it, else as this rank's shards.

    Where experts lie along the first dimension, a run of neighbours is one shard: `shape` is that
    of all E experts, `offsets` begins with the number of the run's first expert. A tensor that is
    one expert's own (`ExpertPool`) is one shard, the whole, of the rank that holds the expert.
    Slices (`cut_into_slices`) are shards of the whole experts, so that they are read in any other
    number, by any number of ranks. A rank without experts has an empty shard of
    each, or, where they are modules, none of their names.

    Args:
        network: The network, or a copy of it such as its average.
        tensors: By the names of `network.state_dict()`; or, for an optimizer's moments, by
            `NAME/MOMENT`, of which those with one number for all experts (`step`) are no shards.

    Returns:
        By the same names: the tensor itself where every rank has it, else this rank's shards,
        which are views.

    Raises:
        ValueError: A pool that does not say whose its tensors are, or has those of other experts.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import (
        ...     AllToAllDispatcher,
        ...     ExpertPlacement,
        ...     ensure_process_group,
        ...     expert_shards,
        ... )
        >>> ensure_process_group()
        >>> placement = ExpertPlacement.even(num_experts=4, num_ranks=1)
        >>> layer = MultiGateMixture(
        ...     8, 2, MLPExperts(4, 8, [3]), dispatcher=AllToAllDispatcher(placement)
        ... )
        >>> described = expert_shards(layer, layer.state_dict())
        >>> [(shard.shape, shard.offsets) for shard in described["experts.weights.0"]]
        [((4, 8, 3), (0, 0, 0))]
    """
    cuts = dict[str, Callable[[Tensor], Tensor | list[Shard]]]()
    for prefix, mixture, dispatcher in mixtures_of(network):
        own, pool = dispatcher.placement.on(dispatcher.wire.rank), mixture.experts
        every = range(dispatcher.placement.num_experts)
        for name, axes in _axes_of_owners(pool, every, own).items():
            experts, cut = axes.entries("experts"), local_shards
            if axes.dim("experts") is not None and pool.slices > 1:
                cut = partial(_slices, pool=pool, name=name, num_experts=dispatcher.num_experts)
            elif axes.dim("experts") is not None:
                mine = [experts.index(e) for e in own if e in experts]
                cut = partial(_shards, own=mine, num_experts=len(experts))
            cuts[f"{prefix}experts.{name}"] = cut
    found: dict[str, Tensor | list[Shard]] = {}
    for full_name, tensor in tensors.items():
        cut = cuts.get(full_name.partition("/")[0])  # moments as their parameter
        found[full_name] = tensor if cut is None else cut(tensor)
    return found


def spread_layout(network: nn.Module) -> dict[str, list[Shard]]:
    """Returns how the tensors of spread experts are cut, by their names in `state_dict`.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import spread_layout
        >>> spread_layout(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))
        {}
    """
    described = expert_shards(network, network.state_dict())
    return {name: value for name, value in described.items() if isinstance(value, list)}


def _axes_of_owners(pool: Pool, every: range, own: Sequence[int]) -> dict[str, TensorAxes]:
    """Refuses a pool that does not tell whose all its tensors are, or has those of others."""
    axes = axes_of(pool, {"experts": every})
    owners = {of_tensor.owner("experts") for of_tensor in axes.values()} - {None}
    for name, of_tensor in axes.items():
        if of_tensor.owner("experts") is None and of_tensor.dim("experts") != 0:
            raise ValueError(
                "experts: expected a pool that says along which dimension its experts lie, the "
                "first (axes, as MLPExperts), or whose own each tensor is "
                f"(named_parts, as ExpertPool), got a {type(pool).__name__} with {name!r}"
            )
    others = {cast(int, e) for e in owners} - set(own)
    if others:
        raise ValueError(
            f"experts: expected tensors of the experts {list(own)}, which the dispatcher places on "
            f"this rank, got those of {sorted(others)}; take them with pool.part(placement.on("
            "rank)), or make the pool as ExpertPool(…, numbers=placement.on(rank))"
        )
    return axes


def _shards(tensor: Tensor, *, own: Sequence[int], num_experts: int) -> Tensor | list[Shard]:
    """A shard for each run of neighbours; a count of steps is the same on all ranks."""
    if not tensor.dim():
        return tensor
    assert len(tensor) == len(own), "every tensor of a pool has the experts in front"
    shape = (num_experts, *tensor.shape[1:])
    if not own:
        return [_no_shard(tensor, shape)]
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(own), start=1) if b != a + 1), len(own)]
    rest = (0,) * (tensor.dim() - 1)
    return [
        Shard(tensor[start:stop], shape, (own[start], *rest)) for start, stop in pairwise(starts)
    ]


def _slices(tensor: Tensor, *, pool: Pool, name: str, num_experts: int) -> Tensor | list[Shard]:
    """A shard for each slice, or for each half of one; an empty one where this rank has none."""
    if not tensor.dim():
        return tensor
    cut = cast(MLPExperts, pool)
    shape = whole_shape(cut, name, tensor.shape, num_experts)
    shards = [
        Shard(tensor[piece.place], shape, piece.offsets, piece.place)
        for piece in pieces(cut, name, tensor.shape)
    ]
    return shards or [_no_shard(tensor, shape, (slice(0, 0),))]


def mixtures_of(network: nn.Module) -> Iterator[tuple[str, MultiGateMixture, AllToAllDispatcher]]:
    """The mixtures whose experts lie on several ranks, and the prefix of their tensors' names."""
    for name, mixture in mixtures_in(network):
        dispatcher = mixture.dispatcher
        if isinstance(dispatcher, AllToAllDispatcher):
            yield f"{name}." if name else "", mixture, dispatcher


def _no_shard(
    tensor: Tensor, shape: tuple[int, ...], place: tuple[slice, ...] | None = None
) -> Shard:
    """Stands behind all others: only the first number of a tensor may be an empty shard's."""
    return Shard(tensor[:0], shape, (shape[0], *(0,) * (tensor.dim() - 1)), place)

"""`move_experts`: experts change ranks, with the optimizer's moments and weights' averages."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from mmoe.mixture import MultiGateMixture
from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
from mmoe.parallel.experts.moves.movable import (
    MovableExperts,
    OptimizerParameters,
    Parcel,
    movable_parts,
)
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.shards import mixtures_of
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.object_collectives import from_all


class CannotMove(ValueError):
    """Experts cannot change ranks; nothing was changed, on any rank."""


def move_experts(
    networks: Sequence[nn.Module],
    dispatcher: AllToAllDispatcher,
    placement: ExpertPlacement,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Makes another placement that of a dispatcher, and brings every expert where it now belongs.

    All ranks of the dispatcher call it together, between steps. Where experts lie along a dimension
    of tensors, these stay the objects that they were, and their contents change, and their size
    where a rank gets another number of experts. Where experts are modules (`ExpertPool`), new
    parameters take the place of others in the pool and in the optimizer.

    Args:
        networks: The network that is trained, and copies of it that share the dispatcher, such as
            its average.
        dispatcher: Of some of their mixtures.
        placement: The new one, for as many ranks.
        optimizer: Of the first network; its moments move too. None: there is none.

    Raises:
        CannotMove: A module that cannot be pickled; on all ranks alike, and nothing is changed.
        ValueError: Pools of ranks that are no parts of one.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.parallel import (
        ...     AllToAllDispatcher,
        ...     ExpertPlacement,
        ...     ensure_process_group,
        ...     move_experts,
        ... )
        >>> ensure_process_group()
        >>> dispatcher = AllToAllDispatcher(ExpertPlacement(((0, 1),)))
        >>> layer = MultiGateMixture(8, 2, mlp_experts(2, 8, [3]), dispatcher=dispatcher)
        >>> weight = layer.experts.weights[0]
        >>> first = weight[0].clone()
        >>> move_experts([layer], dispatcher, ExpertPlacement(((1, 0),)))
        >>> torch.equal(layer.experts.weights[0][1], first), layer.experts.weights[0] is weight
        (True, True)
    """
    old, rank = dispatcher.placement, dispatcher.wire.rank
    mixtures = [
        (mixture, OptimizerParameters(optimizer if number == 0 else None))
        for number, network in enumerate(networks)
        for _, mixture, own in mixtures_of(network)
        if own is dispatcher
    ]
    parts = [p for m, own in mixtures for p in movable_parts(m, old, placement, rank, own)]
    received = _exchanged(parts, dispatcher.wire, placement, _device_of(networks[0]))
    with torch.no_grad():
        for part, came in zip(parts, received, strict=True):
            part.settle(came)
    for mixture, _ in mixtures:
        _run_as(mixture)
    dispatcher.placement = placement


def _exchanged(
    parts: Sequence[MovableExperts], wire: Wire, placement: ExpertPlacement, device: torch.device
) -> list[dict[int, Parcel]]:
    """Sends the experts that leave this rank; returns those that came, by number, for each part."""
    parcels: list[list[tuple[int, int, Parcel]]] = [[] for _ in range(placement.num_ranks)]
    for number, part in enumerate(parts):
        for expert in set(part.before) - set(part.after):
            parcels[placement.rank_of(expert)].append((number, expert, part.take(expert)))
    received: list[dict[int, Parcel]] = [{} for _ in parts]
    for content in _exchange(wire, parcels, device):
        for number, expert, parcel in content:
            received[number][expert] = parcel
    return received


def _run_as(mixture: MultiGateMixture) -> None:
    """Other kinds of experts may want to be run otherwise."""
    traits = mixture.experts.traits
    mixture.policy = replace(mixture.policy, pool=traits, overlaps=not traits.uses_batch)


def _device_of(network: nn.Module) -> torch.device:
    return next((weight.device for weight in network.parameters()), torch.device("cpu"))


def _exchange(
    wire: Wire, parcels: Sequence[Sequence[Any]], device: torch.device
) -> Iterator[list[Any]]:
    """Sends each rank its parcel; yields those that came, in order of ranks."""
    try:
        packed, problem = [_pack(parcel) for parcel in parcels], None
    except Exception as error:  # of somebody's modules: raised on all ranks
        packed, problem = [b""] * len(parcels), f"{type(error).__name__}: {error}"
    each = from_all((list(map(len, packed)), problem), wire.group)
    for rank, (_, said) in enumerate(each):
        if said is not None:
            raise CannotMove(
                f"experts of rank {rank} cannot be sent to another ({said}); their classes have to "
                "be at the top of a module"
            )
    sizes = [sent[wire.rank] for sent, _ in each]
    # `frombuffer` refuses an empty buffer, which a rank has that sends nothing
    flat = torch.frombuffer(bytearray(b"".join(packed) or b"\0"), dtype=torch.uint8)
    flat = flat[: sum(map(len, packed))].to(device)
    came = wire.begin_rows(flat, list(map(len, packed)), sizes).wait().cpu()
    for part in came.split(sizes):
        if len(part):
            # Not tensors alone: modules of anybody's classes, where experts are modules, and the
            # optimizer's states; a rank of this program wrote them
            content = io.BytesIO(part.numpy().tobytes())
            yield cast("list[Any]", torch.load(content, map_location=device, weights_only=False))


def _pack(parcel: Sequence[Any]) -> bytes:
    if not parcel:
        return b""
    content = io.BytesIO()
    torch.save(list(parcel), content)
    return content.getvalue()

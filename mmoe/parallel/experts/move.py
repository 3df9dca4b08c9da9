"""`move_experts`: experts change ranks, with the optimizer's moments and weights' averages."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import ExpertPool, MixedExperts, StackedExperts
from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.shards import mixtures_of
from mmoe.parallel.experts.wire import Wire


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
    of tensors, these stay the objects that they were, and their contents change; of an `ExpertPool`
    the modules change hands, and their parameters take the place of others in the optimizer.

    Args:
        networks: The network that is trained, and copies of it that share the dispatcher, such as
            its average.
        dispatcher: Of some of their mixtures.
        placement: The new one; every rank has as many experts of each kind as before.
        optimizer: Of the first network; its moments move too. None: there is none.

    Raises:
        ValueError: A rank would have more or fewer experts of a kind.
        CannotMove: A module that cannot be pickled; on all ranks alike, and nothing is changed.

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
    leaves = [
        leaf
        for network in networks
        for pool in _pools_of(network, dispatcher)
        for leaf in _leaves(pool, old.on(rank), placement, rank, optimizer)
    ]
    _check_counts(leaves)
    parcels: list[list[Any]] = [[] for _ in range(placement.num_ranks)]
    for number, leaf in enumerate(leaves):
        for expert in leaf.before:
            there = placement.rank_of(expert)
            if there != rank:
                parcels[there].append((number, expert, leaf.take(expert)))
    received: dict[tuple[int, int], Any] = {}
    for content in _exchange(dispatcher.wire, parcels, _device_of(networks[0])):
        received |= {(number, expert): what for number, expert, what in content}
    for number, leaf in enumerate(leaves):
        mine = {e: what for (n, e), what in received.items() if n == number}
        with torch.no_grad():
            leaf.settle(mine)
    dispatcher.placement = placement


class _Leaf(Protocol):
    """Experts of one kind of one pool. `before` and `after` are numbers in the whole pool."""

    before: Sequence[int]
    after: Sequence[int]

    def take(self, expert: int) -> Any:
        """What leaves with an expert."""
        ...

    def settle(self, received: Mapping[int, Any]) -> None:
        """Puts what came, and what stays, into the new order."""
        ...


class _Stacked:
    """Experts along the first dimension of each tensor."""

    def __init__(
        self,
        pool: nn.Module,
        before: Sequence[int],
        after: Sequence[int],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self.before, self.after = before, after
        self.tensors = pool.state_dict()  # views: what is copied into them, the pool has
        if isinstance(pool, StackedExperts):  # also buffers that no checkpoint holds
            self.tensors |= dict(pool.named_buffers())
        for name, weight in pool.named_parameters():
            state = {} if optimizer is None else optimizer.state.get(weight, {})
            for key, moment in state.items():
                if isinstance(moment, Tensor) and moment.shape == weight.shape:
                    self.tensors[f"{name}/{key}"] = moment

    def take(self, expert: int) -> dict[str, Tensor]:
        place = self.before.index(expert)
        return {name: tensor[place].detach().clone() for name, tensor in self.tensors.items()}

    def settle(self, received: Mapping[int, Any]) -> None:
        for name, tensor in self.tensors.items():
            rows = [
                received[e][name] if e in received else tensor[self.before.index(e)]
                for e in self.after
            ]
            if rows:
                tensor.copy_(torch.stack([row.to(tensor.device) for row in rows]))


class _Modules:
    """Experts that are modules; one that leaves takes its parameters out of the optimizer."""

    def __init__(
        self,
        pool: ExpertPool,
        before: Sequence[int],
        after: Sequence[int],
        first: int,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self.pool, self.before, self.after, self.first = pool, before, after, first
        self.optimizer = optimizer

    def take(self, expert: int) -> tuple[nn.Module, dict[str, tuple[int, dict[str, Any]]]]:
        module = self._held[expert]
        return module, {
            name: (group, dict(self._state.get(weight, {})))
            for name, weight in module.named_parameters()
            if (group := self._group_of(weight)) is not None
        }

    def settle(self, received: Mapping[int, Any]) -> None:
        held = self._held
        for expert in set(held) - set(self.after):
            for weight in held[expert].parameters():
                self._forget(weight)
        for expert, (module, moments) in received.items():
            module.train(self.pool.training)
            held[expert] = module
            for name, (group, state) in moments.items():
                self._learn(module.get_parameter(name), group, state)
        self.pool.hold({e - self.first: held[e] for e in self.after})

    @property
    def _held(self) -> dict[int, nn.Module]:
        return dict(zip(self.before, self.pool, strict=True))

    @property
    def _state(self) -> dict[Any, Any]:
        return {} if self.optimizer is None else self.optimizer.state

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [] if self.optimizer is None else self.optimizer.param_groups

    def _group_of(self, weight: nn.Parameter) -> int | None:
        return next(
            (
                n
                for n, group in enumerate(self._groups)
                if any(w is weight for w in group["params"])
            ),
            None,
        )

    def _forget(self, weight: nn.Parameter) -> None:
        group = self._group_of(weight)
        if group is not None:
            kept = [w for w in self._groups[group]["params"] if w is not weight]
            self._groups[group]["params"] = kept
            self._state.pop(weight, None)

    def _learn(self, weight: nn.Parameter, group: int, state: dict[str, Any]) -> None:
        self._groups[group]["params"].append(weight)
        if state:
            self._state[weight] = state


def _leaves(
    pool: nn.Module,
    own: Sequence[int],
    placement: ExpertPlacement,
    rank: int,
    optimizer: torch.optim.Optimizer | None,
) -> Iterator[_Leaf]:
    """The pools of which one consists, each with its experts' numbers in the whole."""
    every = range(placement.num_experts)
    parts: list[Any] = list(pool.pools) if isinstance(pool, MixedExperts) else [pool]
    ranges = pool.ranges if isinstance(pool, MixedExperts) else [every]
    for part, of_kind in zip(parts, ranges, strict=True):
        before = [e for e in own if e in of_kind]
        after = [e for e in placement.on(rank) if e in of_kind]
        if isinstance(part, ExpertPool):
            yield _Modules(part, before, after, of_kind.start, optimizer)
        else:
            yield _Stacked(part, before, after, optimizer)


def _check_counts(leaves: Sequence[_Leaf]) -> None:
    for leaf in leaves:
        if len(leaf.before) != len(leaf.after):
            raise ValueError(
                f"placement: expected {len(leaf.before)} expert(s) on this rank in place of "
                f"{list(leaf.before)}, got {list(leaf.after)}; a rank keeps as many of each kind"
            )


def _pools_of(network: nn.Module, dispatcher: AllToAllDispatcher) -> Iterator[nn.Module]:
    for _, mixture, own in mixtures_of(network):
        if own is dispatcher:
            yield mixture.experts


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
    each: list[Any] = [None] * wire.world_size
    dist.all_gather_object(each, (list(map(len, packed)), problem), group=wire.group)
    for rank, (_, said) in enumerate(each):
        if said is not None:
            raise CannotMove(
                f"experts of rank {rank} cannot be sent to another ({said}); their classes have to "
                "be at the top of a module"
            )
    sizes = [sent[wire.rank] for sent, _ in each]
    flat = torch.frombuffer(bytearray(b"".join(packed) or b"\0"), dtype=torch.uint8)
    flat = flat[: sum(map(len, packed))].to(device)
    came = wire.begin_rows(flat, list(map(len, packed)), sizes).wait().cpu()
    for part in came.split(sizes):
        if len(part):
            # Modules are pickled: what is read here was written by a rank of the same program
            content = io.BytesIO(part.numpy().tobytes())
            yield cast("list[Any]", torch.load(content, map_location=device, weights_only=False))


def _pack(parcel: Sequence[Any]) -> bytes:
    if not parcel:
        return b""
    content = io.BytesIO()
    torch.save(list(parcel), content)
    return content.getvalue()

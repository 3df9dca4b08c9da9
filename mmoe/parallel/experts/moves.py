"""Experts change ranks between epochs, by the rows that each computed, or as a checkpoint says.

The optimizer's moments and averages of the weights go with them.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import MultiGateMixture, Pool
from mmoe.mixture.experts.contract import tensors_of
from mmoe.parallel.experts.all_to_all import AllToAllDispatcher
from mmoe.parallel.experts.balance import Balance, ExpertLoads, better_placement
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.shards import mixtures_of
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.object_collectives import from_all


class Parcel(NamedTuple):
    """Expert under way to another rank.

    Attributes:
        rows: Its entries of stacked tensors, by name, and of moments, by `NAME/MOMENT`.
        module: The expert, where it is one; None: it is all in `rows`.
        groups: By the names of a module's parameters, which of the optimizer's groups each is in.
        states: What the optimizer knows of a parameter beside what is in `rows`.
    """

    rows: dict[str, Tensor]
    module: nn.Module | None
    groups: dict[str, int]
    states: dict[str, dict[str, Any]]


class OptimizerParameters:
    """Parameters that come into an optimizer, and leave it.

    Args:
        optimizer: None: there is none, as for an average.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.groups = [] if optimizer is None else optimizer.param_groups
        self.state: dict[Any, Any] = {} if optimizer is None else optimizer.state

    def of(self, module: nn.Module) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """Groups and states of a module's parameters, by their names."""
        groups = {
            name: number
            for name, weight in module.named_parameters()
            for number, group in enumerate(self.groups)
            # By identity: == of tensors compares their numbers
            if any(other is weight for other in group["params"])
        }
        named = dict(module.named_parameters())
        return groups, {name: dict(self.state.get(named[name], {})) for name in groups}

    def forget(self, module: nn.Module) -> None:
        """Takes a module's parameters out."""
        gone = {id(weight) for weight in module.parameters()}
        for group in self.groups:
            group["params"] = [w for w in group["params"] if id(w) not in gone]
        # Moments of who is gone would keep their memory, and go into the next checkpoint
        for weight in module.parameters():
            self.state.pop(weight, None)

    def learn(
        self, module: nn.Module, groups: Mapping[str, int], states: Mapping[str, dict[str, Any]]
    ) -> None:
        """Takes a module's parameters in, as `of` described them."""
        for name, group in groups.items():
            weight = module.get_parameter(name)
            self.groups[group]["params"].append(weight)
            if states.get(name):
                self.state[weight] = states[name]


class MovableExperts:
    """The experts of one kind in one pool of a network, on this rank.

    Args:
        pool: A `Pool` of these experts alone; it stays, and so do its stacked tensors.
        before: Numbers of the experts here, in their order.
        after: Those that are to be here.
        first: Number of the first expert of this kind.
        optimizer: Of the network.
    """

    def __init__(
        self,
        pool: Any,
        before: Sequence[int],
        after: Sequence[int],
        first: int,
        optimizer: OptimizerParameters,
    ) -> None:
        self.pool, self.first, self.optimizer = pool, first, optimizer
        self.before, self.after = list(before), list(after)

    def take(self, expert: int) -> Parcel:
        """Packs an expert, by its number."""
        place = self.before.index(expert)
        if (apart := self.pool.expert_modules) is not None:
            module = apart[place]
            return Parcel({}, module, *self.optimizer.of(module))
        tensors = self._tensors()
        # Copied: torch.save writes all of a view's storage, which is that of every expert here
        rows = {name: tensor[place].detach().clone() for name, tensor in tensors.items()}
        _, states = self.optimizer.of(self.pool)
        others = {
            name: {key: value for key, value in state.items() if f"{name}/{key}" not in rows}
            for name, state in states.items()
        }
        return Parcel(rows, None, {}, others)

    def settle(self, received: Mapping[int, Parcel]) -> None:
        """Puts what came, and what stays, into the new order.

        Raises:
            ValueError: Experts of another kind came, to a pool that is no part of the same one.
        """
        if self.before == self.after:
            return
        modules = self.pool.expert_modules is not None
        if any((parcel.module is None) == modules for parcel in received.values()):
            raise ValueError(
                f"experts: expected those of other ranks to be of one kind with this one's, a "
                f"{type(self.pool).__name__}; take each rank's with pool.part(…), also of none"
            )
        if modules:
            self._settle_modules(received)
        else:
            self._settle_rows(received)

    def _settle_modules(self, received: Mapping[int, Parcel]) -> None:
        held = dict(zip(self.before, self.pool, strict=True))
        for expert in set(held) - set(self.after):
            self.optimizer.forget(held[expert])
        for expert, parcel in sorted(received.items()):
            assert parcel.module is not None, "an expert of a pool of modules"
            held[expert] = parcel.module.train(self.pool.training)
            self.optimizer.learn(parcel.module, parcel.groups, parcel.states)
        self.pool.hold({e - self.first: held[e] for e in self.after})

    def _settle_rows(self, received: Mapping[int, Parcel]) -> None:
        if not self.before:
            self._begin_states(next(iter(received.values())))
        resized = len(self.before) != len(self.after)
        for name, tensor in self._tensors().items():
            rows = [
                received[e].rows[name] if e in received else tensor[self.before.index(e)]
                for e in self.after
            ]
            values = torch.stack([row.to(tensor.device) for row in rows]) if rows else tensor[:0]
            if resized:
                # Its gradient is that of another number of experts
                tensor.grad, tensor.data = None, values
            else:
                tensor.copy_(values)
        if resized:
            self.pool.num_experts = len(self.after)
            assert len(self.pool) == len(self.after), "all of it that counts experts"

    def _begin_states(self, parcel: Parcel) -> None:
        """Gives parameters that had no experts what the optimizer knows, with moments of none."""
        for name, state in parcel.states.items():
            moments = {key: row for key, row in parcel.rows.items() if key.startswith(f"{name}/")}
            self.optimizer.state[self.pool.get_parameter(name)] = state | {
                key.removeprefix(f"{name}/"): row.new_empty(0, *row.shape)
                for key, row in moments.items()
            }

    def _tensors(self) -> dict[str, Tensor]:
        """Tensors with the experts in front, and moments of parameters."""
        stored, tensors = self.pool.state_dict(), tensors_of(self.pool)
        if not self.pool.traits.joinable:  # of what no checkpoint holds nobody says whose it is
            tensors = {name: tensor for name, tensor in tensors.items() if name in stored}
        for name, weight in self.pool.named_parameters():
            for key, moment in self.optimizer.state.get(weight, {}).items():
                if isinstance(moment, Tensor) and moment.shape == weight.shape:
                    tensors[f"{name}/{key}"] = moment
        return tensors


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
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import (
        ...     AllToAllDispatcher,
        ...     ExpertPlacement,
        ...     ensure_process_group,
        ...     move_experts,
        ... )
        >>> ensure_process_group()
        >>> dispatcher = AllToAllDispatcher(ExpertPlacement(((0, 1),)))
        >>> layer = MultiGateMixture(8, 2, MLPExperts(2, 8, [3]), dispatcher=dispatcher)
        >>> weight = layer.experts.weights[0]
        >>> first = weight[0].clone()
        >>> move_experts([layer], dispatcher, ExpertPlacement(((1, 0),)))
        >>> torch.equal(layer.experts.weights[0][1], first), layer.experts.weights[0] is weight
        (True, True)
    """
    mixtures = [
        (mixture, OptimizerParameters(optimizer if number == 0 else None))
        for number, network in enumerate(networks)
        for _, mixture, own in mixtures_of(network)
        if own is dispatcher
    ]
    held = [p.on(dispatcher.wire.rank) for p in (dispatcher.placement, placement)]
    parts = [part for m, own in mixtures for part in _parts(m.experts, placement, held, own)]
    received = _exchanged(parts, dispatcher.wire, placement, _device_of(networks[0]))
    # Only now that all ranks could send what leaves them: else nothing is changed
    with torch.no_grad():
        for part, came in zip(parts, received, strict=True):
            part.settle(came)
    for mixture, _ in mixtures:
        _run_as(mixture)
    dispatcher.placement = placement


def _parts(
    experts: Pool,
    placement: ExpertPlacement,
    held: Sequence[Sequence[int]],
    optimizer: OptimizerParameters,
) -> Iterator[MovableExperts]:
    """The experts of a mixture that this rank held and is to hold, kind by kind."""
    for pool, kind in experts.expert_kinds(placement.num_experts):
        before, after = ([e for e in own if e in kind] for own in held)
        yield MovableExperts(pool, before, after, kind.start, optimizer)


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
    # Sizes and problems in one message: nothing leaves where some rank could not pack
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


def count_loads(network: nn.Module) -> None:
    """Begins to count what the spread experts of a network compute, for `rebalance_experts`.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import count_loads
        >>> count_loads(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))  # nothing is spread
    """
    for dispatcher, _ in _dispatchers(network).values():
        dispatcher.loads = ExpertLoads(dispatcher.placement.num_experts)


def stop_counting(network: nn.Module) -> None:
    """Ends what `count_loads` began: `rebalance_experts` then moves nothing.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import stop_counting
        >>> stop_counting(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))  # nothing is spread
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
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> from mmoe.parallel import rebalance_experts
        >>> rebalance_experts(MultiGateMixture(8, 2, MLPExperts(4, 8, [3])))  # nothing is spread
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
    """Moves experts to `placements`, if experts and ranks were as many; a call of all ranks.

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
    """Number of parameters of each expert; each rank knows its own experts'."""
    placement = dispatcher.placement
    costs_E = torch.zeros(placement.num_experts, dtype=torch.int64, device=device)
    sizes = map(sum, zip(*(pool.expert_sizes() for pool in pools), strict=True))
    for expert, parameters in zip(placement.on(dispatcher.wire.rank), sizes, strict=True):
        # 0 would make all rows of experts without parameters no load
        costs_E[expert] = max(parameters, 1)
    dist.all_reduce(costs_E, dist.ReduceOp.MAX)
    return costs_E

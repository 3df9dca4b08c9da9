"""`MovableExperts`: the experts of one pool that leave a rank, stay there, or come to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture import ExpertPool, MixedExperts, MLPExperts, NoExperts, StackedExperts
from mmoe.parallel.experts.placement import ExpertPlacement


class Parcel(NamedTuple):
    """One expert under way.

    Attributes:
        rows: Its entries of stacked tensors, by name, and of moments, by `NAME/MOMENT`.
        module: Of an `ExpertPool`, the expert; else a pool of it alone, where the rank to which it
            goes has none of its kind, or None.
        groups: By the names of parameters, which of the optimizer's groups each is in.
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
            if any(other is weight for other in group["params"])
        }
        named = dict(module.named_parameters())
        return groups, {name: dict(self.state.get(named[name], {})) for name in groups}

    def forget(self, module: nn.Module) -> None:
        """Takes a module's parameters out."""
        gone = {id(weight) for weight in module.parameters()}
        for group in self.groups:
            group["params"] = [w for w in group["params"] if id(w) not in gone]
        for weight in module.parameters():
            self.state.pop(weight, None)

    def learn(
        self,
        module: nn.Module,
        groups: Mapping[str, int],
        states: Mapping[str, dict[str, Any]],
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
        owner: Module that has the pool.
        name: Its attribute's name there.
        before: Numbers of the experts here, in their order.
        after: Those that are to be here.
        of_kind: Numbers of all experts of this kind.
        optimizer: Of the network.
    """

    def __init__(
        self,
        owner: nn.Module,
        name: str,
        before: Sequence[int],
        after: Sequence[int],
        of_kind: range,
        optimizer: OptimizerParameters,
    ) -> None:
        self.owner, self.name, self.of_kind = owner, name, of_kind
        self.before, self.after, self.optimizer = list(before), list(after), optimizer

    @property
    def pool(self) -> Any:
        """As it is now."""
        return getattr(self.owner, self.name)

    def is_of_kind(self, expert: int) -> bool:
        """Whether a number of the whole pool is that of such an expert."""
        return expert in self.of_kind

    def take(self, expert: int, *, whole: bool) -> Parcel:
        """Packs an expert.

        Args:
            expert: Its number.
            whole: The rank to which it goes has no expert of this kind.
        """
        place = self.before.index(expert)
        if isinstance(self.pool, ExpertPool):
            module = self.pool[place]
            return Parcel({}, module, *self.optimizer.of(module))
        tensors, groups, states = self._stacked(self.pool)
        rows = {name: tensor[place].detach().clone() for name, tensor in tensors.items()}
        return Parcel(rows, self.pool.part([place]) if whole else None, groups, states)

    def settle(self, received: Mapping[int, Parcel]) -> None:
        """Puts what came, and what stays, into the new order."""
        first = next(iter(received.values()), None)
        of_modules = isinstance(self.pool, ExpertPool) or (
            isinstance(self.pool, NoExperts) and first is not None and not first.rows
        )
        if self.before == self.after:
            return
        if of_modules:
            self._settle_modules(received)
        elif len(self.before) == len(self.after):
            tensors, _, _ = self._stacked(self.pool)
            self._fill(tensors, tensors, received)
        else:
            self._resize(received)

    def _settle_modules(self, received: Mapping[int, Parcel]) -> None:
        pool = self.pool
        held = dict(zip(self.before, pool, strict=True)) if self.before else {}
        for expert in set(held) - set(self.after):
            self.optimizer.forget(held[expert])
        for expert, parcel in sorted(received.items()):
            assert parcel.module is not None, "an expert of a pool of modules"
            held[expert] = parcel.module.train(pool.training)
            self.optimizer.learn(parcel.module, parcel.groups, parcel.states)
        experts = {e - self.of_kind.start: held[e] for e in self.after}
        if not experts:
            self._replace(pool.part([]))
        elif isinstance(pool, ExpertPool):
            pool.hold(experts)
        else:
            self._replace(ExpertPool(experts.values(), pool.output_dim, list(experts)))

    def _resize(self, received: Mapping[int, Parcel]) -> None:
        """Other numbers of experts than before: new tensors take the place of the old ones."""
        pool = self.pool
        if not self.after:
            self.optimizer.forget(pool)
            self._replace(pool.part([]))
            return
        old, template, groups, states = {}, pool, {}, {}
        if self.before:
            old, groups, states = self._stacked(pool)
        else:
            _, template, groups, states = next(iter(received.values()))
        assert isinstance(template, nn.Module), "it comes with experts of a kind that is new here"
        part: Any = template
        new: nn.Module = part.part([0] * len(self.after))
        self._begin_moments(new, received, old, states)
        self.optimizer.forget(pool)
        self.optimizer.learn(new, groups, states)
        self._fill(self._stacked(new)[0], old, received)
        self._replace(new)

    def _begin_moments(
        self,
        new: nn.Module,
        received: Mapping[int, Parcel],
        old: Mapping[str, Tensor],
        states: dict[str, dict[str, Any]],
    ) -> None:
        """Gives each new parameter as many moments, to be filled."""
        for full_name in next(iter(received.values())).rows if received else old:
            name, _, moment = full_name.rpartition("/")
            if name:
                states[name][moment] = torch.zeros_like(new.get_parameter(name))

    def _fill(
        self,
        tensors: Mapping[str, Tensor],
        old: Mapping[str, Tensor],
        received: Mapping[int, Parcel],
    ) -> None:
        for name, tensor in tensors.items():
            rows = [
                received[e].rows[name] if e in received else old[name][self.before.index(e)]
                for e in self.after
            ]
            tensor.copy_(torch.stack([row.to(tensor.device) for row in rows]))

    def _stacked(
        self, pool: nn.Module
    ) -> tuple[dict[str, Tensor], dict[str, int], dict[str, dict[str, Any]]]:
        """Tensors with the experts in front, moments among them; groups; and the other states."""
        tensors: dict[str, Tensor] = pool.state_dict()  # what is copied into them, the pool has
        if isinstance(pool, MLPExperts | StackedExperts):  # also buffers that no checkpoint holds
            tensors |= dict(pool.named_buffers())
        groups, states = self.optimizer.of(pool)
        others: dict[str, dict[str, Any]] = {}
        for name, state in states.items():
            shape = pool.get_parameter(name).shape
            stacked = {k: v for k, v in state.items() if getattr(v, "shape", None) == shape}
            tensors |= {f"{name}/{key}": moment for key, moment in stacked.items()}
            others[name] = {key: value for key, value in state.items() if key not in stacked}
        return tensors, groups, others

    def _replace(self, pool: nn.Module) -> None:
        setattr(self.owner, self.name, pool.train(self.pool.training))


def movable_parts(
    mixture: nn.Module,
    before: ExpertPlacement,
    after: ExpertPlacement,
    rank: int,
    optimizer: OptimizerParameters,
) -> Iterator[MovableExperts]:
    """Yields the experts of a mixture on a rank, kind by kind.

    Args:
        mixture: A `MultiGateMixture`.
        before: Where experts are.
        after: Where they are to be.
        rank: Of those of the placements.
        optimizer: Of the network.
    """
    pool = mixture.experts
    slots: list[tuple[nn.Module, str, range]] = [(mixture, "experts", range(after.num_experts))]
    if isinstance(pool, MixedExperts):
        slots = [(pool.pools, str(i), of_kind) for i, of_kind in enumerate(pool.ranges)]
    for owner, name, of_kind in slots:
        yield MovableExperts(
            owner,
            name,
            [e for e in before.on(rank) if e in of_kind],
            [e for e in after.on(rank) if e in of_kind],
            of_kind,
            optimizer,
        )

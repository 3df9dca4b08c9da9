"""`MovableExperts`: the experts of one pool that leave a rank, stay there, or come to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture import MultiGateMixture
from mmoe.mixture.experts.contract import tensors_of
from mmoe.parallel.experts.placement import ExpertPlacement


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


def movable_parts(
    mixture: MultiGateMixture,
    before: ExpertPlacement,
    after: ExpertPlacement,
    rank: int,
    optimizer: OptimizerParameters,
) -> Iterator[MovableExperts]:
    """Yields the experts of a mixture on a rank, kind by kind.

    Args:
        mixture: The layer.
        before: Where experts are.
        after: Where they are to be.
        rank: Of those of the placements.
        optimizer: Of the network.
    """
    for part, of_kind in mixture.experts.expert_kinds(after.num_experts):
        here, there = ([e for e in p.on(rank) if e in of_kind] for p in (before, after))
        yield MovableExperts(part, here, there, of_kind.start, optimizer)

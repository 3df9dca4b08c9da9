"""`StackedExperts`: equal modules of any class, whose tensors lie one upon the other."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from mmoe.mixture.axes import HasAxes
from mmoe.mixture.experts.no_experts import NoExperts, check_numbers
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.traits import PoolTraits


class StackedExperts(nn.Module):
    """Pool of E modules of one class: each of their tensors is one, experts in front.

    They compute what an `ExpertPool` of them does. Since every tensor says which of it is whose,
    such experts can lie on several ranks, be saved in shards, and grow in number, as `MLPExperts`.

    Args:
        experts: Modules that map rows to as many rows, with tensors of the same names and shapes.
        output_dim: Width of what they return; default: their `output_dim` (or `out_features`).

    Raises:
        ValueError: No experts, or experts whose tensors differ.

    Example:
        >>> import torch
        >>> from mmoe.mixture import StackedExperts
        >>> pool = StackedExperts([torch.nn.Linear(8, 16) for _ in range(4)])
        >>> pool.stacked.weight.shape, pool.output_dim
        (torch.Size([4, 16, 8]), 16)
        >>> pool.grouped(torch.zeros(3, 8), torch.tensor([0, 1, 1, 3, 3]).int()).shape
        torch.Size([3, 16])
    """

    def __init__(self, experts: Iterable[nn.Module], output_dim: int | None = None) -> None:
        super().__init__()
        pool = ExpertPool(experts, output_dim)
        self.num_experts, self.output_dim = len(pool), pool.output_dim
        self.stacked = copy.deepcopy(pool[0])
        states = [_tensors(expert) for expert in pool]
        for name, tensor in _tensors(self.stacked).items():
            shapes = {tuple(state[name].shape) if name in state else None for state in states}
            if len(shapes) > 1:
                raise ValueError(
                    f"experts: expected modules whose tensors are alike, got {name!r} of shapes "
                    f"{sorted(map(str, shapes))}"
                )
            tensor.data = torch.stack([state[name].detach() for state in states])

    @classmethod
    def around(
        cls, stacked: nn.Module, num_experts: int, output_dim: int | None
    ) -> "StackedExperts":
        """Makes a pool around a module whose tensors are stacked already; nothing is copied."""
        pool = cls.__new__(cls)
        nn.Module.__init__(pool)
        pool.num_experts, pool.output_dim = num_experts, output_dim
        pool.stacked, pool.training = stacked, stacked.training
        return pool

    def part(self, experts: Sequence[int]) -> "StackedExperts | NoExperts":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Raises:
            ValueError: A number outside [0, E).
        """
        check_numbers(experts, len(self))
        part = copy.deepcopy(self)
        part.num_experts = len(experts)
        for tensor in _tensors(part.stacked).values():
            numbers = torch.tensor(experts, dtype=torch.int64, device=tensor.device)
            tensor.data = tensor.data[numbers]
        return part if experts else NoExperts(self.output_dim, part)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are: the experts, then what they say."""
        tensors, said = self.stacked.state_dict(), {}
        if isinstance(self.stacked, HasAxes):
            said = self.stacked.axes()
        return {
            f"stacked.{name}": {0: "experts", **{d + 1: kind for d, kind in of.items()}}
            for name, of in ((name, said.get(name, {})) for name in tensors)
        }

    @property
    def traits(self) -> PoolTraits:
        """A batch normalisation looks at the other rows of an expert."""
        uses_batch = any(isinstance(m, _BatchNorm) for m in self.stacked.modules())
        return PoolTraits(uses_batch=uses_batch, joinable=True)

    def __len__(self) -> int:
        """E."""
        return self.num_experts

    def forward(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Does the same as `dense`."""
        return self.dense(inputs)

    def dense(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Runs every expert on all rows: one input for all, or one per expert."""
        return self._pool(self._split()).dense(inputs)

    def grouped(self, rows: Tree, offsets_E1: Tensor) -> Tree:
        """Runs expert e on rows `offsets[e] : offsets[e + 1]`, row for row."""
        return self._pool(self._split()).grouped(rows, offsets_E1)

    def _split(self) -> list[dict[str, Tensor]]:
        """Each expert's tensors; of one `unbind`, whose gradient is one tensor."""
        tensors = {name: tensor.unbind(0) for name, tensor in _tensors(self.stacked).items()}
        return [
            {name: of_experts[e] for name, of_experts in tensors.items()}
            for e in range(self.num_experts)
        ]

    def _pool(self, each: Sequence[dict[str, Tensor]]) -> ExpertPool:
        """Holds nothing: it calls the stacked module with one expert's tensors after another."""
        views = [_Expert(self.stacked, tensors) for tensors in each]
        return ExpertPool(views, self.output_dim).train(self.training)


class _Expert(nn.Module):
    """The stacked module with the tensors of one expert in their place."""

    def __init__(self, stacked: nn.Module, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.parts = (stacked, tensors)  # in a tuple, so that they are not registered

    def forward(self, rows: Tree) -> Any:
        """As the expert itself."""
        stacked, tensors = self.parts
        return functional_call(stacked, tensors, (rows,))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Its tensors, for messages."""
        return cast(Iterator[nn.Parameter], iter(self.parts[1].values()))

    def _get_name(self) -> str:
        return type(self.parts[0]).__name__


def are_alike(experts: Sequence[nn.Module]) -> bool:
    """Returns whether modules are of one class, with tensors of the same names and shapes."""
    kinds = {
        (type(expert), tuple((n, t.shape, t.dtype) for n, t in _tensors(expert).items()))
        for expert in experts
    }
    return len(kinds) == 1


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])

"""`MixedExperts`: experts of several kinds in one pool."""

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, picked
from mmoe.mixture.experts.no_experts import NoExperts, check_numbers
from mmoe.mixture.traits import PoolTraits


class MixedExperts(nn.Module):
    """Pools of several kinds as one: the experts of the first, of the second, and so on.

    Each runs the rows of its own experts, `MLPExperts` as grouped products.

    Args:
        pools: `MLPExperts`, `StackedExperts`, `ExpertPool`, or others that say whose each of their
            tensors is.
        names: What an error calls them; default: their classes.

    Raises:
        ValueError: No pools, or pools of which one returns another width.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MixedExperts, MLPExperts, StackedExperts
        >>> mine = StackedExperts([torch.nn.Linear(8, 16) for _ in range(2)])
        >>> pool = MixedExperts([MLPExperts(6, 8, [32, 16]), mine])
        >>> len(pool), [y.shape for y in pool.dense([torch.zeros(3, 8)])][-1]
        (8, torch.Size([3, 16]))
    """

    def __init__(self, pools: Iterable[nn.Module], names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.pools = nn.ModuleList(pools)
        if not len(self.pools):
            raise ValueError("pools: expected at least one, got none")
        names = names or [type(pool).__name__ for pool in self.pools]
        widths = [pool.output_dim for pool in self._each()]
        for name, width in zip(names, widths, strict=True):
            if width != widths[0]:
                raise ValueError(
                    f"experts: {names[0]} returns width {widths[0]}, but {name} returns width "
                    f"{width}; all experts of a pool have one width"
                )
        self.output_dim: int | None = widths[0]
        ends = [0]
        for pool in self._each():
            ends.append(ends[-1] + len(pool))
        self.ranges = tuple(range(a, b) for a, b in pairwise(ends))  # of the whole, in a part too

    def part(self, experts: Sequence[int]) -> "MixedExperts | NoExperts":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Args:
            experts: Their numbers; those of one pool side by side, in the order of the pools.

        Raises:
            ValueError: A number outside [0, E), or another order.
        """
        check_numbers(experts, len(self))
        if not experts:
            return NoExperts(self.output_dim)
        owners = [next(i for i, own in enumerate(self.ranges) if e in own) for e in experts]
        if owners != sorted(owners):
            raise ValueError(
                f"experts: expected those of one pool side by side, in the order of the pools, got "
                f"{list(experts)}"
            )
        part = copy.copy(self)
        part._modules = {}
        part.pools = nn.ModuleList(
            pool.part([e - own.start for e in experts if e in own])
            for pool, own in zip(self._each(), self.ranges, strict=True)
        )
        return part

    def named_parts(self, names: Names) -> list[Part]:
        """Says which experts each pool has; one that says nothing has them in front."""
        return [
            Part(f"pools.{i}", ("pools", str(i)), picked(names, "experts", own), "experts")
            for i, own in enumerate(self.ranges)
        ]

    @property
    def traits(self) -> PoolTraits:
        """Traits of the whole: what one pool needs, all get."""
        each = [pool.traits for pool in self._each()]
        return PoolTraits(uses_batch=any(traits.uses_batch for traits in each))

    def __len__(self) -> int:
        """E."""
        return sum(len(pool) for pool in self._each())

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Does the same as `dense`."""
        return self.dense(inputs)

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs every expert on all rows: one input for all, or one per expert."""
        if len(inputs) not in (1, len(self)):
            raise ValueError(
                f"inputs: expected one tensor for all experts or {len(self)}, one per expert, got "
                f"{len(inputs)}"
            )
        outputs: list[Tensor] = []
        for number, pool in enumerate(self._each()):
            start = len(outputs)
            own = inputs if len(inputs) == 1 else inputs[start : start + len(pool)]
            outputs += self._dense(number, own) if len(pool) else []
        return of_one_type(outputs)

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """Runs expert e on rows `offsets[e] : offsets[e + 1]`; 0 past the last one.

        The sizes of the pools' shares are read on the host.
        """
        if not len(self):  # all of them have left this rank
            return NoExperts(self.output_dim).grouped(rows, offsets_E1)
        ends = [0]
        for pool in self._each():
            ends.append(ends[-1] + len(pool))
        bounds = offsets_E1[torch.tensor(ends, device=offsets_E1.device)].tolist()
        tail = len(rows) - bounds[-1]
        *shares, _ = rows.split([*(b - a for a, b in pairwise(bounds)), tail])
        outputs = [
            self._grouped(number, share, offsets_E1[start : end + 1] - offsets_E1[start])
            for number, (share, (start, end)) in enumerate(zip(shares, pairwise(ends), strict=True))
            if end > start
        ]
        if tail:
            outputs.append(outputs[0].new_zeros(tail, outputs[0].shape[1]))
        return torch.cat(of_one_type(outputs))

    def _dense(self, number: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """One pool on all rows."""
        return self._each()[number].dense(inputs)

    def _grouped(self, number: int, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """One pool on its experts' rows."""
        return self._each()[number].grouped(rows, offsets_E1)

    def _each(self) -> list[Any]:
        return list(self.pools)


def of_one_type(outputs: list[Tensor]) -> list[Tensor]:
    """Casts to the widest: under autocast some modules return float32, others bfloat16."""
    dtypes = {y.dtype for y in outputs}
    if len(dtypes) < 2:
        return outputs
    widest = torch.float32 if torch.float64 not in dtypes else torch.float64
    return [y.to(widest) for y in outputs]

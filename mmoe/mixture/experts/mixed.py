"""`MixedExperts`: experts of several kinds, stages or levels in one pool."""

import copy
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, picked
from mmoe.mixture.experts.contract import Pool, Record, check_numbers
from mmoe.mixture.inputs import ColumnChoice, Inputs, RequestColumns
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.traits import PoolTraits, SharedWork


class MixedExperts(Pool):
    """Pools of several kinds as one: the experts of the first, of the second, and so on.

    Each runs the rows of its own experts, `MLPExperts` as grouped products.

    Args:
        pools: `MLPExperts`, `ExpertPool`, or others that say whose each of their tensors is.
        names: What an error calls them; default: their classes.
        columns: Where pools came one after another: of the input, the columns that each of them
            reads; None in it: all. Default: each reads all, and none came later.
        requests: The first of two pools reads the request's columns of these alone, and runs once
            a request of rows of requests; then each row mixes what its request has.

    Raises:
        ValueError: No pools, or pools of which one returns another width.

    Example:
        >>> import torch
        >>> from mmoe.mixture import ExpertPool, MixedExperts, MLPExperts
        >>> mine = ExpertPool([torch.nn.Linear(8, 16) for _ in range(2)])
        >>> pool = MixedExperts([MLPExperts(6, 8, [32, 16]), mine])
        >>> len(pool), [y.shape for y in pool.dense([torch.zeros(3, 8)])][-1]
        (8, torch.Size([3, 16]))
        >>> later = [MLPExperts(6, 8, [16]), MLPExperts(2, 9, [16])]
        >>> len(MixedExperts(later, columns=[range(8), None]).dense([torch.zeros(3, 9)]))
        8
    """

    def __init__(
        self,
        pools: Iterable[nn.Module],
        names: Sequence[str] | None = None,
        *,
        columns: Sequence[Sequence[int] | None] | None = None,
        requests: RequestColumns | None = None,
    ) -> None:
        super().__init__()
        self.pools = nn.ModuleList(pools)
        self.staged, self.requests = columns is not None, requests
        if requests is not None:
            names = names or ["experts of the request", "experts of the row"]
            columns = [requests.of_request, None]
        each = columns or [None] * len(self.pools)
        self.choices = nn.ModuleList(
            ColumnChoice(None if own is None else list(own)) for own in each
        )
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

    def part(self, experts: Sequence[int]) -> "MixedExperts":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Args:
            experts: Their numbers; those of one pool side by side, in the order of the pools.

        Raises:
            ValueError: A number outside [0, E), or another order.
        """
        check_numbers(experts, len(self))
        owners = [next(i for i, own in enumerate(self.ranges) if e in own) for e in experts]
        if owners != sorted(owners):
            raise ValueError(
                f"experts: expected those of one pool side by side, in the order of the pools, got "
                f"{list(experts)}"
            )
        part = copy.copy(self)
        # copy.copy shares the dict of modules with the whole, which must keep its pools
        part._modules = {}
        part.pools = nn.ModuleList(
            pool.part([e - own.start for e in experts if e in own])
            for pool, own in zip(self._each(), self.ranges, strict=True)
        )
        # With buffers of its own, as it may go to another device
        part.choices, part.requests = copy.deepcopy(self.choices), copy.deepcopy(self.requests)
        return part

    def named_parts(self, names: Names) -> list[Part]:
        """Says which experts and inputs each pool has; it goes on by these, not by its number.

        But where requests have experts of their own: what others have is not theirs.
        """
        parts = []
        for number, own in enumerate(self.ranges):
            read, columns_C = picked(names, "experts", own), self._choice(number).columns_C
            if columns_C is not None:
                read = picked(read, "inputs", columns_C.tolist())
            path = () if self.requests is None else ("pools", str(number))
            parts.append(Part(f"pools.{number}", path, read, "experts"))
        return parts

    @property
    def expert_stages(self) -> Sequence[range]:
        """Stages of each pool, where pools came one after another."""
        return self.ranges if self.staged else ()

    def expert_kinds(self, num_experts: int) -> list[tuple[Pool, range]]:
        """Returns the pools."""
        return list(zip(self._each(), self.ranges, strict=True))

    def expert_sizes(self) -> list[int]:
        """Returns those of all pools, one after another."""
        return [size for pool in self._each() for size in pool.expert_sizes()]

    @property
    def traits(self) -> PoolTraits:
        """Traits of the whole: what one pool needs, all get."""
        # No static shapes: `grouped` reads bounds on the host. Nor are kinds joinable with each
        # other, or told of a record
        each = [pool.traits for pool in self._each()]
        return PoolTraits(uses_batch=any(traits.uses_batch for traits in each))

    def __len__(self) -> int:
        """E."""
        return sum(len(pool) for pool in self._each())

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs every expert on all rows: one input for all, or one per expert."""
        if len(inputs) not in (1, len(self)):
            raise self.wrong_count(inputs)
        outputs: list[Tensor] = []
        for number, pool in enumerate(self._each()):
            start = len(outputs)
            own = inputs if len(inputs) == 1 else inputs[start : start + len(pool)]
            outputs += self._dense(number, own) if len(pool) else []
        return of_one_type(outputs)

    def of_requests(self, rows: Inputs, record: Record | None = None) -> list[Tensor]:
        """Does what `dense` does with whole rows, computing once what a request's rows share.

        Each pool does so as it would alone, where it reads all columns and they are of stages or
        levels; experts of several kinds read whole rows.
        """
        if self.requests is not None:
            return of_one_type(self.shared_outputs(rows) + self._of_requests(1, rows))
        if not self.staged:
            return self.dense([cast_for_autocast(rows.whole)])
        each = [y for number in range(len(self.pools)) for y in self._of_requests(number, rows)]
        return of_one_type(each)

    def _of_requests(self, number: int, rows: Inputs) -> list[Tensor]:
        pool = self._each()[number]
        if not len(pool):
            return []
        if self._choice(number).columns_C is None:
            return pool.of_requests(rows)
        # Which of a stage's own columns are the request's nobody has said
        return self._dense(number, [cast_for_autocast(rows.whole)])

    def shared_outputs(self, rows: Inputs) -> list[Tensor]:
        """Computes what the request's experts give each row."""
        if self.requests is None or not len(self._each()[0]):
            return []
        return rows.once_a_request(self._each()[0])

    def shared_work(self, rows: Inputs) -> SharedWork:
        """The experts of the request, and what the others share; of stages nothing is counted."""
        if self.requests is None:
            return SharedWork()
        of_request, of_row = self._each()
        return SharedWork(len(of_request), of_row.shared_work(rows).parameters)

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """Runs expert e on rows `offsets[e] : offsets[e + 1]`; 0 past the last one."""
        if not len(self):  # all of them have left this rank
            return self.no_rows(rows)
        ends = [0]
        for pool in self._each():
            ends.append(ends[-1] + len(pool))
        # One read for all pools: on a GPU each would wait for the plan
        bounds = offsets_E1[torch.tensor(ends, device=offsets_E1.device)].tolist()
        tail = len(rows) - bounds[-1]
        *shares, _ = rows.split([*(b - a for a, b in pairwise(bounds)), tail])
        outputs = [
            self._grouped(number, share, offsets_E1[start : end + 1] - offsets_E1[start])
            for number, (share, (start, end)) in enumerate(zip(shares, pairwise(ends), strict=True))
            if end > start
        ]
        if tail:
            # A plan may have places that no pair takes; they come last
            outputs.append(outputs[0].new_zeros(tail, outputs[0].shape[1]))
        return torch.cat(of_one_type(outputs))

    def _dense(self, number: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs one pool on all rows."""
        return self._each()[number].dense(self._choice(number).of(inputs))

    def _grouped(self, number: int, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """Runs one pool on its experts' rows."""
        return self._each()[number].grouped(self._choice(number)(rows), offsets_E1)

    def _choice(self, number: int) -> ColumnChoice:
        choice = self.choices[number]
        assert isinstance(choice, ColumnChoice)
        return choice

    def _each(self) -> list[Pool]:
        return cast("list[Pool]", list(self.pools))


def of_one_type(outputs: list[Tensor]) -> list[Tensor]:
    """Casts to the widest: under autocast some modules return float32, others bfloat16."""
    dtypes = {y.dtype for y in outputs}
    if len(dtypes) < 2:
        return outputs
    widest = torch.float32 if torch.float64 not in dtypes else torch.float64
    return [y.to(widest) for y in outputs]

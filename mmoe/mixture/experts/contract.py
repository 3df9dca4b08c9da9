"""`Pool`: what every pool of experts has, and how a part of one is made, down to none of them."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from mmoe.mixture.inputs import Inputs
from mmoe.mixture.pytrees import Tree, cast_for_autocast, gather_rows, join_rows
from mmoe.mixture.traits import PoolTraits, SharedWork
from mmoe.ops import RoutePlan

# What every ReLU layer gave, after it: one tensor (grouped), or one for each expert (dense).
Record = list[Tensor | list[Tensor]]


class Pool(nn.Module):
    """E experts that all gates share, and that return rows of one width: a base class.

    A pool of one's own says `output_dim`, `__len__`, `dense` and `grouped`; what else there is goes
    by these, and is overridden where a pool can do better. A pool may have no experts, as that of a
    rank for which others compute: then `dense` returns nothing, and `grouped` no rows.

    Attributes:
        output_dim: O, the width of what the experts return; None: not known.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MoE, Pool
        >>> class Powers(Pool):
        ...     output_dim = 8
        ...     def __len__(self):
        ...         return 2
        ...     def dense(self, inputs):
        ...         return [inputs[0], inputs[-1].square()]
        ...     def grouped(self, rows, offsets_E1):
        ...         first, second = rows.tensor_split(offsets_E1[1:-1].long())
        ...         return torch.cat([first, second.square()])
        >>> MoE(8, Powers(), k=1)(torch.zeros(3, 8)).shape
        torch.Size([3, 8])
    """

    output_dim: int | None = None
    slices = 1  # of each whole expert, where these are slices (`cut_into_slices`)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Makes `gathered` follow a class's own `grouped`; requests are read if the class says so.

        What is derived from a pool may read its input otherwise.
        """
        super().__init_subclass__(**keywords)
        own = vars(cls)
        # An inherited `gathered` would run the layers of the class above instead
        if "grouped" in own and "gathered" not in own:
            cls.gathered = Pool.gathered
        if "of_requests" not in own:
            for name in {"of_requests", "shared_work", "shared_outputs"} - own.keys():
                setattr(cls, name, getattr(Pool, name))

    @property
    def traits(self) -> PoolTraits:
        """Describes how it may be run."""
        return PoolTraits()

    def __len__(self) -> int:
        """E, the experts of this pool."""
        raise NotImplementedError(f"{type(self).__name__}: a pool needs __len__")

    def forward(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Does the same as `dense`."""
        return self.dense(inputs)

    def dense(self, inputs: Sequence[Tree]) -> list[Tree]:
        """Runs every expert on all rows: one `x_BD` for all or one per expert → E times `y_BO`."""
        raise NotImplementedError(f"{type(self).__name__}: a pool needs dense")

    def grouped(self, rows: Tree, offsets_E1: Tensor) -> Tree:
        """Runs expert e on rows `offsets[e] : offsets[e + 1]` → `y_RO`, row for row.

        Args:
            rows: `x_RD`, or a tree of tensors with R rows, sorted by expert.
            offsets_E1: int32; where each expert's rows start, and the last one's end.
        """
        raise NotImplementedError(f"{type(self).__name__}: a pool needs grouped")

    def gathered(self, x_BD: Tree, plan: RoutePlan, record: Record | None = None) -> Tree:
        """Runs each expert on the rows that a plan names: `grouped` of these.

        Args:
            x_BD: Rows, or a tree of them, not yet sorted.
            plan: Which row each (row, expert) pair reads.
            record: Told of what is computed; None: nobody listens.
        """
        # A pool of somebody's own takes no `record` unless its traits say so (`has_dead_units`)
        recorded: Any = {} if record is None else {"record": record}
        return self.grouped(gather_rows(x_BD, plan), plan.offsets_E1, **recorded)

    def of_requests(self, rows: Inputs, record: Record | None = None) -> list[Tree]:
        """Runs every expert on rows of requests, computing once what they share: here nothing.

        Args:
            rows: Candidates, and what those of a request share.
            record: Told of what is computed; None: nobody listens.

        Returns:
            E times `y_BO`: as of `dense`.
        """
        recorded: Any = {} if record is None else {"record": record}
        return self.dense([cast_for_autocast(rows.whole)], **recorded)

    def shared_work(self, rows: Inputs) -> SharedWork:
        """Returns what `of_requests` computes once a request."""
        return SharedWork()

    def shared_outputs(self, rows: Inputs) -> list[Tensor]:
        """Returns what those experts give each row that run once a request, the first ones."""
        return []

    @property
    def expert_modules(self) -> Sequence[nn.Module] | None:
        """The experts, where each is a module of its own; None: all tensors have them in front."""
        return None

    @property
    def expert_stages(self) -> Sequence[range]:
        """Numbers of the experts that came together, in pools 0, 1, …; none: all came at once."""
        return ()

    def expert_kinds(self, num_experts: int) -> list[tuple["Pool", range]]:
        """Returns pools of one kind each, with the numbers of their experts among all of them."""
        return [(self, range(num_experts))]

    def expert_sizes(self) -> list[int]:
        """Returns the number of parameters of each expert."""
        numbers = sum(weight.numel() for weight in self.parameters())
        return [numbers // len(self) for _ in range(len(self))]  # of none: none

    def part(self, experts: Sequence[int]) -> "Pool":
        """Copies some of the experts into a pool of their own, such as those of one rank.

        Args:
            experts: Their numbers; none: a pool of no experts.

        Raises:
            ValueError: A number outside [0, E), or a pool whose experts cannot be told apart.
        """
        raise ValueError(
            f"experts: expected a pool whose experts can be told apart, got a "
            f"{type(self).__name__}, which has no part(experts); use MLPExperts or ExpertPool"
        )

    def wrong_count(self, inputs: Sequence[Tree]) -> ValueError:
        """Says that `dense` got neither one input nor as many as there are experts."""
        return ValueError(
            f"inputs: expected one for all experts or {len(self)}, one per expert, got "
            f"{len(inputs)}"
        )

    def no_rows(self, rows: Tensor) -> Tensor:
        """Maps no rows `x_0D` to no rows `y_0O`, which depend on x as on other ranks.

        Raises:
            ValueError: Rows came, or the output's width is not known.
        """
        if len(rows):
            raise ValueError(f"rows: expected none for a pool without experts, got {len(rows)}")
        if self.output_dim is None:
            raise ValueError("output_dim: expected the width that the other ranks return, got None")
        # Not new zeros: the backward pass must reach the exchange of rows here too, or others would
        # wait
        return rows.sum(1, keepdim=True).expand(0, self.output_dim)


PoolT = TypeVar("PoolT", bound=Pool)


def stacked_part(pool: PoolT, experts: Sequence[int]) -> PoolT:
    """Copies some of the experts of a pool whose tensors all have the experts in front.

    No random number is drawn. So ranks that make the whole pool from one seed, and then each its
    part, start with the parameters of one process.

    Raises:
        ValueError: A number outside [0, E).
    """
    check_numbers(experts, len(pool))
    part: Any = copy.deepcopy(pool)
    part.num_experts, numbers = len(experts), torch.tensor(experts, dtype=torch.int64)
    for tensor in tensors_of(part).values():
        # Into the copy's own parameters, which keep their names and whether they are trained
        tensor.data = tensor.data[numbers.to(tensor.device)]
    return part


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns all that a module computes by, by name; also buffers that no checkpoint holds."""
    return dict([*module.named_parameters(), *module.named_buffers()])


def check_numbers(experts: Sequence[int], num_experts: int) -> None:
    """Refuses numbers that no expert of a pool has."""
    for expert in experts:
        if not 0 <= expert < num_experts:
            raise ValueError(f"experts: expected numbers from 0 to {num_experts - 1}, got {expert}")


class PoolCompute:
    """Runs a pool on what `Dispatcher.dispatch` returns; a dispatcher may look at the pool.

    Args:
        pool: The experts of this rank.
        record: Gets what every ReLU layer gave appended, where the pool has dead units.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts
        >>> compute = PoolCompute(MLPExperts(2, 4, [3]))
        >>> compute(torch.zeros(5, 4), None).shape  # both experts compute all rows
        torch.Size([10, 3])
        >>> compute(torch.zeros(5, 4), torch.tensor([0, 2, 5]).int()).shape
        torch.Size([5, 3])
    """

    def __init__(self, pool: Pool, record: Record | None = None) -> None:
        self.pool = pool
        self._recorded = {} if record is None else {"record": record}

    def __call__(self, rows: Tree, offsets_E1: Tensor | None) -> Tree:
        """Returns `y_RO`, row for row; without offsets every expert computes every row."""
        pool = cast(Any, self.pool)
        if offsets_E1 is None:
            return join_rows(pool.dense([rows]))
        return pool.grouped(rows, offsets_E1, **self._recorded)


def pool_of(compute: object) -> Pool | None:
    """Returns the experts that a function runs; None: it is somebody's own, and has none."""
    return compute.pool if isinstance(compute, PoolCompute) else None

"""`repeat_rows`: the row of its owner for each of B rows, as a user's for each candidate."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmoe.ops.reference import sums_by_bounds


@dataclass(frozen=True)
class Owners:
    """Owner of each of B rows, one of Q.

    Attributes:
        of_B: The owner's number, int64, 0 … Q − 1; rows of one need not lie side by side.
        count: Q.

    Example:
        >>> import torch
        >>> owners = Owners(torch.tensor([1, 0, 1]), 2)
        >>> owners.order_B.tolist(), owners.bounds.tolist()
        ([1, 0, 2], [0, 1, 3])
    """

    of_B: Tensor
    count: int

    @cached_property
    def order_B(self) -> Tensor:
        """Rows by owner, those of one in their order; int64."""
        return self.of_B.argsort(stable=True)

    @cached_property
    def bounds(self) -> Tensor:
        """Returns each owner's first row in `order_B`, and B; int64 [Q + 1]. Nothing is awaited."""
        numbers = torch.arange(self.count + 1, device=self.of_B.device)
        return torch.searchsorted(self.of_B.index_select(0, self.order_B), numbers)


def repeat_rows(x_QD: Tensor, owners: Owners) -> Tensor:
    """Gives each row its owner's: `out[b] = x[of[b]]`.

    The gradient is `sum_by_owner`: the same input gives the same bits on any device, which that of
    PyTorch's indexing does not on a GPU.

    Args:
        x_QD: A row for each owner, float.
        owners: Of B rows.

    Returns:
        `out_BD` in x's type.

    Example:
        >>> import torch
        >>> repeat_rows(torch.tensor([[1.0], [2.0]]), Owners(torch.tensor([1, 0, 1]), 2)).tolist()
        [[2.0], [1.0], [2.0]]
    """
    return _Repeat.apply(x_QD, owners)


def sum_by_owner(x_BD: Tensor, owners: Owners) -> Tensor:
    """Adds up the rows of each owner, in their order: `out[q] = Σ x[b]` over b with `of[b] = q`.

    Args:
        x_BD: float32, bfloat16 (added up in float32) or float64.
        owners: Of the rows.

    Returns:
        `out_QD` in x's type; zeros for an owner without rows. It has no gradient.

    Example:
        >>> import torch
        >>> sum_by_owner(torch.tensor([[1.0], [2.0], [4.0]]), Owners(torch.tensor([1, 0, 1]), 3))
        tensor([[2.],
                [5.],
                [0.]])
    """
    wide_BD = x_BD.detach().to(torch.promote_types(x_BD.dtype, torch.float32))
    return sums_by_bounds(wide_BD, owners.order_B, owners.bounds).to(x_BD.dtype)


class _Repeat(torch.autograd.Function):
    """PyTorch's own gradient adds in an order that a GPU does not keep."""

    @staticmethod
    def forward(ctx: Any, x_QD: Tensor, owners: Owners) -> Tensor:
        ctx.owners = owners
        return x_QD.index_select(0, owners.of_B)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad_BD,) = grads
        return sum_by_owner(grad_BD, ctx.owners), None

"""Rows that belong together: each one's from its owner (`repeat_rows`), and sums over them.

Gradients are sums in a fixed order, which PyTorch's own are not on a GPU, and need no sort where
the rows lie in order already.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
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


def jagged_sum(e_VD: Tensor, lengths_B: Tensor, weights_V: Tensor | None = None) -> Tensor:
    """Adds up each sample's rows: `out_b = Σ_v w_v e_v` over its own v.

    On the CPU in the order of the rows, so that a sample's bits depend on its rows alone.

    Args:
        e_VD: Rows of all samples, one sample's after another's; float.
        lengths_B: How many each sample has, int; they sum to V.
        weights_V: Of the rows, in their type; None: all are 1.

    Returns:
        `out_BD` in the type of the rows; zeros where a sample has none.

    Example:
        >>> import torch
        >>> jagged_sum(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 1])).tolist()
        [[3.0], [0.0], [4.0]]
    """
    return _JaggedSum.apply(e_VD, lengths_B, weights_V)


def sample_of_rows(lengths_B: Tensor, rows: int) -> Tensor:
    """Returns the sample that each of V rows belongs to, int64 [V]; no device is waited for.

    Example:
        >>> import torch
        >>> sample_of_rows(torch.tensor([2, 0, 1]), 3).tolist()
        [0, 0, 2]
    """
    samples_B = torch.arange(len(lengths_B), device=lengths_B.device)
    return torch.repeat_interleave(samples_B, lengths_B, output_size=rows)


class _JaggedSum(torch.autograd.Function):
    """PyTorch's own gradient sorts the rows' numbers, which rise already."""

    @staticmethod
    def forward(ctx: Any, e_VD: Tensor, lengths_B: Tensor, weights_V: Tensor | None) -> Tensor:
        ctx.save_for_backward(e_VD, lengths_B, weights_V)
        if not len(e_VD):
            return e_VD.new_zeros(len(lengths_B), e_VD.shape[1])
        bounds = F.pad(lengths_B.to(torch.int64).cumsum(0), (1, 0))
        return F.embedding_bag(
            torch.arange(len(e_VD), device=e_VD.device),
            e_VD,
            bounds,
            mode="sum",
            per_sample_weights=weights_V,
            include_last_offset=True,
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (grad_BD,) = grads
        e_VD, lengths_B, weights_V = ctx.saved_tensors
        grad_VD = grad_BD.index_select(0, sample_of_rows(lengths_B, len(e_VD)))
        if weights_V is None:
            return grad_VD, None, None
        of_weights = torch.linalg.vecdot(grad_VD, e_VD) if ctx.needs_input_grad[2] else None
        of_rows = grad_VD.mul_(weights_V[:, None]) if ctx.needs_input_grad[0] else None
        return of_rows, None, of_weights

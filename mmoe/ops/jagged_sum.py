"""Sums of rows that belong together: as many for each sample as it has."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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

"""Joins what the network reads: numbers and embeddings side by side, in its type."""

from typing import Any

import torch
from torch import Tensor


def join_inputs(dense_BF: Tensor, x_BD: Tensor) -> Tensor:
    """Returns `[dense, x]`, under bfloat16 autocast in bfloat16.

    Experts and gates would each cast it otherwise, and `cat` would write it once more: with 3,000
    columns these copies took as long as the gates.

    Args:
        dense_BF: Dense features, float32.
        x_BD: Embeddings, float32.

    Returns:
        `[B, F + D]`, float32 or bfloat16; the gradients are float32.

    Example:
        >>> import torch
        >>> join_inputs(torch.zeros(2, 3), torch.ones(2, 4)).shape
        torch.Size([2, 7])
    """
    device = dense_BF.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if dtype == torch.bfloat16 and x_BD.dtype == torch.float32:
        return _Narrow.apply(dense_BF, x_BD)
    return torch.cat([dense_BF, x_BD], dim=1) if dense_BF.shape[1] else x_BD


class _Narrow(torch.autograd.Function):
    """Joins and rounds in one pass, and widens the gradient in one."""

    @staticmethod
    def forward(ctx: Any, dense_BF: Tensor, x_BD: Tensor) -> Tensor:
        ctx.split = dense_BF.shape[1]
        out = x_BD.new_empty(len(x_BD), ctx.split + x_BD.shape[1], dtype=torch.bfloat16)
        out[:, : ctx.split] = dense_BF
        out[:, ctx.split :] = x_BD
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        needs_dense, needs_x = ctx.needs_input_grad
        return (
            grad[:, : ctx.split].float() if needs_dense else None,
            grad[:, ctx.split :].float() if needs_x else None,
        )

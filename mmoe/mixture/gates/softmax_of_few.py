"""A softmax over few numbers, for very many rows: of all gates of all rows over their experts."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Less than fill a vector of the widest registers: from there on torch is faster
_FEW = 15


def softmax_of_few(x: Tensor) -> Tensor:
    """Computes the softmax over the last dimension.

    On a CPU torch takes one row after the other, which leaves vectors half empty where a row has
    few numbers: with 64 gates of 8 experts on 4,096 rows 28 ms, and 11 ms backward, on a core where
    this takes 6 and 5. Here a vector holds numbers of many rows. A row's bits depend on that row
    alone: maxima, and sums in one order, of whole columns.

    Args:
        x: `[..., N]`, any float type.

    Returns:
        As `x.softmax(-1)`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.gates.softmax_of_few import softmax_of_few
        >>> softmax_of_few(torch.zeros(3, 2, 4))[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    plain = torch.compiler.is_compiling() or type(x) is not Tensor
    if plain or x.device.type != "cpu" or not 0 < x.shape[-1] <= _FEW or x.dtype.itemsize < 4:
        return x.softmax(-1)
    if torch.is_grad_enabled() and x.requires_grad:
        found = _SoftmaxOfFew.apply(x)
        assert isinstance(found, Tensor)
        return found
    return _turned_back(_columns(_turned(x)), x)


class _SoftmaxOfFew(torch.autograd.Function):
    """Its gradient, `p (g − Σ p g)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        p_NR = _columns(_turned(x))
        ctx.save_for_backward(p_NR)
        return _turned_back(p_NR, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        (p_NR,) = ctx.saved_tensors
        grad_NR = _turned(grads[0])
        return _turned_back(grad_NR.sub_((p_NR * grad_NR).sum(0)).mul_(p_NR), grads[0])


def _columns(x_NR: Tensor) -> Tensor:
    """The softmax of each column, in the place of x."""
    e_NR = x_NR.sub_(x_NR.amax(0)).exp_()
    total_R = e_NR[0].clone()
    for e_R in e_NR[1:]:  # `sum` may take the last columns in another order than the rest
        total_R += e_R
    return e_NR.div_(total_R)


def _turned(x: Tensor) -> Tensor:
    """A copy in any case."""
    return x.reshape(-1, x.shape[-1]).t().clone(memory_format=torch.contiguous_format)


def _turned_back(x_NR: Tensor, like: Tensor) -> Tensor:
    return x_NR.t().contiguous().view(like.shape)

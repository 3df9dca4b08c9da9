"""`AllReduceSums`: sums over ranks, by which a layer sees the rows of all of them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllReduceSums:
    """Sums over ranks, a `RankSums`: one all-reduce a call, the same bits on each rank.

    Every rank must make the same calls in the same order, whatever its batch; the gradient of
    `of_rows` is one more all-reduce in the backward pass, that of `of_losses` is none.

    Args:
        group: The ranks; default: all.

    Raises:
        RuntimeError: In a call, where a rank is gone.

    Example:
        >>> import torch
        >>> from mmoe.parallel import AllReduceSums, ensure_process_group
        >>> ensure_process_group()
        >>> AllReduceSums().of_losses(torch.tensor([1.5, 2.0]), 3)
        (tensor([1.5000, 2.0000]), tensor(3))
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> "AllReduceSums":
        """Copies of a layer share it: it holds no state, and a process group cannot be copied."""
        return self

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Adds up over ranks what a loss is computed from; passes no gradient between them."""
        return self._sum(amounts, gradient_too=False)

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Adds up over ranks what the rows of every rank read, and gradients likewise."""
        return self._sum(amounts, gradient_too=True)

    def _sum(self, amounts: Sequence[Tensor | int], *, gradient_too: bool) -> tuple[Tensor, ...]:
        device = next((a.device for a in amounts if isinstance(a, Tensor)), None)
        tensors = [torch.as_tensor(amount, device=device) for amount in amounts]
        # One message; in float64 sums of a few float32 and all counts are exact
        flat = torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors])
        # Where nothing needs a gradient on one rank, the others would wait for its backward pass
        anchor = torch.zeros((), device=flat.device, requires_grad=gradient_too)
        summed: Any = _Sum.apply(flat, anchor, self.group, gradient_too)
        parts = summed.split([tensor.numel() for tensor in tensors])
        return tuple(
            part.view(tensor.shape).to(tensor.dtype)
            for part, tensor in zip(parts, tensors, strict=True)
        )


class _Sum(torch.autograd.Function):
    """The gradient of a sum: as it comes, or added up over the ranks as well."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, anchor: Tensor, group: dist.ProcessGroup | None, gradient_too: bool
    ) -> Tensor:
        ctx.group, ctx.gradient_too = group, gradient_too
        # all_reduce writes into its argument, which is autograd's
        summed = flat.clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grad_outputs
        if ctx.gradient_too:
            # Others may hold the gradient that came
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None, None

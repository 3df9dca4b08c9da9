"""`Wire`: all-to-alls of rows, and how many bytes leave the rank by them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Wire:
    """Sends rows of a tensor to every rank of a group.

    Args:
        group: The ranks; default: all.

    Attributes:
        bytes_sent: What left this rank so far, sizes included; what a rank sends itself is not
            counted.
        collectives: How many all-to-alls this rank took part in.

    Raises:
        ValueError: No process group.

    Example:
        >>> import torch
        >>> from mmoe.parallel import Wire, ensure_process_group
        >>> ensure_process_group()
        >>> wire = Wire()
        >>> wire.exchange(torch.tensor([[1.0], [2.0]]), send=[2], receive=[2]).tolist()
        [[1.0], [2.0]]
        >>> wire.bytes_sent
        0
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "wire: expected a process group; call torch.distributed.init_process_group first"
            )
        self.group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = self.collectives = 0

    def exchange_sizes(self, sizes_WN: Tensor) -> list[list[int]]:
        """Tells each rank its row of numbers; returns the row that each rank has for this one."""
        each = [1] * self.world_size
        return self.send_rows(sizes_WN, each, each).tolist()

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Sends rows, and their gradients back.

        Args:
            rows: Those for rank 0 first, then those for rank 1, …
            send: How many rows go to each rank.
            receive: How many rows come from each rank.

        Returns:
            The rows that came, those of rank 0 first. Where gradients are enabled, they ask for
            one, so that all ranks take part in the exchange of the backward pass, a rank whose
            rows need no gradient too.
        """
        # Without it a rank where nothing needs a gradient would leave the others waiting.
        anchor = torch.zeros((), device=rows.device, requires_grad=True)
        return _Exchange.apply(self, send, receive, anchor, rows)

    def send_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """`exchange` without gradients: the one place where anything is sent."""
        rows = rows.contiguous()
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows, list(receive), list(send), group=self.group)
        away = sum(send) - send[self.rank]
        self.bytes_sent += away * rows.shape[1:].numel() * rows.element_size()
        self.collectives += 1
        return received


class _Exchange(torch.autograd.Function):
    """The gradient of what came from a rank goes back to that rank."""

    @staticmethod
    def forward(
        ctx: Any,
        wire: Wire,
        send: Sequence[int],
        receive: Sequence[int],
        anchor: Tensor,
        rows: Tensor,
    ) -> Tensor:
        ctx.wire, ctx.send, ctx.receive = wire, send, receive
        return wire.send_rows(rows, send, receive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        return None, None, None, None, ctx.wire.send_rows(grad, ctx.receive, ctx.send)

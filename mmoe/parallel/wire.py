"""`Wire`: one all-to-all that carries several tensors, and counts the bytes that leave the rank."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Wire:
    """Sends rows of tensors to every rank of a group.

    Tensors travel as bytes, several of them in one message per rank:

        to rank 0              to rank 1              …
        [rows][picks][weights] [rows][picks][weights]

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
        >>> wire.exchange([torch.tensor([[1.0], [2.0]])], send=[[2]], receive=[[2]])[0].tolist()
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
        received = self._all_to_all(sizes_WN, [1] * self.world_size, [1] * self.world_size)
        return received.tolist()

    def exchange(
        self,
        tensors: Sequence[Tensor],
        send: Sequence[Sequence[int]],
        receive: Sequence[Sequence[int]],
    ) -> list[Tensor]:
        """Sends the rows of several tensors, in one all-to-all.

        Args:
            tensors: Each with the rows for rank 0 first, then those for rank 1, …
            send: For each tensor, how many rows go to each rank, W numbers.
            receive: For each tensor, how many rows come from each rank.

        Returns:
            For each tensor the rows that came, those of rank 0 first. Their gradients travel back
            the same way, in one all-to-all as well. Where gradients are enabled, every result asks
            for one, so that all ranks take part in all exchanges of the backward pass, a rank whose
            inputs need no gradient too.
        """
        # Without it a rank where nothing needs a gradient would leave the others waiting.
        anchor = torch.zeros((), device=tensors[0].device, requires_grad=True)
        return list(_Exchange.apply(self, send, receive, anchor, *tensors))

    def send_bytes(
        self,
        tensors: Sequence[Tensor],
        send: Sequence[Sequence[int]],
        receive: Sequence[Sequence[int]],
    ) -> list[Tensor]:
        """`exchange` without gradients."""
        widths = [tensor.element_size() * _numbers_per_row(tensor) for tensor in tensors]
        pieces = [
            tensor.contiguous().view(-1).view(torch.uint8).split([n * width for n in rows])
            for tensor, rows, width in zip(tensors, send, widths, strict=True)
        ]
        message = torch.cat([piece for rank in zip(*pieces, strict=True) for piece in rank])
        came = [[n * w for n in rows] for rows, w in zip(receive, widths, strict=True)]
        received = self._all_to_all(
            message,
            [sum(len(piece) for piece in rank) for rank in zip(*pieces, strict=True)],
            [sum(rank) for rank in zip(*came, strict=True)],
        )
        parts = received.split([size for rank in zip(*came, strict=True) for size in rank])
        count = len(tensors)
        return [
            # cat copies, so that every tensor starts where its numbers may.
            torch.cat(parts[i::count]).view(tensor.dtype).view(sum(receive[i]), *tensor.shape[1:])
            for i, tensor in enumerate(tensors)
        ]

    def _all_to_all(self, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """The one place where anything is sent."""
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows, receive, send, group=self.group)
        away = sum(send) - send[self.rank]
        self.bytes_sent += away * _numbers_per_row(rows) * rows.element_size()
        self.collectives += 1
        return received


class _Exchange(torch.autograd.Function):
    """The gradient of what came from a rank goes back to that rank; integers have none."""

    @staticmethod
    def forward(
        ctx: Any,
        wire: Wire,
        send: Sequence[Sequence[int]],
        receive: Sequence[Sequence[int]],
        anchor: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.wire = wire
        ctx.floating = [tensor.is_floating_point() for tensor in tensors]
        ctx.send = [rows for rows, real in zip(send, ctx.floating, strict=True) if real]
        ctx.receive = [rows for rows, real in zip(receive, ctx.floating, strict=True) if real]
        received = wire.send_bytes(tensors, send, receive)
        ctx.mark_non_differentiable(
            *(tensor for tensor, real in zip(received, ctx.floating, strict=True) if not real)
        )
        return tuple(received)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        floating = [grad for grad, real in zip(grad_outputs, ctx.floating, strict=True) if real]
        back = iter(ctx.wire.exchange(floating, ctx.receive, ctx.send))
        return None, None, None, None, *(next(back) if real else None for real in ctx.floating)


def _numbers_per_row(tensor: Tensor) -> int:
    return tensor.shape[1:].numel()

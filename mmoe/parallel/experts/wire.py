"""`Wire`: all-to-alls of rows, and how many bytes leave the rank by them."""

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from mmoe.parallel.experts.async_exchange import start_exchange


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
        >>> wire.begin_exchange(torch.tensor([[1.0], [2.0]]), send=[2], receive=[2])().tolist()
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
        """Sends each rank its row of numbers; returns the row that each has for this one."""
        each = [1] * self.world_size
        return self.begin_rows(sizes_WN, each, each).wait().tolist()

    def begin_exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> Callable[[], Tensor]:
        """Begins to send rows, and in the backward pass their gradients back.

        Args:
            rows: Those for rank 0 first, then those for rank 1, …
            send: How many rows go to each rank.
            receive: How many rows come from each rank.

        Returns:
            Waits for the rows that come, those of rank 0 first. Where gradients are enabled, they
            ask for one, so that all ranks take part in the exchange of the backward pass, a rank
            whose rows need no gradient too.
        """
        arrive = start_exchange(_There(self, send, receive), rows)
        return lambda: arrive()[0]

    def begin_rows(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> "PendingRows":
        """Begins to send rows, without gradients: all that is sent goes through here."""
        rows = rows.contiguous()
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        work = dist.all_to_all_single(
            received, rows, list(receive), list(send), group=self.group, async_op=True
        )
        assert work is not None, "this process is one of the group"
        away = sum(send) - send[self.rank]
        self.bytes_sent += away * rows.shape[1:].numel() * rows.element_size()
        self.collectives += 1
        return PendingRows(work, rows, received)

    def begin_copies(self, own: Tensor, receive: Sequence[int]) -> "PendingRows":
        """Begins to send this rank's rows to every rank, without gradients.

        Args:
            own: This rank's rows.
            receive: How many rows each rank has.

        Returns:
            Waits for the rows of all ranks, this one's among them, those of rank 0 first.
        """
        received = own.new_empty(sum(receive), *own.shape[1:])
        parts = received.split(list(receive))
        parts[self.rank].copy_(own)
        works = [
            dist.broadcast(part, group_src=holder, group=self.group, async_op=True)
            for holder, part in enumerate(parts)
            if len(part)
        ]
        self.bytes_sent += (self.world_size - 1) * own.numel() * own.element_size()
        self.collectives += len(works)
        return PendingRows(_Works([work for work in works if work is not None]), own, received)


class _Works:
    """Several collectives under way, as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class PendingRows:
    """Rows under way to this rank.

    Args:
        work: Of the collective.
        sent: Kept until they are gone.
        received: Where those of other ranks arrive.
    """

    def __init__(self, work: dist.Work | _Works, sent: Tensor, received: Tensor) -> None:
        self._work, self._sent, self._received = work, sent, received

    def wait(self) -> Tensor:
        """Waits for the rows and returns them; to be called once."""
        self._work.wait()
        received = self._received
        del self._sent, self._received
        return received


class _There:
    """Rows, and their gradients: a `AsyncExchange`."""

    def __init__(self, wire: Wire, send: Sequence[int], receive: Sequence[int]) -> None:
        self.wire, self.send, self.receive = wire, send, receive

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        (rows,) = tensors
        self.pending = self.wire.begin_rows(rows, self.send, self.receive)

    def finish(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return (self.pending.wait(),), ()

    def begin_backward(self, grads: tuple[Tensor, ...]) -> None:
        (grad,) = grads
        self.pending = self.wire.begin_rows(grad, self.receive, self.send)

    def finish_backward(self) -> tuple[Tensor | None, ...]:
        return (self.pending.wait(),)

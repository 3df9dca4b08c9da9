"""`Wire`: all-to-alls of rows, and `Traffic`: what left a rank by them, and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch.distributed as dist
from torch import Tensor

from mmoe.parallel.experts.async_exchange import start_exchange
from mmoe.parallel.launch.process_group import require_group
from mmoe.parallel.object_collectives import from_all


@dataclass(slots=True)
class Traffic:
    """Traffic that one rank sent so far, over one wire or several that share it.

    The seconds are those of the host: with NCCL, where waiting for rows keeps a stream of the GPU
    and not the host, they say nothing.

    Attributes:
        bytes_sent: What left this rank, sizes included; what a rank sends itself is not counted.
        bytes_between_hosts: Bytes of these that went to another host.
        collectives: How many all-to-alls this rank took part in.
        seconds_waited: How long this rank stood still for rows that were on their way.
        seconds_under_way: How long rows were on their way until they were here and asked for.

    Example:
        >>> from mmoe.parallel import Traffic
        >>> Traffic(seconds_waited=1.0, seconds_under_way=4.0).share_hidden
        0.75
    """

    bytes_sent: int = 0
    bytes_between_hosts: int = 0
    collectives: int = 0
    seconds_waited: float = 0.0
    seconds_under_way: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Adds both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Traffic(*(mine + theirs for mine, theirs in pairs))

    @property
    def share_hidden(self) -> float:
        """Share of the time under way in which this rank computed; 1 where nothing was sent."""
        if not self.seconds_under_way:
            return 1.0
        return 1 - self.seconds_waited / self.seconds_under_way


class Wire:
    """Sends rows of a tensor to every rank of a group.

    Args:
        group: The ranks; default: all.
        traffic: Where what is sent is counted; default: one of its own.

    Attributes:
        traffic: What this rank sent so far.
        hosts: The host of each rank; all the same one until it is set.
        down: The same ranks in another group, over which rows go to lower ranks (`Hosts.down`);
            None, which it is until it is set: one group for both ways.

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

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, traffic: Traffic | None = None
    ) -> None:
        require_group("wire")
        self.group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic() if traffic is None else traffic
        self.hosts: Sequence[int] = [0] * self.world_size
        self.down: dist.ProcessGroup | None = None

    @property
    def bytes_sent(self) -> int:
        """Bytes that left this rank so far, sizes included; what it sends itself is not counted."""
        return self.traffic.bytes_sent

    @property
    def bytes_between_hosts(self) -> int:
        """Bytes of these that went to another host."""
        return self.traffic.bytes_between_hosts

    @property
    def collectives(self) -> int:
        """Number of all-to-alls that this rank took part in."""
        return self.traffic.collectives

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
        """Begins to send rows, without gradients: all that is sent goes through here.

        Args:
            rows: Those for rank 0 first, then those for rank 1, …
            send: How many rows go to each rank.
            receive: How many rows come from each rank.
        """
        rows = rows.contiguous()
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        if self.down is None:
            works = [self._begin(rows, received, send, receive, self.group)]
        else:
            works = self._begin_two_ways(rows, received, send, receive, self.down)
        self._count(send, rows.shape[1:].numel() * rows.element_size())
        return PendingRows(works, rows, received, self.traffic)

    def _begin(
        self,
        rows: Tensor,
        received: Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        group: dist.ProcessGroup | None,
    ) -> dist.Work:
        work = dist.all_to_all_single(
            received, rows, list(receive), list(send), group=group, async_op=True
        )
        assert work is not None, "this process is one of the group"
        return work

    def _begin_two_ways(
        self,
        rows: Tensor,
        received: Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        down: dist.ProcessGroup,
    ) -> list[dist.Work]:
        """Sends to higher ranks by one group and to lower ranks by the other."""
        me, none = self.rank, [0] * self.world_size
        below, own, above = rows.split([sum(send[:me]), send[me], sum(send[me + 1 :])])
        from_below, here, from_above = received.split(
            [sum(receive[:me]), receive[me], sum(receive[me + 1 :])]
        )
        # What stays here goes by neither group
        here.copy_(own)
        to_above, to_below = [*none[: me + 1], *send[me + 1 :]], [*send[:me], *none[me:]]
        of_below, of_above = [*receive[:me], *none[me:]], [*none[: me + 1], *receive[me + 1 :]]
        return [
            self._begin(above, from_below, to_above, of_below, self.group),
            self._begin(below, from_above, to_below, of_above, down),
        ]

    def _count(self, send: Sequence[int], row_bytes: int, collectives: int = 1) -> None:
        here, traffic = self.hosts[self.rank], self.traffic
        crossing = sum(n for n, host in zip(send, self.hosts, strict=True) if host != here)
        traffic.bytes_sent += (sum(send) - send[self.rank]) * row_bytes
        traffic.bytes_between_hosts += crossing * row_bytes
        traffic.collectives += collectives

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
            # A broadcast for each holder: an all-gather would want as many rows of every rank.
            # All ranks know the lengths, so that all leave out the same ones
            dist.broadcast(part, group_src=holder, group=self.group, async_op=True)
            for holder, part in enumerate(parts)
            if len(part)
        ]
        everybody = [len(own)] * self.world_size
        self._count(everybody, own.shape[1:].numel() * own.element_size(), len(works))
        under_way = [work for work in works if work is not None]
        return PendingRows(under_way, own, received, self.traffic)


class PendingRows:
    """Rows under way to this rank.

    Args:
        works: Of the collectives.
        sent: Kept until they are gone.
        received: Where those of other ranks arrive.
        traffic: Where the seconds are counted.
    """

    def __init__(
        self, works: Sequence[dist.Work], sent: Tensor, received: Tensor, traffic: Traffic
    ) -> None:
        self._works, self._sent, self._received = works, sent, received
        self._traffic, self._begun = traffic, time.perf_counter()

    def wait(self) -> Tensor:
        """Waits for the rows and returns them; to be called once."""
        asked = time.perf_counter()
        for work in self._works:
            work.wait()
        here = time.perf_counter()
        self._traffic.seconds_waited += here - asked
        self._traffic.seconds_under_way += here - self._begun
        received = self._received
        # The exchange keeps this object until its backward pass; the memory need not wait for that
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


def agree_width(wire: Wire, width: int | str | None) -> int:
    """Returns the width on which all ranks of a wire agree; all of them call it together.

    Args:
        wire: Its ranks.
        width: Of what this rank's experts return; None: it has none; text: why they cannot say.

    Returns:
        O, the same on every rank.

    Raises:
        ValueError: An expert cannot say, or ranks differ: on every rank, with one message.

    Example:
        >>> from mmoe.parallel import Wire, ensure_process_group
        >>> ensure_process_group()
        >>> agree_width(Wire(), 16)
        16
    """
    each = from_all(width, wire.group)
    for rank, said in enumerate(each):
        if isinstance(said, str):
            raise ValueError(
                "experts: expected rows [rows, O] from each of them, which travel to other ranks; "
                f"on rank {rank} {said}"
            )
    known = [(rank, said) for rank, said in enumerate(each) if isinstance(said, int)]
    if not known:
        raise ValueError(
            "experts: expected some rank to know how wide their outputs are; pass "
            "ExpertPool(…, output_dim=…)"
        )
    first, agreed = known[0]
    for rank, said in known:
        if said != agreed:
            raise ValueError(
                f"experts: expected rows of one width from all of them, got {agreed} numbers on "
                f"rank {first} and {said} on rank {rank}"
            )
    return agreed

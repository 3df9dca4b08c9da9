"""Weights of experts on their way to all ranks, and their gradients on the way back."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmoe.mixture.experts.lender import TensorFormat
from mmoe.parallel.experts.async_exchange import start_exchange
from mmoe.parallel.experts.wire import Wire

# Every tensor of a message begins at a multiple of so many bytes, a cache line
_ALIGNED = 64


class Layout:
    """Layout of n experts' tensors in a message of bytes.

    Args:
        formats: Of the tensors, in this order.

    Example:
        >>> import torch
        >>> from mmoe.mixture.experts.lender import TensorFormat
        >>> layout = Layout([TensorFormat("weight", (3, 2), torch.float32, True)])
        >>> message = torch.empty(layout.bytes(2), dtype=torch.uint8)
        >>> layout.write(message, [torch.ones(2, 3, 2)])
        >>> len(message), layout.read(message, 2)[0].sum()
        (64, tensor(12.))
    """

    def __init__(self, formats: Sequence[TensorFormat]) -> None:
        self.formats = formats

    def bytes(self, num_experts: int) -> int:
        """Returns how long the message of so many experts is."""
        return self._starts(num_experts)[-1]

    def write(self, message: Tensor, tensors: Sequence[Tensor]) -> None:
        """Puts tensors `[n, …]` into a message."""
        for place, tensor in zip(self.read(message, len(tensors[0])), tensors, strict=True):
            place.copy_(tensor)

    def read(self, message: Tensor, num_experts: int) -> list[Tensor]:
        """Returns the tensors `[n, …]` that lie in a message: views."""
        found = []
        for start, form in zip(self._starts(num_experts), self.formats, strict=False):
            own = message[start : start + num_experts * _bytes(form)]
            found.append(own.view(form.dtype).view(num_experts, *form.shape))
        return found

    def _starts(self, num_experts: int) -> list[int]:
        starts = [0]
        for form in self.formats:
            lines = math.ceil(num_experts * _bytes(form) / _ALIGNED)
            starts.append(starts[-1] + lines * _ALIGNED)
        return starts


def begin_weights(
    wire: Wire, formats: Sequence[TensorFormat], counts: Sequence[int], tensors: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Begins to copy tensors of experts to all ranks.

    In the backward pass the gradients of the copies go back to the rank that holds an expert, which
    adds them up: rank 0's first, so that they repeat to the bit.

    Args:
        wire: The ranks.
        formats: Of the tensors.
        counts: How many experts each rank sends.
        tensors: Of this rank's, `[n, …]`.

    Returns:
        Waits for the tensors of all, `[V, …]`: those of rank 0's experts first.
    """
    # What has no gradient comes last
    order = sorted(range(len(formats)), key=lambda i: not formats[i].trained)
    exchange = _Weights(wire, [formats[i] for i in order], counts)
    arrive = start_exchange(exchange, *(tensors[i] for i in order))

    def finish() -> list[Tensor]:
        by_place = dict(zip(order, arrive(), strict=True))
        return [by_place[i] for i in range(len(formats))]

    return finish


class _Weights:
    """Weights out, gradients back: an `AsyncExchange`."""

    def __init__(self, wire: Wire, formats: Sequence[TensorFormat], counts: Sequence[int]) -> None:
        self.wire, self.counts = wire, counts
        self.layout = Layout(formats)
        self.trained = Layout([form for form in formats if form.trained])

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        sizes = [self.layout.bytes(count) for count in self.counts]
        message = tensors[0].new_empty(sizes[self.wire.rank], dtype=torch.uint8)
        self.layout.write(message, tensors)
        self.pending = self.wire.begin_copies(message, sizes)

    def finish(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        messages = self.pending.wait().split([self.layout.bytes(count) for count in self.counts])
        parts = [
            self.layout.read(message, count)
            for message, count in zip(messages, self.counts, strict=True)
            if count
        ]
        # Where one rank holds them all they are used where they lie
        found = parts[0]
        if len(parts) > 1:
            found = [torch.cat(own) for own in zip(*parts, strict=True)]
        trained = len(self.trained.formats)
        return tuple(found[:trained]), tuple(found[trained:])

    def begin_backward(self, grads: tuple[Tensor, ...]) -> None:
        send = [self.trained.bytes(count) for count in self.counts]
        message = grads[0].new_empty(sum(send), dtype=torch.uint8)
        of_ranks = zip(*(grad.split(list(self.counts)) for grad in grads), strict=True)
        for part, own in zip(message.split(send), of_ranks, strict=True):
            self.trained.write(part, own)
        receive = [send[self.wire.rank]] * self.wire.world_size
        self.pending = self.wire.begin_rows(message, send, receive)

    def finish_backward(self) -> tuple[Tensor | None, ...]:
        count, world_size = self.counts[self.wire.rank], self.wire.world_size
        messages = self.pending.wait().split([self.trained.bytes(count)] * world_size)
        of_ranks = [self.trained.read(message, count) for message in messages]
        sums = [_in_order(shares) for shares in zip(*of_ranks, strict=True)]
        return *sums, *[None] * (len(self.layout.formats) - len(sums))


def _bytes(form: TensorFormat) -> int:
    return math.prod(form.shape) * form.dtype.itemsize


def _in_order(shares: Sequence[Tensor]) -> Tensor:
    """Their sum, the first ones first, in float32 where they are narrower."""
    dtype = shares[0].dtype
    # A copy: the shares lie in the message that came
    total = shares[0].to(torch.promote_types(dtype, torch.float32), copy=True)
    for share in shares[1:]:
        total += share
    return total.to(dtype)

"""Sums over ranks: `AllReduceSums`, for layers that see all rows, and `GradientSum`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.parallel.experts.wire import Traffic


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


# Bytes: some messages of this size fit under a backward pass, and each is long enough that its
# latency does not count. DistributedDataParallel begins with a bucket of 1 MiB too.
_BUCKET_BYTES = 2**20


@dataclass
class _PendingSum:
    """A bucket on its way."""

    flat: Tensor
    work: Any
    begun: float


class GradientSum:
    """Adds up gradients over ranks, in buckets that travel while the backward pass goes on.

    `grad ← Σ_r grad_r`, a sum and no mean: the loss is the sum of what each rank calls `backward`
    on. Buckets are filled from the last parameter to the first, which is about the order in which
    gradients are there, and leave in that fixed order on every rank. So sums have the same bits on
    all ranks, in a repetition and after a restart (`DistributedDataParallel` sorts its buckets anew
    after the first step, and would wait for them before the tables' backward pass begins).

        with gradients.in_flight():  # of a step's last backward pass
            loss.backward()
        ...  # time to do something else
        gradients.wait()

    Args:
        parameters: The same ones on every rank, in the same order.
        group: The ranks, best a group of its own; default: all.
        bucket_bytes: A bucket is closed when it holds so much, or more.

    Attributes:
        traffic: What this rank sent, counted as a ring sends it: 2 · (W − 1) / W of a bucket, to
            the next rank.
        hosts: The host of each rank; all the same one until it is set.

    Example:
        >>> import torch
        >>> from mmoe.parallel import GradientSum, ensure_process_group
        >>> ensure_process_group()
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> gradients = GradientSum(layer.parameters())
        >>> with gradients.in_flight():
        ...     layer(torch.ones(3, 2)).sum().backward()
        >>> gradients.wait()
        >>> layer.weight.grad
        tensor([[3., 3.]])

    Source: Li et al., "PyTorch distributed: experiences on accelerating data parallel training"
        (VLDB 2020), section 3.2.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter] | Iterator[nn.Parameter],
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        self.group = group
        learned = [weight for weight in parameters if weight.requires_grad]
        self.buckets = _fill_buckets(learned[::-1], bucket_bytes)
        self._left: list[int] | None = None  # gradients that a bucket waits for; None: not flying
        self._pending: list[_PendingSum] = []
        self.traffic = Traffic()
        self.hosts: Sequence[int] = [0] * dist.get_world_size(group)
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(self._arrived, number))
            for number, bucket in enumerate(self.buckets)
            for weight in bucket
        ]

    def close(self) -> None:
        """Lets go of the parameters; nothing is added up any more."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Encloses the last backward pass of a step: full buckets leave at once.

        Gradients that earlier passes added to the parameters are part of the sum.
        """
        assert not self._pending, "the sums of the step before were not waited for"
        self._left = [len(bucket) for bucket in self.buckets]
        try:
            yield
            # A bucket may hold a parameter that this pass did not reach
            while len(self._pending) < len(self.buckets):
                self._launch()
        finally:
            self._left = None

    def wait(self) -> None:
        """Puts the sums into the parameters' `grad`; None stays where no rank has a gradient."""
        pending, self._pending = self._pending, []
        for bucket, sent in zip(self.buckets, pending, strict=True):
            asked = time.perf_counter()
            sent.work.wait()
            here = time.perf_counter()
            self.traffic.seconds_waited += here - asked
            self.traffic.seconds_under_way += here - sent.begun
            *sums, owners = sent.flat.split([*(w.numel() for w in bucket), len(bucket)])
            # Looked at only where it matters: on a GPU the host waits for it
            unsure = any(weight.grad is None for weight in bucket)
            found = owners.tolist() if unsure else [1.0] * len(bucket)
            for weight, total, owned in zip(bucket, sums, found, strict=True):
                weight.grad = total.view_as(weight) if owned else None

    def _arrived(self, number: int, _: Tensor) -> None:
        """A parameter of this bucket has its gradient; full buckets leave, in their order."""
        if self._left is None:
            return
        self._left[number] -= 1
        # Never before the bucket in front of it: ranks may fill them in another order, and sums of
        # different buckets must not meet
        while len(self._pending) < len(self.buckets) and self._left[len(self._pending)] == 0:
            self._launch()

    def _launch(self) -> None:
        bucket = self.buckets[len(self._pending)]
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in bucket]
        # Behind the gradients: who has one at all. What no rank reached must keep None, as on one
        # process, or its weights would decay and its moments age.
        owned = bucket[0].new_tensor([float(weight.grad is not None) for weight in bucket])
        flat = torch.cat([*(part.reshape(-1) for part in parts), owned])
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        self._pending.append(_PendingSum(flat, work, time.perf_counter()))
        self._count(flat.numel() * flat.element_size())

    def _count(self, num_bytes: int) -> None:
        ranks, rank = len(self.hosts), dist.get_rank(self.group)
        sent = 2 * (ranks - 1) * num_bytes // ranks
        self.traffic.collectives += 1
        self.traffic.bytes_sent += sent
        if self.hosts[rank] != self.hosts[(rank + 1) % ranks]:
            self.traffic.bytes_between_hosts += sent


def _fill_buckets(
    parameters: Sequence[nn.Parameter], bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """Neighbours of one type and device together, until there are enough bytes."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for weight in parameters:
        # A bucket is one message, of one type on one device
        last = buckets[-1][-1] if buckets else None
        alike = last is not None and (last.dtype, last.device) == (weight.dtype, weight.device)
        if not alike or size >= bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(weight)
        size += weight.numel() * weight.element_size()
    return buckets

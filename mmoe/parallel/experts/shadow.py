"""Shadowed experts: their weights travel for a call, instead of the rows that picked them."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.mixture import Compute, DispatchPlan, Tree
from mmoe.mixture.experts.contract import pool_of
from mmoe.mixture.experts.lender import Lender, TensorFormat, lender_of
from mmoe.parallel.experts.async_exchange import start_exchange
from mmoe.parallel.experts.mode import Mode
from mmoe.parallel.experts.pipeline import mix_here, split_picks
from mmoe.parallel.experts.placement import ExpertPlacement
from mmoe.parallel.experts.wire import Wire
from mmoe.parallel.object_collectives import from_all

# Every tensor of a message begins at a multiple of so many bytes, a cache line
_ALIGNED = 64


class _Layout:
    """Layout of n experts' tensors, one after another, in a message of bytes."""

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
            # Aligned starts: bytes can be seen as another type only from a multiple of its size on
            own = message[start : start + num_experts * _bytes(form)]
            found.append(own.view(form.dtype).view(num_experts, *form.shape))
        return found

    def _starts(self, num_experts: int) -> list[int]:
        starts = [0]
        for form in self.formats:
            lines = math.ceil(num_experts * _bytes(form) / _ALIGNED)
            starts.append(starts[-1] + lines * _ALIGNED)
        return starts


def _begin_weights(
    wire: Wire, formats: Sequence[TensorFormat], counts: Sequence[int], tensors: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Begins to copy this rank's `[n, …]` to all; returns what waits for theirs, rank by rank."""
    # What has no gradient comes last: `start_exchange` is told how many have one, not which
    order = sorted(range(len(formats)), key=lambda i: not formats[i].trained)
    exchange = _Weights(wire, [formats[i] for i in order], counts)
    arrive = start_exchange(exchange, *(tensors[i] for i in order))

    def finish() -> list[Tensor]:
        by_place = dict(zip(order, arrive(), strict=True))
        return [by_place[i] for i in range(len(formats))]

    return finish


class _Weights:
    """Weights out, and gradients of the copies back to who holds an expert: an `AsyncExchange`."""

    def __init__(self, wire: Wire, formats: Sequence[TensorFormat], counts: Sequence[int]) -> None:
        self.wire, self.counts = wire, counts
        self.layout = _Layout(formats)
        self.trained = _Layout([form for form in formats if form.trained])

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
        # Every rank computed by a copy of each expert here, and has a gradient of it
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
    """Their sum, rank 0's first so that it repeats to the bit, in float32 where narrower."""
    dtype = shares[0].dtype
    # A copy: the shares lie in the message that came
    total = shares[0].to(torch.promote_types(dtype, torch.float32), copy=True)
    for share in shares[1:]:
        total += share
    return total.to(dtype)


RowsTravel = Callable[[Sequence[Tree], DispatchPlan, Compute], Tensor]
_ROWS_TRAVEL = (
    "shadowed: expected experts that differ in their weights alone (MLPExperts, or modules of one "
    "class, settings and shapes), whose kind every rank knows (pool.part), and that do not look at "
    "the batch (norm batch); their rows travel instead, which gives the same numbers"
)


class Shadowing:
    """Runs calls in which some experts are shadowed.

    The weights leave the ranks that hold them at once, and travel while the rows of the other
    experts do, forward, and so do their gradients backward:

        weights ──────────────────────────────────▶
        sizes, rows, others' rows, outputs           own rows by the copies    add

    Args:
        wire: The ranks; who holds which expert of theirs says `place`, before the first call.

    Attributes:
        warned: Whether it was said that rows travel although experts were to be shadowed.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self.warned = wire, False

    def place(self, placement: ExpertPlacement) -> None:
        """Takes another placement; all ranks together."""
        self._placement = placement
        # Whether the experts of all ranks can be joined; asked once of every pool
        self._joinable: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def run(
        self,
        mode: Mode,
        sources: Sequence[Tree],
        plan: DispatchPlan,
        compute: Compute,
        rows_travel: RowsTravel,
    ) -> Tensor:
        """Mixes what this rank's rows get of the copies, and of the experts whose rows travel.

        Args:
            mode: Says which experts are shadowed.
            sources: S tensors `x_BD`.
            plan: The picks of all E experts.
            compute: Runs the experts of this rank.
            rows_travel: Does all that is asked of the other experts.

        Returns:
            `out_BGO` in the dtype of the rows.

        Raises:
            ValueError: An expert that there is not.
        """
        chosen = self._chosen(mode)
        lender = self._lender(compute)
        if lender is None:
            return rows_travel(sources, plan, compute)
        # In the order in which weights arrive, rank by rank
        order = [e for e in self._placement.order if e in chosen]
        # Before rows: weights travel while the others' rows do
        by_copies = self._begin(lender, chosen)
        rest, own = split_picks(plan, order)
        all_shadowed = len(order) == self._placement.num_experts
        others_BGO = None if all_shadowed else rows_travel(sources, rest, compute)
        out_BGO = mix_here(sources, own, by_copies())
        # Under autocast copies give its type; rows that came back have that of the rows
        out_BGO = out_BGO.to(cast(Tensor, sources[plan.expert_source[0]]).dtype)
        return out_BGO if others_BGO is None else others_BGO + out_BGO

    def _begin(self, lender: Lender, chosen: frozenset[int]) -> Callable[[], Compute]:
        """Begins to copy weights; returns what waits for them, and makes a pool of them."""
        held = [[e for e in own if e in chosen] for own in self._placement.experts]
        places = self._placement.places
        taken = lender.take([places[e] for e in held[self._wire.rank]])
        counts = [len(own) for own in held]
        if not lender.formats:
            return lambda: lender.compute_by(sum(counts), {})
        names = [form.name for form in lender.formats]
        arrive = _begin_weights(self._wire, lender.formats, counts, [taken[name] for name in names])
        return lambda: lender.compute_by(sum(counts), dict(zip(names, arrive(), strict=True)))

    def _chosen(self, mode: Mode) -> frozenset[int]:
        """The shadowed experts, as the placement numbers them."""
        slices = self._placement.slices
        experts = range(self._placement.num_experts // slices)
        if mode.shadowed == "all":
            return frozenset(range(self._placement.num_experts))
        if unknown := sorted(set(mode.shadowed) - set(experts)):
            raise ValueError(
                f"shadowed: expected experts from 0 to {len(experts) - 1}, got {unknown[0]}"
            )
        return frozenset(e * slices + s for e in mode.shadowed for s in range(slices))

    def _lender(self, compute: Compute) -> Lender | None:
        """The lender of this rank's experts; None on all ranks where those of some cannot be."""
        pool = pool_of(compute)
        lender = lender_of(pool)
        key = cast(nn.Module, pool if pool is not None else self)
        if key not in self._joinable:
            # Once for each pool: all ranks take part, and what experts are does not change
            self._joinable[key] = can_be_joined(lender, self._wire.group)
            if not self._joinable[key]:
                self.warn_of_rows()
        return lender if self._joinable[key] else None

    def warn_of_rows(self) -> None:
        """Says, once, that the rows travel although experts were to be shadowed."""
        if not self.warned:
            warnings.warn(_ROWS_TRAVEL, stacklevel=2)
        self.warned = True


def can_be_joined(lender: Lender | None, group: dist.ProcessGroup | None) -> bool:
    """Returns whether the experts of all ranks can be joined; all ranks together."""
    said = from_all(None if lender is None else lender.structure(), group)
    return None not in said and len(set(said)) == 1

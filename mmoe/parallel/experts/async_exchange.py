"""Work with something under way: exchanges in two halves, and steps of several pieces by turns."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class AsyncExchange(Protocol):
    """An exchange between ranks that begins and finishes apart, forward and backward."""

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        """Begins to send."""
        ...

    def finish(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Waits; returns the tensors received, then those received without a gradient."""
        ...

    def begin_backward(self, grads: tuple[Tensor, ...]) -> None:
        """Begins to send the gradients of what came."""
        ...

    def finish_backward(self) -> tuple[Tensor | None, ...]:
        """Waits; returns the gradients of what was sent."""
        ...


def start_exchange(exchange: AsyncExchange, *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Begins an exchange; returns a function that waits for it and returns what came.

    What is computed in between does not wait for other ranks, and in the backward pass neither:
    autograd runs what was made last first, so it sends the gradients of what came, then goes
    through what was computed in between, and then waits for the gradients of what was sent.
    """
    # By this what comes asks for a gradient, also on a rank where nothing that was sent needs one:
    # all ranks have to take part in the exchange of the backward pass
    anchor = torch.zeros((), device=tensors[0].device, requires_grad=True)
    token = _Begin.apply(exchange, anchor, *tensors)
    return lambda: _Finish.apply(exchange, token)


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: AsyncExchange, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.begin(tensors)
        # A token from here to `_Finish`, by which autograd waits here only after what was begun
        # there
        return torch.zeros_like(anchor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        return None, None, *ctx.exchange.finish_backward()


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: AsyncExchange, token: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        found, fixed = exchange.finish()
        ctx.count = len(found)
        ctx.mark_non_differentiable(*fixed)
        return *found, *fixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        ctx.exchange.begin_backward(grads[: ctx.count])
        return None, grads[0].new_zeros(())


T = TypeVar("T")

Steps = Generator[None, None, T]
"""A function that yields wherever what it has begun is under way, and returns its result."""


def at_once(steps: Steps[T]) -> T:
    """Takes all steps, one after another, and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def staggered(
    pieces: Sequence[Steps[T]], num_steps: int, meanwhile: Iterator[object] | None = None
) -> list[T]:
    """Takes the steps of several pieces by turns: a piece begins where the one before goes on.

    Three pieces of three steps, in the order of the numbers:

        piece 0      1   3   6
        piece 1          2   5   8
        piece 2              4   7   9

    `meanwhile` gets two turns: before 3, where nothing has come yet, and before 9, where nothing
    else is left to compute. The order is the same on all ranks, as that of their exchanges must be.

    Args:
        pieces: Steps of each.
        num_steps: How many steps each has.
        meanwhile: What this rank can do while it would wait.

    Returns:
        The results, piece by piece.

    Example:
        >>> def piece(number):
        ...     print("send", number)
        ...     yield
        ...     print("compute", number)
        ...     return number
        >>> staggered([piece(0), piece(1)], num_steps=2)
        send 0
        send 1
        compute 0
        compute 1
        [0, 1]
    """
    results: dict[int, T] = {}
    # The piece that begins comes first in its round: its rows travel while the others compute
    turns = [
        (tick - piece, piece)
        for tick in range(len(pieces) + num_steps - 1)
        for piece in reversed(range(len(pieces)))
        if 0 <= tick - piece < num_steps
    ]
    for turn in turns:
        if meanwhile is not None and turn in {(1, 0), turns[-1]}:
            next(meanwhile, None)
        step, piece = turn
        try:
            next(pieces[piece])
        except StopIteration as done:
            assert step == num_steps - 1, "every piece has as many steps"
            results[piece] = done.value
    return [results[piece] for piece in range(len(pieces))]

"""An exchange between ranks in two halves, with work between them in both directions."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class AsyncExchange(Protocol):
    """An exchange between ranks that begins and finishes apart, forward and backward."""

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        """Begins to send."""
        ...

    def finish(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Waits; returns what came, and what came without a gradient."""
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

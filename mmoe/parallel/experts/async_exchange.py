"""An exchange between ranks in two halves, with work between them in both directions."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Journey(Protocol):
    """An exchange in two halves, forward and backward; what a rank does in between goes on."""

    def depart(self, tensors: tuple[Tensor, ...]) -> None:
        """Begins to send."""
        ...

    def arrive(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Waits; what came, and what came without a gradient."""
        ...

    def depart_back(self, grads: tuple[Tensor, ...]) -> None:
        """Begins to send the gradients of what came."""
        ...

    def arrive_back(self) -> tuple[Tensor | None, ...]:
        """Waits; the gradients of what was sent."""
        ...


def set_out(journey: Journey, *tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Departs; what is returned waits and arrives.

    What is computed in between does not wait for other ranks, and in the backward pass neither:
    autograd runs what was made last first, so it sends the gradients of what came, then goes
    through what was computed in between, and then waits for the gradients of what was sent.

    Where gradients are enabled, what comes asks for one, so that all ranks take part in the
    exchange of the backward pass, a rank where nothing needs a gradient too.
    """
    anchor = torch.zeros((), device=tensors[0].device, requires_grad=True)
    token = _Depart.apply(journey, anchor, *tensors)
    return lambda: _Arrive.apply(journey, token)


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, journey: Journey, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.journey = journey
        journey.depart(tensors)
        return torch.zeros_like(anchor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        return None, None, *ctx.journey.arrive_back()


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, journey: Journey, token: Tensor) -> tuple[Tensor, ...]:
        ctx.journey = journey
        found, fixed = journey.arrive()
        ctx.count = len(found)
        ctx.mark_non_differentiable(*fixed)
        return *found, *fixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        ctx.journey.depart_back(grads[: ctx.count])
        return None, grads[0].new_zeros(())

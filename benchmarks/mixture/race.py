"""Contestants of the layer's races, and whether they compute the same thing."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

INPUT_GRADIENT = "the input gradient"
# Rounding moves a sum or two across ReLU's kink, where the gradient jumps and the output does not.
KINKS = 1e-2


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One training step: forward, backward, and the gradients thrown away, as optimizers do.

    Attributes:
        forward: Builds the outputs, `[B, gates, O]` each.
        grads: The gradient of each output.
        leaves: Everything that gets a gradient; the first one is the input.
        weights: Those of the leaves whose gradients are compared between contestants.
        around: What the forward pass runs under (autocast).
        outside: What the whole step runs under (another product backend).
    """

    forward: Callable[[], Sequence[Tensor]]
    grads: Sequence[Tensor]
    leaves: Sequence[Tensor]
    weights: Sequence[Tensor]
    around: Callable[[], AbstractContextManager] = nullcontext
    outside: Callable[[], AbstractContextManager] = nullcontext

    def run(self) -> list[Tensor]:
        """Forward and backward; the leaves keep their gradients."""
        with self.outside():
            with self.around():
                outputs = list(self.forward())
            torch.autograd.backward(outputs, list(self.grads))
        return outputs

    def step(self) -> None:
        """What is timed."""
        self.run()
        for leaf in self.leaves:
            leaf.grad = None


def check_equal(name: str, contestants: Mapping[str, Contestant], tolerance: float) -> None:
    """Refuses to compare different mathematics: outputs, input gradient, norm of the weights'.

    Raises:
        ValueError: A contestant's numbers are not those of the first one.
    """
    wanted: dict[str, Tensor] = {}
    for who, contestant in contestants.items():
        found = _signature(contestant)
        wanted = wanted or found
        for what, value in found.items():
            error = _relative_error(value, wanted[what])
            allowed = tolerance + (KINKS if what == INPUT_GRADIENT else 0)
            if not error <= allowed:
                raise ValueError(
                    f"{name}: expected {what} of {who!r} within {allowed:g} of "
                    f"{next(iter(contestants))!r}, got a relative error of {error:.3g}; the "
                    "contestants do not compute the same thing"
                )


def _signature(contestant: Contestant) -> dict[str, Tensor]:
    outputs = torch.cat([y.detach().double() for y in contestant.run()], dim=1)
    input_grad = contestant.leaves[0].grad
    assert input_grad is not None
    # Layouts differ between contestants; the norm over all weights does not.
    squares = [w.grad.double().square().sum() for w in contestant.weights if w.grad is not None]
    signature = {
        "the output": outputs.flatten(),
        INPUT_GRADIENT: input_grad.double().flatten(),
        "the norm of the weights' gradients": torch.stack(squares).sum().sqrt().reshape(1),
    }
    for leaf in contestant.leaves:
        leaf.grad = None
    return signature


def _relative_error(value: Tensor, wanted: Tensor) -> float:
    if value.shape != wanted.shape:
        return math.inf
    return float((value - wanted).norm() / wanted.norm().clamp_min(1e-30))

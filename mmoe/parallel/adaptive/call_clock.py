"""`CallClock`: how long one call of a mixture takes on this rank, forward and backward."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmoe.mixture import DispatchPlan
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.routing.dispatcher import Compute

Run = Callable[[Sequence[Tree], DispatchPlan, Compute], Tensor]


class CallClock:
    """Times one call: the forward pass, and the backward pass when autograd gets there.

    The backward pass lasts from when the gradient of the output is there until those of the rows
    and of the gates' weights are.

    Args:
        device: What it waits for, where that is a GPU.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> picks = torch.zeros(2, 1, 1, dtype=torch.int32)
        >>> plan = DispatchPlan(
        ...     experts_BGK=picks,
        ...     weights_BGK=torch.ones(2, 1, 1),
        ...     num_experts=1,
        ...     expert_source=(0,),
        ... )
        >>> clock, x_BD = CallClock(torch.device("cpu")), torch.ones(2, 3, requires_grad=True)
        >>> out = clock.time(lambda sources, plan, _: sources[0] * 2, [x_BD], plan, lambda x, _: x)
        >>> before = clock.seconds
        >>> out.sum().backward()
        >>> 0 < before < clock.seconds, x_BD.grad.sum()
        (True, tensor(12.))
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forward = self._backward = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the forward pass, and of the backward pass where there was one."""
        return self._forward + self._backward

    def time(
        self, run: Run, sources: Sequence[Tree], plan: DispatchPlan, compute: Compute
    ) -> Tensor:
        """Runs a call, and returns its output.

        Args:
            run: The call.
            sources: S tensors `x_BD`.
            plan: The picks.
            compute: Runs the experts.
        """
        started = self._now()
        *marked, weights_BGK = _marked(self._end, [*sources, plan.weights_BGK])
        out_BGO = run(marked, replace(plan, weights_BGK=weights_BGK), compute)
        self._forward = self._now() - started
        return _marked(self._begin, [out_BGO])[0]

    def _begin(self) -> None:
        self._begun = self._now()

    def _end(self) -> None:
        self._backward = self._now() - self._begun

    def _now(self) -> float:
        if self._device.type == "cuda":
            # The host runs ahead of a GPU
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _marked(note: Callable[[], None], values: Sequence[Any]) -> list[Any]:
    """The same values, whose gradients are noted once all of them are there."""
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    found = list(values)
    if places:
        views = _Mark.apply(note, *(values[i] for i in places))
        for i, view in zip(places, views, strict=True):
            found[i] = view
    return found


class _Mark(torch.autograd.Function):
    """Does nothing; in the backward pass it says so."""

    @staticmethod
    def forward(ctx: Any, note: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.note = note
        # What has no gradient stays without: zeros in its place would be work, and timed
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.note()
        return None, *grads

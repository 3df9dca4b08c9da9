"""Messages between the ranks of a training step; on one process there are none."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from mmoe.mixture.gates.sigmoid import gate_loads
from mmoe.parallel import (
    GradientSum,
    is_spread,
    parameters_by_replicas,
    replicated_parameters,
    world_size,
)
from mmoe.parallel.launch.process_group import COLLECTIVE_SECONDS


class StepRanks:
    """Ranks that share every batch of a training run, and what they tell each other.

    The loss is `L = Σ_r L_r`, the sum of what each rank calls `backward` on. So gradients of what
    every rank has are added up; those of spread experts are complete where they are held. Sums
    travel in a process group of their own: nothing else that ranks exchange at that time (rows of
    experts, of tables) waits for them, or could change places with them.

    Attributes:
        alone: Whether there are no other ranks.

    Example:
        >>> from mmoe.train.step_ranks import ONE_PROCESS
        >>> ONE_PROCESS.add_up(torch.tensor([2.0]))
        tensor([2.])
    """

    def __init__(self) -> None:
        self.alone = True
        self.group: dist.ProcessGroup | None = None
        self.gradients: list[GradientSum] = []
        self.empty: list[nn.Parameter] = []
        self.network: nn.Module | None = None

    @classmethod
    def of(cls, network: nn.Module, timeout_seconds: int = COLLECTIVE_SECONDS) -> "StepRanks":
        """Makes it for all ranks of the process group, or for this process alone; collective.

        Args:
            network: What is trained, built by each rank as its part of one network.
            timeout_seconds: After which a rank that waits for another gives up.
        """
        ranks = cls()
        if world_size() > 1:
            patience = timedelta(seconds=timeout_seconds)
            ranks.group = cast(dist.ProcessGroup, dist.new_group(timeout=patience))
            ranks.alone, ranks.network = False, network
            ranks.find_gradients()
        return ranks

    def find_gradients(self) -> None:
        """Finds the gradients that are added up, of a network whose modules may be others now."""
        if self.network is None:
            return
        for gradients in self.gradients:
            gradients.close()
        summed = [(self.group, replicated_parameters(self.network))]
        summed += [(g, own) for g, own in parameters_by_replicas(self.network) if g is not None]
        self.gradients = [GradientSum(weights, group) for group, weights in summed]
        self.empty = [w for w in self.network.parameters() if w.requires_grad and not w.numel()]

    def close(self) -> None:
        """Ends the group of gradient sums; no step follows."""
        if self.group is not None:
            dist.destroy_process_group(self.group)

    def add_up(self, amounts_N: Tensor) -> Tensor:
        """Adds amounts up over ranks, and waits for the sums.

        Args:
            amounts_N: As many on every rank; float64 where the sums must be exact.
        """
        if not self.alone:
            amounts_N = amounts_N.clone()
            dist.all_reduce(amounts_N, group=self.group)
        return amounts_N

    def begin_outcome(self, amounts_N: Tensor) -> Callable[[], Tensor]:
        """Begins to add up what the forward passes found.

        The picks that gates count for their biases (`SigmoidGate`) travel in the same message.

        Args:
            amounts_N: float64, as many on every rank.

        Returns:
            Waits for the sums, of which each rank has the same bits, and returns them.
        """
        if self.network is None:
            return lambda: amounts_N
        loads = gate_loads(self.network)
        flat = torch.cat([amounts_N, *(load_GE.flatten().double() for load_GE in loads)])
        work = dist.all_reduce(flat, group=self.group, async_op=True)

        def finish() -> Tensor:
            assert work is not None
            work.wait()
            sums_N, *counts = flat.split([len(amounts_N), *(load.numel() for load in loads)])
            for load_GE, count in zip(loads, counts, strict=True):
                load_GE.copy_(count.view_as(load_GE))
            return sums_N

        return finish

    def adding_gradients(self) -> AbstractContextManager[object]:
        """Encloses a step's last backward pass: gradients leave as they come."""
        stack = ExitStack()
        for gradients in self.gradients:
            stack.enter_context(gradients.in_flight())
        return stack

    def wait(self) -> None:
        """Waits until the gradients of the step are those of all ranks."""
        for gradients in self.gradients:
            gradients.wait()
        # Of experts that are all elsewhere: an optimizer counts the same steps of them as there
        for weight in self.empty:
            weight.grad = torch.zeros_like(weight)

    def clip(self, network: nn.Module, max_norm: float) -> None:
        """Shortens the dense gradients to an L2 norm of at most `max_norm`, over all ranks."""
        if self.alone or not is_spread(network):
            clip_grad_norm_(network.parameters(), max_norm)
            return
        others = _norm(replicated_parameters(network))
        mine = torch.zeros_like(others, dtype=torch.float64)
        for group, weights in parameters_by_replicas(network):
            # The sum over all ranks has each of them as often as there are replicas
            replicas = 1 if group is None else dist.get_world_size(group)
            mine += _norm(weights).double().square() / replicas
        squares = self.add_up(mine.view(1))[0] + others.double().square()
        clip_grads_with_norm_(network.parameters(), max_norm, squares.sqrt().to(others.dtype))


def _norm(weights: Sequence[nn.Parameter]) -> Tensor:
    return get_total_norm([weight.grad for weight in weights if weight.grad is not None])


ONE_PROCESS = StepRanks()

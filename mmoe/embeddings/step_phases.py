"""Phases of a step, told to embeddings that send the next step's ids ahead."""

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class StepIds(Protocol):
    """Interface of a training step, as embeddings see it: its ids."""

    @property
    def ids(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Arguments of the embeddings: ids, lengths, weights of ids."""
        ...

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of its tensors until `stream`, which reads them, is done."""
        ...


StepT = TypeVar("StepT", bound=StepIds)
OfStepT = TypeVar("OfStepT", bound=StepIds, contravariant=True)


class StepPhases(Protocol[OfStepT]):
    """Interface of what trains a step phase by phase; each leaves in it what the next needs."""

    def forward(self, step: OfStepT) -> None:
        """Looks the step's ids up, once, and goes as far as the loss."""
        ...

    def backward(self, step: OfStepT) -> None:
        """Fills the gradients."""
        ...

    def update(self) -> None:
        """Moves the weights and clears the gradients."""
        ...

    def sending(self) -> AbstractContextManager[object]:
        """Encloses the time while ids are on their way, for a profile."""
        ...

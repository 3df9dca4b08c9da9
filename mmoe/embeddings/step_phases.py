"""What training tells embeddings about a step, where these send the next one's ids ahead."""

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class StepIds(Protocol):
    """What a step is trained on."""

    @property
    def ids(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the embeddings are called with: ids, lengths, weights of ids."""
        ...

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of its tensors until `stream`, which reads them, is done."""
        ...


StepT = TypeVar("StepT", bound=StepIds)
OfStepT = TypeVar("OfStepT", bound=StepIds, contravariant=True)


class StepPhases(Protocol[OfStepT]):
    """How a step is trained, phase by phase; each leaves in the step what the next one needs."""

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
        """Entered while ids are on their way; for a profile."""
        ...

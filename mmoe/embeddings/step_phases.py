"""What training tells embeddings about a step, where these send the next one's ids ahead."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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
HalfT = TypeVar("HalfT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class StepPhases(Generic[StepT, HalfT, ResultT]):
    """How a step is trained, phase by phase.

    Attributes:
        forward: Looks the step's ids up, once, and goes as far as the loss.
        backward: Given what `forward` returned, fills the gradients.
        update: Moves the weights and clears the gradients.
        sending: Entered while ids are on their way; for a profile.
    """

    forward: Callable[[StepT], HalfT]
    backward: Callable[[HalfT], ResultT]
    update: Callable[[], None]
    sending: Callable[[], AbstractContextManager[object]]

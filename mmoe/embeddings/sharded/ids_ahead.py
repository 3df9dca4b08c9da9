"""Training with the ids of the next step on their way to their ranks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, cast

import torch
from torch import nn
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable

from mmoe.embeddings.step_phases import StepPhases, StepT


class IdsAhead(TrainPipelineSparseDist, Generic[StepT]):
    """TorchRec's `TrainPipelineSparseDist` over the steps of an epoch.

    While a step is trained on, the ids of the next one leave for the ranks that hold their rows:
    their numbers before its forward pass, they themselves between that and its backward pass, on a
    CUDA stream of their own where there are GPUs. Rows are looked up when the step's turn has come,
    so that no number differs from those without. All ranks make it together, over as many steps.

    Between its first `step` and `close` the collection can be called by these steps alone.

    Args:
        collection: Holds the tables.
        ids_of: What it is called with for a step.
        steps: To train on. Up to three are taken before the first of them is trained on.
        phases: Of a step.
        device: Of the tables and of the steps.
    """

    def __init__(
        self,
        collection: ShardedEmbeddingBagCollection,
        ids_of: Callable[[StepT], KeyedJaggedTensor],
        steps: Iterator[StepT],
        phases: StepPhases[StepT],
        device: torch.device,
    ) -> None:
        super().__init__(
            model=_Lookup(collection),
            optimizer=cast(Any, _Update(phases.update)),
            device=device,
            custom_model_fwd=self._forward,
        )
        self._phases = phases
        self._ahead = (_Sent(step, ids_of(step)) for step in steps)
        self._rewritten = False
        self._done: StepT | None = None

    def step(self) -> StepT | None:
        """Trains on the next step and returns it; None where there is none.

        Raises:
            RuntimeError: A phase of the step raised StopIteration, as from a generator.
        """
        try:
            self.progress(self._ahead)
        except StopIteration as error:
            if self.batches:
                # Not TorchRec's: taken for it, it would end the epoch on this rank alone
                raise RuntimeError("a training step raised StopIteration") from error
            return None
        done, self._done = self._done, None
        return done

    def close(self) -> None:
        """Forgets what is under way; the collection is as it was before."""
        if self._rewritten:
            self.detach()
        self.reset()

    def start_sparse_data_dist(self, batch: Any, context: Any) -> None:
        """Sends the numbers of ids; see TorchRec."""
        with self._phases.sending():
            super().start_sparse_data_dist(batch, context)

    def wait_sparse_data_dist(self, context: Any) -> None:
        """Waits for the numbers and sends the ids; see TorchRec."""
        with self._phases.sending():
            super().wait_sparse_data_dist(context)

    def _forward(self, sent: "_Sent | None") -> tuple[Any, StepT]:
        assert sent is not None, "TorchRec has a batch where it computes one"
        step = cast(StepT, sent.step)
        self._phases.forward(step)
        return step, step

    def _backward(self, losses: Any) -> None:
        self._phases.backward(losses)
        self._done = losses

    def _pipeline_model(self, *arguments: Any, **named: Any) -> None:
        super()._pipeline_model(*arguments, **named)
        self._rewritten = True  # whole: only then TorchRec can undo it


class _Lookup(nn.Module):
    """Module that TorchRec traces to find a batch's ids; never called."""

    def __init__(self, collection: ShardedEmbeddingBagCollection) -> None:
        super().__init__()
        self.collection = collection

    def forward(self, sent: "_Sent") -> Any:
        return self.collection(sent.ids)


@dataclass(frozen=True)
class _Sent(Pipelineable):
    """A step and its ids, as TorchRec moves them about."""

    step: Any
    ids: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool) -> "_Sent":
        return self  # the batches of a step lie on the device already

    def record_stream(self, stream: torch.Stream) -> None:
        for part in (self.step, self.ids):
            part.record_stream(cast(torch.cuda.Stream, stream))


class _Update:
    """The end of a step, as TorchRec calls it."""

    def __init__(self, update: Callable[[], None]) -> None:
        self.step = update

    def zero_grad(self) -> None:
        """The update has done it."""

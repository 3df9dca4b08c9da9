"""Training steps over ranks, each with the ids of the next one under way."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.embeddings import StepPhases
from mmoe.train.gradients import HalfStep, StepLosses, forward
from mmoe.train.profiling.parts import EMBEDDINGS, part
from mmoe.train.ranks import StepRanks
from mmoe.train.state import TrainingState
from mmoe.train.step import naming_the_step, set_learning_rates, update
from mmoe.train.step_batches import StepBatches

if TYPE_CHECKING:
    from mmoe.embeddings.sharded.ids_ahead import IdsAhead

# Of a step: its number of batches, and what is known of them so far
Half = tuple[int, HalfStep]
Trained = tuple[int, StepLosses]


def ids_ahead(
    state: TrainingState,
    batches: Iterator[Sequence[Batch]],
    config: RunConfig,
    total_steps: int,
    ranks: StepRanks,
) -> "IdsAhead[StepBatches, Half, Trained] | None":
    """Steps that are each what `train_step` makes of it, to the bit; to be closed.

    Args:
        state: What is trained.
        batches: This rank's rows of each step's batches, for the steps of an epoch that are left.
        config: Of the run.
        total_steps: Of all epochs, for the schedule.
        ranks: The ranks that share the batches.

    Returns:
        None where no ids can be sent ahead (`EmbeddingBackend.ids_ahead` says where).
    """

    def begin(step: StepBatches) -> Half:
        set_learning_rates(state, config, total_steps)
        with naming_the_step(state):
            return len(step.batches), forward(state.ranker, step, config, ranks)

    def finish(half: Half) -> Trained:
        with naming_the_step(state):
            return half[0], half[1].backward()

    phases = StepPhases(
        forward=begin,
        backward=finish,
        update=partial(update, state, config, ranks),
        sending=partial(part, EMBEDDINGS),
    )
    return state.ranker.tables.ids_ahead(map(StepBatches.of, batches), phases)

"""One optimizer step."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.errors import WHAT_TO_CHANGE, Diverged
from mmoe.mixture import update_biases
from mmoe.train.gradients import StepLosses, forward_backward
from mmoe.train.optim import learning_rate_factor
from mmoe.train.profiling.parts import OPTIMIZER, part
from mmoe.train.ranks import ONE_PROCESS, StepRanks
from mmoe.train.state import TrainingState


def train_step(
    state: TrainingState,
    batches: Sequence[Batch],
    config: RunConfig,
    total_steps: int,
    ranks: StepRanks = ONE_PROCESS,
) -> StepLosses:
    """Forward and backward of every batch, then one update.

    Args:
        state: What is trained.
        batches: This rank's rows of the step's batches.
        config: Of the run.
        total_steps: Of all epochs, for the schedule.
        ranks: The ranks that share the batches, each of which calls this with as many; default:
            there are no others.

    Returns:
        The losses over all ranks' rows.

    Raises:
        Diverged: The loss is not finite, on any rank; names the step and the task.
    """
    set_learning_rates(state, config, total_steps)
    with naming_the_step(state):
        losses = forward_backward(state.ranker, batches, config, ranks)
    update(state, config, ranks)
    return losses


@contextmanager
def naming_the_step(state: TrainingState) -> Generator[None]:
    """Says which step diverged, and what to do."""
    try:
        yield
    except Diverged as error:
        raise Diverged(
            f"training step {state.position.step + 1}: {error}; {WHAT_TO_CHANGE}"
        ) from error


def update(state: TrainingState, config: RunConfig, ranks: StepRanks = ONE_PROCESS) -> None:
    """Moves the weights by the gradients that are there, and clears these."""
    ranker, training = state.ranker, config.training
    with part(OPTIMIZER):
        if training.gradient_clip is not None:
            ranks.clip(ranker.network, training.gradient_clip)
        state.optimizer.step()
        state.optimizer.zero_grad()
        update_biases(ranker.network)
        ranker.tables.step()
        if state.average is not None:
            state.average.update_parameters(ranker.network)


def set_learning_rates(state: TrainingState, config: RunConfig, total_steps: int) -> None:
    """Those that the schedule has for the next step."""
    optimizer = config.training.optimizer
    if optimizer.schedule == "constant" and not optimizer.warmup_steps:
        return  # set once, when the optimizers were built
    factor = learning_rate_factor(optimizer, state.position.step, total_steps)
    for group in state.optimizer.param_groups:
        group["lr"] = optimizer.learning_rate * factor
    state.ranker.tables.scale_learning_rates(factor)

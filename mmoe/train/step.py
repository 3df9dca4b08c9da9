"""One optimizer step."""

from collections.abc import Sequence

from torch import nn

from mmoe.config import RunConfig
from mmoe.datasets.batch import Batch
from mmoe.mixture import update_biases
from mmoe.train.gradients import Diverged, StepLosses, forward_backward
from mmoe.train.optim import learning_rate_factor
from mmoe.train.parts import OPTIMIZER, part
from mmoe.train.state import TrainingState


def train_step(
    state: TrainingState, batches: Sequence[Batch], config: RunConfig, total_steps: int
) -> StepLosses:
    """Forward and backward of every batch, then one update.

    Raises:
        ValueError: The loss is not finite; names the step and the task.
    """
    _set_learning_rates(state, config, total_steps)
    ranker, training = state.ranker, config.training
    try:
        losses = forward_backward(ranker, batches, config)
    except Diverged as error:
        raise ValueError(
            f"training step {state.position.step + 1}: {error}; lower "
            "training.optimizer.learning_rate or that of the tables "
            "(training.embedding_optimizer.learning_rate), or set training.gradient_clip"
        ) from error
    with part(OPTIMIZER):
        if training.gradient_clip is not None:
            nn.utils.clip_grad_norm_(ranker.network.parameters(), training.gradient_clip)
        state.optimizer.step()
        state.optimizer.zero_grad()
        update_biases(ranker.network)
        ranker.tables.step()
        if state.average is not None:
            state.average.update_parameters(ranker.network)
    return losses


def _set_learning_rates(state: TrainingState, config: RunConfig, total_steps: int) -> None:
    optimizer = config.training.optimizer
    if optimizer.schedule == "constant" and not optimizer.warmup_steps:
        return  # set once, when the optimizers were built
    factor = learning_rate_factor(optimizer, state.position.step, total_steps)
    for group in state.optimizer.param_groups:
        group["lr"] = optimizer.learning_rate * factor
    state.ranker.tables.scale_learning_rates(factor)

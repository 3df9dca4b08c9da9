"""One training step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.datasets.batch import Batch
from mmoe.mixture import update_biases
from mmoe.tasks.losses import multi_task_loss
from mmoe.train.optim import learning_rate_factor
from mmoe.train.state import TrainingState


@dataclass(frozen=True)
class StepResult:
    """What a step saw.

    Attributes:
        losses: Mean loss of each task over its observed rows.
        rows: How many rows (weights) that was.
        dropped: Picks that the capacity dropped; None: there is no capacity.
    """

    losses: list[float]
    rows: list[float]
    dropped: int | None = None


def train_step(
    state: TrainingState, batch: Batch, config: RunConfig, total_steps: int
) -> StepResult:
    """Forward, backward, update.

    Raises:
        ValueError: The loss is not finite; names the step and the task.
    """
    _set_learning_rates(state, config, total_steps)
    ranker, training = state.ranker, config.training
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bf16"):
            output = ranker(
                batch.dense_BF, batch.values, batch.lengths_CB, id_weights=batch.id_weights
            )
    except ValueError as error:
        # A gate refuses NaN before the loss could show it.
        if "NaN" not in str(error):
            raise
        raise ValueError(_diverged(state, f"the loss cannot be computed ({error})")) from error
    assert batch.labels_BT is not None and batch.observed_BT is not None
    assert batch.weights_BT is not None, "training batches carry labels"
    total, losses_T = multi_task_loss(
        output.logits_BT,
        batch.labels_BT,
        batch.observed_BT,
        batch.weights_BT,
        config.tasks,
        entire_space=config.model.kind == "esmm",
    )
    for auxiliary in output.auxiliary_losses.values():
        total = total + auxiliary
    losses = losses_T.tolist()
    _check_finite(total, losses, state, config)
    total.backward()
    if training.gradient_clip is not None:
        nn.utils.clip_grad_norm_(ranker.network.parameters(), training.gradient_clip)
    state.optimizer.step()
    state.optimizer.zero_grad()
    update_biases(ranker.network)
    ranker.tables.step()
    if state.average is not None:
        state.average.update_parameters(ranker.network)
    rows_T = (batch.observed_BT * batch.weights_BT).sum(dim=0)
    dropped = None if output.dropped is None else int(output.dropped)
    return StepResult(losses, rows_T.tolist(), dropped)


def _set_learning_rates(state: TrainingState, config: RunConfig, total_steps: int) -> None:
    optimizer = config.training.optimizer
    if optimizer.schedule == "constant":
        return  # set once, when the optimizers were built
    factor = learning_rate_factor(optimizer.schedule, state.position.step, total_steps)
    for group in state.optimizer.param_groups:
        group["lr"] = optimizer.learning_rate * factor
    state.ranker.tables.set_learning_rate(
        config.training.embedding_optimizer.learning_rate * factor
    )


def _check_finite(
    total: Tensor, losses: list[float], state: TrainingState, config: RunConfig
) -> None:
    value = float(total.detach())
    if math.isfinite(value):
        return
    names = [
        task.name
        for task, loss in zip(config.tasks, losses, strict=True)
        if not math.isfinite(loss)
    ]
    whose = f"of task {', '.join(names)}" if names else "(an auxiliary loss)"
    raise ValueError(_diverged(state, f"the loss {whose} is {value}"))


def _diverged(state: TrainingState, what: str) -> str:
    return (
        f"training step {state.position.step + 1}: {what}; lower "
        f"training.optimizer.learning_rate or set training.gradient_clip"
    )

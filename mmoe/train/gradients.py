"""The gradients of one optimizer step, from one batch or from several that count as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmoe.config import RunConfig
from mmoe.datasets.batch import Batch
from mmoe.models.network import NetworkOutput
from mmoe.models.ranker import Ranker
from mmoe.tasks.losses import multi_task_loss, observed_weights
from mmoe.train.parts import BACKWARD, LOSS, part


class Diverged(ValueError):
    """The loss is no finite number."""


@dataclass(frozen=True)
class StepLosses:
    """What the forward passes of a step found.

    Attributes:
        losses: Mean loss of each task over its observed rows; ESMM's second: over all rows whose
            outcome is known.
        rows: How many rows (weights) that was.
        dropped: Picks that the capacity dropped; None: there is no capacity.
    """

    losses: list[float]
    rows: list[float]
    dropped: int | None = None


def forward_backward(ranker: Ranker, batches: Sequence[Batch], config: RunConfig) -> StepLosses:
    """Adds the gradients of `batches` together as if they were one batch, one forward at a time.

    All ids are looked up at once, so tables too see one gradient for a row, and an optimizer fused
    into their backward pass moves them once. Every task's loss is divided by the observed weight of
    all batches, which follows from the labels alone. What differs from one large batch is what a
    model computes across the rows of a batch: balance losses, capacities and batch norms are those
    of each batch, the losses averaged by rows.

    Raises:
        Diverged: A loss, or a gate's logit, is no finite number. Tables are as they were.
    """
    x_ND = ranker.look_up(*_all_ids(batches))
    parts: list[Tensor | None] = [None] * len(batches)
    if x_ND is not None:
        # Leaves: the tables' backward pass runs once, when all gradients are there
        parts = [x.requires_grad_() for x in x_ND.detach().split([len(b) for b in batches])]
    whole_T = _observed_of_all(batches, config)
    rows = sum(batch.num_rows for batch in batches)
    losses_T, dropped = torch.zeros(len(config.tasks)), None
    for batch, x_BD in zip(batches, parts, strict=True):
        output = _forward(ranker, batch, x_BD, config)
        with part(LOSS):
            loss, per_task_T = _loss(output, batch, config, whole_T, batch.num_rows / rows)
            _check_finite(loss, per_task_T, config)
            losses_T += per_task_T
        if output.dropped is not None:
            dropped = (dropped or 0) + int(output.dropped)
        with part(BACKWARD):
            loss.backward()
    if x_ND is not None:
        with part(BACKWARD):
            x_ND.backward(_joined([x_BD.grad for x_BD in parts if x_BD is not None]))
    return StepLosses(losses_T.tolist(), whole_T.tolist(), dropped)


def _forward(ranker: Ranker, batch: Batch, x_BD: Tensor | None, config: RunConfig) -> NetworkOutput:
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=config.training.precision == "bf16"):
            return ranker.mix(batch.dense_BF, x_BD)
    except ValueError as error:
        # A gate refuses NaN before the loss could show it.
        if "NaN" not in str(error):
            raise
        raise Diverged(f"the loss cannot be computed ({error})") from error


def _loss(
    output: NetworkOutput, batch: Batch, config: RunConfig, whole_T: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """The part of a step's loss that this batch is, and that of each task."""
    assert batch.labels_BT is not None and batch.observed_BT is not None
    assert batch.weights_BT is not None, "training batches carry labels"
    total, losses_T = multi_task_loss(
        output.logits_BT,
        batch.labels_BT,
        batch.observed_BT,
        batch.weights_BT,
        config.tasks,
        entire_space=config.model.kind == "esmm",
        out_of_T=whole_T,
    )
    for auxiliary in output.auxiliary_losses.values():
        total = total + auxiliary * share
    return total, losses_T


def _check_finite(loss: Tensor, losses_T: Tensor, config: RunConfig) -> None:
    value = float(loss.detach())
    if math.isfinite(value):
        return
    pairs = zip(config.tasks, losses_T.tolist(), strict=True)
    names = [task.name for task, loss in pairs if not math.isfinite(loss)]
    whose = f"of task {', '.join(names)}" if names else "(an auxiliary loss)"
    raise Diverged(f"the loss {whose} is {value}")


def _observed_of_all(batches: Sequence[Batch], config: RunConfig) -> Tensor:
    """What each task's loss is divided by, `weights_T`."""
    esmm = config.model.kind == "esmm"
    return torch.stack(
        [
            observed_weights(b.labels_BT, b.observed_BT, b.weights_BT, entire_space=esmm)
            for b in batches
            if b.labels_BT is not None and b.observed_BT is not None and b.weights_BT is not None
        ]
    ).sum(0)


def _all_ids(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids, lengths and weights of ids of one batch made of all, feature-major."""
    if len(batches) == 1:
        return batches[0].values, batches[0].lengths_CB, batches[0].id_weights
    lengths = [batch.lengths_CB.view(-1, len(batch)) for batch in batches]
    counts = [lengths_CB.sum(dim=1).tolist() for lengths_CB in lengths]
    weights = [batch.id_weights for batch in batches if batch.id_weights is not None]
    return (
        _by_feature([batch.values for batch in batches], counts),
        torch.cat(lengths, dim=1).flatten(),
        _by_feature(weights, counts) if weights else None,
    )


def _by_feature(tensors: Sequence[Tensor], counts: Sequence[list[int]]) -> Tensor:
    """Joins feature-major values of several batches: all of the first feature, then the next."""
    parts = [values.split(counted) for values, counted in zip(tensors, counts, strict=True)]
    return torch.cat([part for of_feature in zip(*parts, strict=True) for part in of_feature])


def _joined(gradients: Sequence[Tensor | None]) -> Tensor:
    found = [gradient for gradient in gradients if gradient is not None]
    assert len(found) == len(gradients), "every batch reads its embeddings"
    return found[0] if len(found) == 1 else torch.cat(found)

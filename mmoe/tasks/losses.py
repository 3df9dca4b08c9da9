"""The loss of several tasks: masked, weighted per row and per task."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.constants import constants


class LossSums(NamedTuple):
    """Numerators and denominators of every task's mean loss.

    Kept apart so that several batches, or several ranks, can be added up before dividing.

    Attributes:
        losses_T: Σ over observed rows of weight · loss.
        weights_T: Σ over observed rows of weight.
    """

    losses_T: Tensor
    weights_T: Tensor


def multi_task_loss(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
    *,
    entire_space: bool = False,
    out_of_T: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the tasks' mean losses, each over the rows where its label exists.

    `total = Σ_t weight_t · Σ_b o_bt w_bt ℓ_bt / Σ_b o_bt w_bt`, with `ℓ` the binary cross-entropy
    (binary tasks) or the squared error (regressions). A task without observed weight adds 0.

    Args:
        logits_BT: One column per task.
        labels_BT: 0 or 1 for a binary task, any number for a regression; ignored where unobserved.
        observed_BT: Bool, where the label exists.
        weights_BT: Row weights, 0 or more.
        tasks: The tasks, in the order of the columns; `weight` is theirs.
        entire_space: See `entire_space_sums`.
        out_of_T: Where these rows are a part of several batches: the `observed_weights` of all of
            them, to divide by. The parts' results then add up to those of one large batch.

    Returns:
        The total, and `per_task_T`, each task's mean without its weight, detached.

    Raises:
        ValueError: Shapes that do not fit, or `entire_space` with other than two binary tasks.

    Example:
        >>> import torch
        >>> from mmoe.config import TaskConfig
        >>> from mmoe.tasks import multi_task_loss
        >>> tasks = [TaskConfig(name="click", label="click"), TaskConfig(name="buy", label="buy")]
        >>> labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        >>> observed = torch.tensor([[True, False], [True, False]])
        >>> total, per_task = multi_task_loss(
        ...     torch.zeros(2, 2), labels, observed, torch.ones(2, 2), tasks
        ... )
        >>> per_task  # the second task has no label in this batch
        tensor([0.6931, 0.0000])
    """
    _check(logits_BT, labels_BT, observed_BT, weights_BT, tasks)
    inputs = (logits_BT, labels_BT, observed_BT, weights_BT)
    sums = entire_space_sums(*inputs, tasks) if entire_space else loss_sums(*inputs, tasks)
    # A task without observed weight has a sum of 0; dividing by 1 keeps it, and its gradient, at 0.
    whole_T = sums.weights_T if out_of_T is None else out_of_T
    means_T = sums.losses_T / torch.where(whole_T > 0, whole_T, 1)
    task_weights_T = constants([task.weight for task in tasks], means_T)
    return (task_weights_T * means_T).sum(), means_T.detach()


def observed_weights(
    labels_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor, *, entire_space: bool = False
) -> Tensor:
    """Each task's `Σ_b o_bt w_bt`, by which its loss is divided; known before the forward pass.

    Args:
        labels_BT: As in `multi_task_loss`.
        observed_BT: Likewise.
        weights_BT: Likewise.
        entire_space: See `entire_space_sums`.

    Returns:
        `weights_T`.

    Example:
        >>> import torch
        >>> from mmoe.tasks.losses import observed_weights
        >>> observed = torch.tensor([[True, False], [True, True]])
        >>> observed_weights(torch.zeros(2, 2), observed, torch.ones(2, 2))
        tensor([2., 1.])
    """
    if entire_space:
        observed_BT = _entire_space_observed(labels_BT, observed_BT)
    return _clean(labels_BT, weights_BT, observed_BT, weights_BT.dtype)[1].sum(0)


def _entire_space_observed(labels_BT: Tensor, observed_BT: Tensor) -> Tensor:
    """Event known; and outcome known: no event, or an observed consequence."""
    event_B, known_B = labels_BT[:, 0] > 0.5, observed_BT[:, 0]
    return torch.stack([known_B, known_B & (~event_B | observed_BT[:, 1])], dim=1)


def loss_sums(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
) -> LossSums:
    """Every task's loss on its own rows; the arguments are those of `multi_task_loss`."""
    logits_BT = _at_least_fp32(logits_BT)
    labels_BT, weights_BT = _clean(labels_BT, weights_BT, observed_BT, logits_BT.dtype)
    losses = [
        F.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
        if task.kind == "binary"
        else (logits_B - labels_B).square()
        for task, logits_B, labels_B in zip(
            tasks, logits_BT.unbind(1), labels_BT.unbind(1), strict=True
        )
    ]
    return LossSums((weights_BT * torch.stack(losses, dim=1)).sum(0), weights_BT.sum(0))


def entire_space_sums(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
) -> LossSums:
    """ESMM's loss: the event, and event ∧ consequence, both over all rows with the event's label.

    With `a, b` the two logits, the second loss is the cross-entropy of `p = σ(a) σ(b)`, in logs:
    `log p = log σ(a) + log σ(b)`, `log (1 − p) = log (σ(−a) + σ(a) σ(−b))`. So the second tower
    learns the conditional probability of the consequence without seeing the selected rows alone.

    A row counts for the second loss where the outcome is known: no event, or an event and an
    observed consequence. Its weight is that of the second task.

    Args:
        logits_BT: Event and consequence given the event.
        labels_BT: As in `multi_task_loss`.
        observed_BT: Likewise.
        weights_BT: Likewise; the second column is read on rows without the event too.
        tasks: The two tasks.

    Returns:
        The sums of both losses.

    Raises:
        ValueError: Not two binary tasks.

    Source: Ma et al., "Entire space multi-task model" (SIGIR 2018), equation 3.
    """
    if len(tasks) != 2 or any(task.kind != "binary" for task in tasks):
        came = ", ".join(f"{task.name} ({task.kind})" for task in tasks)
        raise ValueError(
            "tasks: esmm needs two binary tasks, an event and its consequence (such as click, "
            f"purchase), got {came}"
        )
    logits_BT = _at_least_fp32(logits_BT)
    event_B = labels_BT[:, 0] > 0.5
    observed_BT = _entire_space_observed(labels_BT, observed_BT)
    labels_BT = torch.stack([event_B, event_B & (labels_BT[:, 1] > 0.5)], dim=1)
    labels_BT, weights_BT = _clean(labels_BT, weights_BT, observed_BT, logits_BT.dtype)

    event, consequence = logits_BT.unbind(1)
    log_both = F.logsigmoid(event) + F.logsigmoid(consequence)
    log_not_both = torch.logaddexp(
        F.logsigmoid(-event), F.logsigmoid(event) + F.logsigmoid(-consequence)
    )
    both_B = labels_BT[:, 1]
    losses_BT = torch.stack(
        [
            F.binary_cross_entropy_with_logits(event, labels_BT[:, 0], reduction="none"),
            -(both_B * log_both + (1 - both_B) * log_not_both),
        ],
        dim=1,
    )
    return LossSums((weights_BT * losses_BT).sum(0), weights_BT.sum(0))


def _at_least_fp32(logits_BT: Tensor) -> Tensor:
    return logits_BT.to(torch.promote_types(logits_BT.dtype, torch.float32))


def _clean(
    labels_BT: Tensor, weights_BT: Tensor, observed_BT: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Zeroes labels and weights where nothing is observed: a NaN there would spread as 0 · NaN."""
    zero = torch.zeros((), dtype=dtype, device=labels_BT.device)
    return (
        torch.where(observed_BT, labels_BT.to(dtype), zero),
        torch.where(observed_BT, weights_BT.to(dtype), zero),
    )


def _check(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
) -> None:
    if logits_BT.dim() != 2 or logits_BT.shape[1] != len(tasks):
        raise ValueError(
            f"logits_BT: expected shape [rows, {len(tasks)}], one column per task, got "
            f"{list(logits_BT.shape)}"
        )
    named = {"labels_BT": labels_BT, "observed_BT": observed_BT, "weights_BT": weights_BT}
    for name, tensor in named.items():
        if tensor.shape != logits_BT.shape:
            raise ValueError(
                f"{name}: expected shape {list(logits_BT.shape)} as logits_BT, got "
                f"{list(tensor.shape)}"
            )
    if observed_BT.dtype != torch.bool:
        raise ValueError(f"observed_BT: expected dtype torch.bool, got {observed_BT.dtype}")

"""Columns of logits, task by task, and the predictions that a user asked for."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.config import TaskConfig
from mmoe.tasks.kinds import objective_of


def logit_widths(tasks: Sequence[TaskConfig]) -> list[int]:
    """Returns how many columns each task's logits have, learnt constants included.

    Example:
        >>> logit_widths([TaskConfig(name="like", label="like")])
        [1]
    """
    objectives = [objective_of(task.kind) for task in tasks]
    pairs = list(zip(objectives, tasks, strict=True))
    return [each.num_logits(task) + each.num_constants(task) for each, task in pairs]


def own_logits(logits_BL: Tensor, tasks: Sequence[TaskConfig]) -> list[Tensor]:
    """Parts logits by task.

    Args:
        logits_BL: Columns of the first task, then of the next.
        tasks: In that order.

    Returns:
        For each task `logit_B`, or `logits_BK` where it has K > 1 columns.

    Raises:
        ValueError: There are not as many columns as the tasks have.

    Example:
        >>> one, two = (TaskConfig(name=name, label=name) for name in ("like", "buy"))
        >>> [logit_B.tolist() for logit_B in own_logits(torch.tensor([[1.0, 2.0]]), [one, two])]
        [[1.0], [2.0]]
    """
    widths = logit_widths(tasks)
    check_width(logits_BL, widths)
    return parts_of(logits_BL, widths)


def check_width(logits_BL: Tensor, widths: Sequence[int]) -> None:
    """Refuses another number of columns than that of all tasks."""
    if logits_BL.dim() != 2 or logits_BL.shape[1] != sum(widths):
        each = "one column per task" if set(widths) <= {1} else f"of the tasks {widths}"
        raise ValueError(
            f"logits_BT: expected shape [rows, {sum(widths)}], {each}, got {list(logits_BL.shape)}"
        )


def parts_of(logits_BL: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Parts logits by the widths of tasks: `logit_B`, or `logits_BK` of K > 1 columns, of each."""
    if set(widths) <= {1}:
        return list(logits_BL.unbind(1))
    parts = logits_BL.split(list(widths), dim=1)
    return [part[:, 0] if part.shape[1] == 1 else part for part in parts]


def constants(values: Sequence[float], like: Tensor) -> Tensor:
    """Returns values as a tensor of `like`'s dtype and device, without waiting for a GPU.

    `torch.tensor(values, device="cuda")` and `new_tensor` would wait until all that was asked of
    the GPU before is done.

    Example:
        >>> constants([1, 2], torch.zeros(3))
        tensor([1., 2.])
    """
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def predictions_from_logits(logits_BT: Tensor, tasks: Sequence[TaskConfig]) -> Tensor:
    """Turns logits into predictions, `link(logit + ln r)`, by each task's kind.

    r is the task's `negative_sampling_rate`: a model trained on a log that kept the share r of the
    negatives gives `q = σ(logit)`, and among all rows the probability is
    `p = q / (q + (1 − q) / r)`, which is the same.

    Args:
        logits_BT: One column per task, or as many as its kind needs.
        tasks: The tasks, in the order of the columns.

    Returns:
        `predictions_BT`, in fp32 at least; behind the T columns stand those of `task.further`, of
        the first task, then of the next.

    Raises:
        ValueError: Another number of columns than tasks.

    Example:
        >>> import torch
        >>> from mmoe.config import TaskConfig
        >>> from mmoe.tasks import predictions_from_logits
        >>> like = TaskConfig(name="like", label="like")
        >>> minutes = TaskConfig(name="minutes", label="minutes", kind="regression")
        >>> predictions_from_logits(torch.tensor([[0.0, 3.0]]), [like, minutes]).tolist()
        [[0.5, 3.0]]
        >>> sampled = TaskConfig(name="like", label="like", negative_sampling_rate=0.1)
        >>> round(float(predictions_from_logits(torch.tensor([[0.0]]), [sampled])), 4)  # 1 in 11
        0.0909

    Source: He et al., "Practical lessons from predicting clicks on ads at Facebook" (ADKDD 2014),
        section 6.3.
    """
    logits_BT = logits_BT.to(torch.promote_types(logits_BT.dtype, torch.float32))
    found = []
    for logits, task in zip(own_logits(logits_BT, tasks), tasks, strict=True):
        rate = task.negative_sampling_rate
        # Where a share r of the negatives was kept, the odds of the log are 1 / r times too high
        shifted = logits if rate == 1 else logits + constants([math.log(rate)], logits)
        found.append(objective_of(task.kind).predictions(shifted, task))
    return torch.cat([*(each[:, :1] for each in found), *(each[:, 1:] for each in found)], dim=1)

"""From logits to the predictions that a user asked for."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.columns import constants, own_logits
from mmoe.tasks.kinds import objective_of


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

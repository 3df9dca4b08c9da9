"""Columns of logits, one a task or several where its kind needs them, and numbers beside them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmoe.config.tasks import TaskConfig
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
        >>> import torch
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
        >>> import torch
        >>> from mmoe.tasks.columns import constants
        >>> constants([1, 2], torch.zeros(3))
        tensor([1., 2.])
    """
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)

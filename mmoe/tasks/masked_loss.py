"""Loss of several tasks: masked, weighted per row and per task."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.config import TaskConfig
from mmoe.config.relations import entire_space_tasks
from mmoe.tasks.kinds import objective_of
from mmoe.tasks.kinds.base import LossRows
from mmoe.tasks.kinds.binary import Binary, binary_losses
from mmoe.tasks.predictions import check_width, logit_widths, parts_of


class LossSums(NamedTuple):
    """Numerators and denominators of every task's mean loss.

    Kept apart so that several batches, or several ranks, can be added up before dividing.

    Attributes:
        losses_T: Σ over observed rows of weight · loss.
        weights_T: Σ over observed rows of weight.
    """

    losses_T: Tensor
    weights_T: Tensor


class TaskLosses:
    """Losses of several tasks, of as many batches as are asked for.

    `total = Σ_t weight_t · Σ_b o_bt w_bt ℓ_bt / Σ_b o_bt w_bt`, with `ℓ` the loss of the task's
    kind (`mmoe.tasks.kinds`). A task without observed weight adds 0.

    Args:
        tasks: The tasks, in the order of the columns; `weight` is theirs.
    """

    def __init__(self, tasks: Sequence[TaskConfig]) -> None:
        self.tasks = list(tasks)
        self._objectives = [objective_of(task.kind) for task in tasks]
        self._widths = logit_widths(tasks)
        self._width = sum(self._widths)
        self._binary = [t for t, each in enumerate(self._objectives) if type(each) is Binary]
        self._all_binary = len(self._binary) == len(tasks)

    def total(
        self,
        logits_BT: Tensor,
        labels_BT: Tensor,
        observed_BT: Tensor,
        weights_BT: Tensor,
        *,
        out_of_T: Tensor | None = None,
        imputed: Mapping[int, Tensor] | None = None,
        groups_B: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the total and each task's mean; arguments as for `multi_task_loss`."""
        self._check(logits_BT, labels_BT, observed_BT, weights_BT)
        sums = self.sums(logits_BT, labels_BT, observed_BT, weights_BT, imputed, groups_B)
        # A task without observed weight has a sum of 0; dividing by 1 keeps it, and its gradient, 0
        whole_T = sums.weights_T if out_of_T is None else out_of_T
        means_T = sums.losses_T / torch.where(whole_T > 0, whole_T, 1)
        weights_T = torch.tensor([task.weight for task in self.tasks], dtype=means_T.dtype)
        # Not made on the device: a GPU would have to be waited for
        weights_T = weights_T.to(means_T.device, non_blocking=True)
        return (weights_T * means_T).sum(), means_T.detach()

    def observed_weights(
        self, labels_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor
    ) -> Tensor:
        """Returns each task's `Σ_b o_bt w_bt`, by which its loss is divided, `weights_T`."""
        labels_BT, observed_BT = self._outcomes(labels_BT, observed_BT)
        return _clean(labels_BT, weights_BT, observed_BT, weights_BT.dtype)[1].sum(0)

    def sums(
        self,
        logits_BT: Tensor,
        labels_BT: Tensor,
        observed_BT: Tensor,
        weights_BT: Tensor,
        imputed: Mapping[int, Tensor] | None = None,
        groups_B: Tensor | None = None,
    ) -> LossSums:
        """Sums every task's loss over its own rows; arguments as for `multi_task_loss`.

        Those of binary tasks are one matrix, taken in one pass.
        """
        logits_BT = logits_BT.to(torch.promote_types(logits_BT.dtype, torch.float32))
        given_BT = labels_BT
        labels_BT, observed_BT = self._outcomes(labels_BT, observed_BT)
        labels_BT, weights_BT = _clean(labels_BT, weights_BT, observed_BT, logits_BT.dtype)
        if self._all_binary:
            losses_BT = binary_losses(logits_BT, labels_BT)
            return LossSums((weights_BT * losses_BT).sum(0), weights_BT.sum(0))
        logits, columns = parts_of(logits_BT, self._widths), labels_BT.unbind(1)
        losses: dict[int, Tensor] = {}
        if len(self._binary) > 1:
            side_by_side = (
                torch.stack([of[t] for t in self._binary], dim=1) for of in (logits, columns)
            )
            losses |= zip(self._binary, binary_losses(*side_by_side).unbind(1), strict=True)
        # The last task first: where a logit is in two losses, this is the order of its gradient's
        # sum, which the stored results of ESMM rest on
        for t in reversed([t for t in range(len(self.tasks)) if t not in losses]):
            rows = LossRows(logits, columns[t], weights_BT[:, t], given_BT, groups_B, imputed or {})
            losses[t] = self._objectives[t].loss(t, rows, self.tasks)
        losses_BT = torch.stack([losses[t] for t in range(len(self.tasks))], dim=1)
        return LossSums((weights_BT * losses_BT).sum(0), weights_BT.sum(0))

    def _outcomes(self, labels_BT: Tensor, observed_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The outcome that each task is trained on, and where it is known."""
        if self._all_binary:
            return labels_BT, observed_BT
        outcomes = [
            objective.outcome(t, labels_BT, observed_BT, self.tasks)
            for t, objective in enumerate(self._objectives)
        ]
        if all(outcome is None for outcome in outcomes):
            return labels_BT, observed_BT
        own = zip(labels_BT.unbind(1), observed_BT.unbind(1), strict=True)
        pairs = zip(own, outcomes, strict=True)
        found = [pair if other is None else other for pair, other in pairs]
        labels, observed = zip(*found, strict=True)
        return torch.stack(labels, dim=1), torch.stack(observed, dim=1)

    def _check(
        self, logits_BT: Tensor, labels_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor
    ) -> None:
        if logits_BT.dim() != 2 or logits_BT.shape[1] != self._width:
            check_width(logits_BT, self._widths)
        expected = [len(logits_BT), len(self.tasks)]
        named = {"labels_BT": labels_BT, "observed_BT": observed_BT, "weights_BT": weights_BT}
        for name, tensor in named.items():
            if list(tensor.shape) != expected:
                raise ValueError(
                    f"{name}: expected shape {expected} as logits_BT, got {list(tensor.shape)}"
                )
        if observed_BT.dtype != torch.bool:
            raise ValueError(f"observed_BT: expected dtype torch.bool, got {observed_BT.dtype}")


def multi_task_loss(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
    *,
    entire_space: bool = False,
    out_of_T: Tensor | None = None,
    imputed: Mapping[int, Tensor] | None = None,
    groups_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum of the tasks' mean losses over their observed rows.

    For one batch what `TaskLosses` computes of many.

    Args:
        logits_BT: One column per task, or as many as its kind needs.
        labels_BT: 0 or 1 for a binary task, any number for a regression; ignored where unobserved.
        observed_BT: Bool, where the label exists.
        weights_BT: Row weights, 0 or more.
        tasks: The tasks, in the order of the columns; `weight` is theirs.
        entire_space: Two binary tasks are trained as `model.kind: esmm` trains them: the second is
            of kind entire_space, the first is its event.
        out_of_T: Where these rows are a part of several batches: the `observed_weights` of all of
            them, to divide by. The parts' results then add up to those of one large batch.
        imputed: `logit_B` of imputation towers, by column; tasks with `counterfactual: dr` have
            one.
        groups_B: Number of each row's group, int64, below B, where a task compares rows.

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
    losses = TaskLosses(entire_space_tasks(tasks) if entire_space else tasks)
    return losses.total(
        logits_BT,
        labels_BT,
        observed_BT,
        weights_BT,
        out_of_T=out_of_T,
        imputed=imputed,
        groups_B=groups_B,
    )


def loss_sums(
    logits_BT: Tensor,
    labels_BT: Tensor,
    observed_BT: Tensor,
    weights_BT: Tensor,
    tasks: Sequence[TaskConfig],
    imputed: Mapping[int, Tensor] | None = None,
    groups_B: Tensor | None = None,
) -> LossSums:
    """Sums every task's loss over its own rows.

    Args:
        logits_BT: One column per task, or as many as its kind needs.
        labels_BT: Ignored where unobserved.
        observed_BT: Bool.
        weights_BT: Row weights, 0 or more.
        tasks: In the order of the columns.
        imputed: `logit_B` of imputation towers, by column.
        groups_B: Number of each row's group, int64, where a task compares rows.
    """
    check_width(logits_BT, logit_widths(tasks))
    losses = TaskLosses(tasks)
    return losses.sums(logits_BT, labels_BT, observed_BT, weights_BT, imputed, groups_B)


def _clean(
    labels_BT: Tensor, weights_BT: Tensor, observed_BT: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Zeroes labels and weights where nothing is observed: a NaN there would spread as 0 · NaN."""
    zero = torch.zeros((), dtype=dtype, device=labels_BT.device)
    return (
        torch.where(observed_BT, labels_BT.to(dtype), zero),
        torch.where(observed_BT, weights_BT.to(dtype), zero),
    )

"""Entire space: a consequence, learnt over all rows with the label of its event (ESMM, ESCM²)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config.tasks import EntireSpaceTask, TaskConfig
from mmoe.mixture.batch_invariant import stable_sigmoid
from mmoe.tasks.counterfactual import doubly_robust_loss, inverse_propensity
from mmoe.tasks.kinds.base import LossRows
from mmoe.tasks.kinds.binary import Binary


class EntireSpace(Binary):
    """Objective of a consequence of an event: cross-entropy of both, `p = σ(a) σ(b)`.

    a is the event's logit, b the task's own: in logs `log p = log σ(a) + log σ(b)` and
    `log (1 − p) = log (σ(−a) + σ(a) σ(−b))`. So the task's tower learns the conditional probability
    of the consequence without seeing the selected rows alone. The event is the task that
    `observed_when` names; it has its own loss beside this one.

    A row counts where the outcome is known: no event, or an event and an observed consequence. Its
    weight is that of this task, which is read on rows without the event too.

    With `counterfactual` a loss of σ(b) alone is added, `counterfactual_weight` times: over rows
    with the event, each weighed by the inverse of σ(a) (`mmoe.tasks.counterfactual`). The event's
    tower learns nothing from it. It is the mean over the rows that count here, with the event or
    without it.

    Source: Ma et al., "Entire space multi-task model" (SIGIR 2018), equation 3; Wang et al.,
        "ESCM²" (SIGIR 2022), section 4, where weights of the three losses are λ.
    """

    def outcome(
        self, t: int, labels_BT: Tensor, observed_BT: Tensor, tasks: Sequence[TaskConfig]
    ) -> tuple[Tensor, Tensor]:
        """Returns event ∧ consequence, and where it is known."""
        event = _event(t, tasks)
        event_B, known_B = labels_BT[:, event] > 0.5, observed_BT[:, event]
        # As it is, not 0 or 1: a young row's consequence may count more than once
        both_B = torch.where(event_B, labels_BT[:, t], torch.zeros_like(labels_BT[:, t]))
        return both_B, known_B & (~event_B | observed_BT[:, t])

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the cross-entropy of `σ(a) σ(b)`, in logs."""
        event, consequence = logits[_event(t, tasks)], logits[t]
        log_both = F.logsigmoid(event) + F.logsigmoid(consequence)
        log_not_both = torch.logaddexp(
            F.logsigmoid(-event), F.logsigmoid(event) + F.logsigmoid(-consequence)
        )
        return -(label_B * log_both + (1 - label_B) * log_not_both)

    def row_losses(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes `loss`, and the counterfactual one where the task asks for it."""
        loss_B = self.loss(t, rows.logits, rows.label_B, tasks)
        task = tasks[t]
        if not isinstance(task, EntireSpaceTask) or task.counterfactual is None:
            return loss_B
        event, logit_B, label_B = _event(t, tasks), rows.logits[t], rows.label_B
        event_B = (rows.labels_BT[:, event] > 0.5).to(logit_B.dtype)
        propensity_B = stable_sigmoid(rows.logits[event].detach()).clamp(min=task.propensity_floor)
        # With the event, the outcome of both is that of the consequence
        if task.counterfactual == "ips":
            error_B = F.binary_cross_entropy_with_logits(logit_B, label_B, reduction="none")
            found_B = inverse_propensity(error_B, event_B, propensity_B)
        else:
            if t not in rows.imputed:
                raise ValueError(
                    f"task {task.name!r}: counterfactual is dr, which needs `imputed`, the logits "
                    f"of its errors, by number of the task ({t}); got those of "
                    f"{sorted(rows.imputed) or 'none'}"
                )
            found_B = doubly_robust_loss(logit_B, label_B, rows.imputed[t], event_B, propensity_B)
        return loss_B + task.counterfactual_weight * found_B


def _event(t: int, tasks: Sequence[TaskConfig]) -> int:
    """The column of the event."""
    for column, task in enumerate(tasks):
        if task.name == tasks[t].observed_when:
            return column
    raise ValueError(
        f"task {tasks[t].name!r}: kind is entire_space, which needs `observed_when:` the name of "
        f"another task, its event; got {tasks[t].observed_when!r}"
    )

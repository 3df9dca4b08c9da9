"""Entire space: a consequence, learnt over all rows with the label of its event (ESMM's loss)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.tasks.kinds.binary import Binary


class EntireSpace(Binary):
    """Objective of a consequence of an event: cross-entropy of both, `p = σ(a) σ(b)`.

    a is the event's logit, b the task's own: in logs `log p = log σ(a) + log σ(b)` and
    `log (1 − p) = log (σ(−a) + σ(a) σ(−b))`. So the task's tower learns the conditional probability
    of the consequence without seeing the selected rows alone. The event is the task that
    `observed_when` names; it has its own loss beside this one.

    A row counts where the outcome is known: no event, or an event and an observed consequence. Its
    weight is that of this task, which is read on rows without the event too.

    Source: Ma et al., "Entire space multi-task model" (SIGIR 2018), equation 3.
    """

    def outcome(
        self, t: int, labels_BT: Tensor, observed_BT: Tensor, tasks: Sequence[TaskConfig]
    ) -> tuple[Tensor, Tensor]:
        """Returns event ∧ consequence, and where it is known."""
        event = _event(t, tasks)
        event_B, known_B = labels_BT[:, event] > 0.5, observed_BT[:, event]
        both_B = event_B & (labels_BT[:, t] > 0.5)
        return both_B.to(labels_BT.dtype), known_B & (~event_B | observed_BT[:, t])

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


def _event(t: int, tasks: Sequence[TaskConfig]) -> int:
    """The column of the event."""
    for column, task in enumerate(tasks):
        if task.name == tasks[t].observed_when:
            return column
    raise ValueError(
        f"task {tasks[t].name!r}: kind is entire_space, which needs `observed_when:` the name of "
        f"another task, its event; got {tasks[t].observed_when!r}"
    )

"""Events, by cross-entropy; a consequence over all rows of its event (ESMM, ESCM²)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmoe.config import LabelSpec, TaskConfig
from mmoe.config.tasks import EntireSpaceTask
from mmoe.mixture import stable_sigmoid
from mmoe.tasks.kinds.base import LossRows, OneLogit, log_odds


class Binary(OneLogit):
    """Objective of binary tasks: `−y ln σ(z) − (1 − y) ln σ(−z)`."""

    def start(self, task: TaskConfig, label: LabelSpec) -> Sequence[float]:
        """Returns the log-odds of the base rate."""
        return [log_odds(label.mean)]

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the cross-entropy of each row."""
        return binary_losses(rows.logits[t], rows.label_B)

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into probabilities."""
        return stable_sigmoid(logit_B)


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Computes the cross-entropy of each number, of one task or of many side by side.

    Example:
        >>> import torch
        >>> binary_losses(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
        tensor([[0.6931, 0.6931]])
    """
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def inverse_propensity(error_B: Tensor, event_B: Tensor, propensity_B: Tensor) -> Tensor:
    """Computes `o e / p`: its mean over all rows is that of the errors, where p is right.

    Args:
        error_B: e, each row's loss; what it is without the event plays no part.
        event_B: o, 1 where the event happened, else 0.
        propensity_B: p, the probability of that, above 0.

    Returns:
        A term for each row.

    Example:
        >>> error_B, event_B = torch.tensor([0.5, 9.0]), torch.tensor([1.0, 0.0])
        >>> inverse_propensity(error_B, event_B, torch.tensor([0.25, 0.25]))
        tensor([2., 0.])

    Source: Wang et al., "ESCM²: entire space counterfactual multi-task model for post-click
        conversion rate estimation" (SIGIR 2022), the IPS regulariser of section 4.2.
    """
    return event_B * error_B / propensity_B


def doubly_robust(
    error_B: Tensor, imputed_B: Tensor, event_B: Tensor, propensity_B: Tensor
) -> Tensor:
    """Computes `ê + o (e − ê) / p`: its mean is that of the errors, where p is right or ê is.

    Args:
        error_B: As in `inverse_propensity`.
        imputed_B: ê, what the row's loss is thought to be, whether the event happened or not.
        event_B: As in `inverse_propensity`.
        propensity_B: Likewise.

    Returns:
        A term for each row.

    Example:
        >>> error_B, event_B = torch.tensor([0.5, 9.0]), torch.tensor([1.0, 0.0])
        >>> doubly_robust(error_B, torch.tensor([0.5, 0.75]), event_B, torch.tensor([0.25, 0.25]))
        tensor([0.5000, 0.7500])

    Source: Wang et al., ESCM², the DR regulariser of section 4.2.
    """
    return imputed_B + inverse_propensity(error_B - imputed_B, event_B, propensity_B)


def imputation_loss(
    error_B: Tensor, imputed_B: Tensor, event_B: Tensor, propensity_B: Tensor
) -> Tensor:
    """Computes `o (e − ê)² / p`, by which imputed errors are learnt; arguments as above.

    Example:
        >>> error_B, event_B = torch.tensor([0.5, 9.0]), torch.tensor([1.0, 0.0])
        >>> imputation_loss(error_B, torch.tensor([1.0, 0.5]), event_B, torch.tensor([0.25, 0.25]))
        tensor([1., 0.])

    Source: Wang et al., ESCM², the DR regulariser of section 4.2.
    """
    return inverse_propensity((error_B - imputed_B).square(), event_B, propensity_B)


def imputed_error(logit_B: Tensor, imputation_B: Tensor) -> Tensor:
    """Computes what a prediction would cost if the outcome had a probability that is imputed.

    `ê = −r ln σ(b) − (1 − r) ln σ(−b)` with `r = σ(z)`: the expectation of the cross-entropy.

    Args:
        logit_B: b, of the consequence.
        imputation_B: z, of the imputation tower.

    Example:
        >>> imputed_error(torch.tensor([0.0, 2.0]), torch.tensor([5.0, 100.0]))
        tensor([0.6931, 0.1269])

    Source: Wang et al., "Doubly robust joint learning for recommendation on data missing not at
        random" (ICML 2019), section 3, for cross-entropy.
    """
    return F.softplus(logit_B) - imputation_B.sigmoid() * logit_B


def doubly_robust_loss(
    logit_B: Tensor, label_B: Tensor, imputation_B: Tensor, event_B: Tensor, propensity_B: Tensor
) -> Tensor:
    """Computes each row's `ê + o (e − ê) / p + o (e − ê)² / p`, one part a tower.

    The first two terms train the consequence, with what is imputed held fixed; the last one trains
    the imputation, with the consequence held fixed. An imputed error that is a tower's output
    itself, as in the paper, would have no gradient for the consequence: on rows without the event
    that would learn nothing, as by `inverse_propensity`. So the tower imputes the outcome, from
    which the error follows.

    Args:
        logit_B: Of the consequence.
        label_B: 0 or 1, where the event happened.
        imputation_B: Of the imputation tower.
        event_B: As in `inverse_propensity`.
        propensity_B: Likewise.

    Example:
        >>> no, half = torch.zeros(1), torch.full((1,), 0.5)
        >>> doubly_robust_loss(no, no, no, no, half)  # as the imputation, which is one half, says
        tensor([0.6931])
    """
    error_B = F.binary_cross_entropy_with_logits(logit_B, label_B, reduction="none")
    imputed_B = imputed_error(logit_B, imputation_B.detach())
    learnt_B = imputed_error(logit_B.detach(), imputation_B)
    estimate_B = doubly_robust(error_B, imputed_B, event_B, propensity_B)
    return estimate_B + imputation_loss(error_B.detach(), learnt_B, event_B, propensity_B)


class EntireSpace(Binary):
    """Objective of a consequence of an event: cross-entropy of both, `p = σ(a) σ(b)`.

    a is the event's logit, b the task's own: in logs `log p = log σ(a) + log σ(b)` and
    `log (1 − p) = log (σ(−a) + σ(a) σ(−b))`. So the task's tower learns the conditional probability
    of the consequence without seeing the selected rows alone. The event is the task that
    `observed_when` names; it has its own loss beside this one.

    A row counts where the outcome is known: no event, or an event and an observed consequence. Its
    weight is that of this task, which is read on rows without the event too.

    With `counterfactual` a loss of σ(b) alone is added, `counterfactual_weight` times: over rows
    with the event, each weighed by the inverse of σ(a) (`doubly_robust_loss`). The event's tower
    learns nothing from it. It is the mean over the rows that count here, with the event or not.

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

    def loss(self, t: int, rows: LossRows, tasks: Sequence[TaskConfig]) -> Tensor:
        """Computes the cross-entropy of `σ(a) σ(b)`, in logs, and a counterfactual loss, if any."""
        event, logit_B, label_B = _event(t, tasks), rows.logits[t], rows.label_B
        event_logit_B = rows.logits[event]
        log_both_B = F.logsigmoid(event_logit_B) + F.logsigmoid(logit_B)
        log_not_both_B = torch.logaddexp(
            F.logsigmoid(-event_logit_B), F.logsigmoid(event_logit_B) + F.logsigmoid(-logit_B)
        )
        loss_B = -(label_B * log_both_B + (1 - label_B) * log_not_both_B)
        task = tasks[t]
        if not isinstance(task, EntireSpaceTask) or task.counterfactual is None:
            return loss_B
        event_B = (rows.labels_BT[:, event] > 0.5).to(logit_B.dtype)
        propensity_B = stable_sigmoid(event_logit_B.detach()).clamp(min=task.propensity_floor)
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

"""What a consequence would cost on all rows, from those with its event alone (ESCM²)."""

import torch.nn.functional as F
from torch import Tensor


def inverse_propensity(error_B: Tensor, event_B: Tensor, propensity_B: Tensor) -> Tensor:
    """Computes `o e / p`: its mean over all rows is that of the errors, where p is right.

    Args:
        error_B: e, each row's loss; what it is without the event plays no part.
        event_B: o, 1 where the event happened, else 0.
        propensity_B: p, the probability of that, above 0.

    Returns:
        A term for each row.

    Example:
        >>> import torch
        >>> from mmoe.tasks.counterfactual import inverse_propensity
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
        >>> import torch
        >>> from mmoe.tasks.counterfactual import doubly_robust
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
        >>> import torch
        >>> from mmoe.tasks.counterfactual import imputation_loss
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
        >>> import torch
        >>> from mmoe.tasks.counterfactual import imputed_error
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
        >>> import torch
        >>> from mmoe.tasks.counterfactual import doubly_robust_loss
        >>> no, half = torch.zeros(1), torch.full((1,), 0.5)
        >>> doubly_robust_loss(no, no, no, no, half)  # as the imputation, which is one half, says
        tensor([0.6931])
    """
    error_B = F.binary_cross_entropy_with_logits(logit_B, label_B, reduction="none")
    imputed_B = imputed_error(logit_B, imputation_B.detach())
    learnt_B = imputed_error(logit_B.detach(), imputation_B)
    estimate_B = doubly_robust(error_B, imputed_B, event_B, propensity_B)
    return estimate_B + imputation_loss(error_B.detach(), learnt_B, event_B, propensity_B)

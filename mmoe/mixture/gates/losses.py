"""Auxiliary losses of gates, as plain functions: even loads, small logits.

An even load is the target of all balancing: `u`, where gate g wants the same from each of the n_g
experts that it sees, `u[g, e] = 1 / n_g`. With scope `gate` every gate is held to it on its own,
and the loss is the mean over gates. With scope `all` only the sums over gates count, whose target
is the mean of the u[g]; then a task may keep to a few experts as long as all tasks together use the
pool evenly. A batch without rows gives losses of 0. Where several ranks share a batch, `ranks`
makes the losses those of all its rows, on every rank.
"""

from typing import Literal

import torch
from torch import Tensor

from mmoe.mixture.dispatcher import ONE_RANK, RankSums

Scope = Literal["gate", "all"]


def balance(load_GE: Tensor, importance_GE: Tensor, visibility_GE: Tensor, scope: Scope) -> Tensor:
    """Returns Switch's loss for uneven loads: `Σ_e f_e · P_e / u_e`, 1 where all is even.

    f is each expert's share of the load, P its share of the importance. With u = 1 / E it is
    `E · Σ_e f_e P_e`.

    Args:
        load_GE: How much work each expert gets; counts of picks are constants to the gradient.
        importance_GE: Sum of each gate's probabilities over the batch.
        visibility_GE: Bool.
        scope: `gate` or `all`.

    Returns:
        A scalar of the importance's dtype.

    Example:
        >>> import torch
        >>> load, importance = torch.tensor([[30, 10]]), torch.tensor([[25.0, 15.0]])
        >>> float(balance(load, importance, torch.ones(1, 2, dtype=torch.bool), "gate"))
        1.125

    Source: Fedus et al., "Switch Transformers" (JMLR 2022), equations 4 to 6. Balancing the sum
        over all gates is the idea of SMES (arXiv 2602.09386, 2026); this form of it is ours.
    """
    # Equation 4 of Switch, f_e · P_e over the target u_e; counts are constants to the gradient
    f_GE = _shares(load_GE.to(importance_GE.dtype), scope)
    return _mean_over_gates(f_GE * _shares(importance_GE, scope), visibility_GE, scope)


def cv_squared(amount_GE: Tensor, visibility_GE: Tensor, scope: Scope) -> Tensor:
    """Returns the squared coefficient of variation, `Σ_e p_e² / u_e − 1`, p the shares.

    With u = 1 / E it is the variance over the squared mean of the amounts.

    Example:
        >>> import torch
        >>> amounts, visible = torch.tensor([[1.0, 3.0]]), torch.ones(1, 2, dtype=torch.bool)
        >>> float(cv_squared(amounts, visible, "gate"))
        0.25

    Source: Shazeer et al., "Outrageously large neural networks" (ICLR 2017), equations 7 and 11.
    """
    p_GE = _shares(amount_GE, scope)
    # (Σ p)², not 1: without rows both terms are 0.
    return _mean_over_gates(p_GE.square(), visibility_GE, scope) - p_GE.sum(1).square().mean()


def z_loss(
    logits_BGE: Tensor,
    visibility_GE: Tensor,
    ranks: RankSums = ONE_RANK,
    asked_BG: Tensor | None = None,
) -> Tensor:
    """Returns a loss that keeps logits small: the mean of `(log Σ_e exp(logit_e))²`.

    Where rows ask some of the gates, `asked_BG`, it is the mean over these.

    Source: Zoph et al., "ST-MoE" (2022), equation 5; here over visible experts.
    """
    log_sums_BG = logits_BGE.masked_fill(~visibility_GE, -torch.inf).logsumexp(dim=-1)
    return mean(log_sums_BG.square(), ranks, asked_BG)


def where_asked(x_BGX: Tensor, asked_BG: Tensor | None) -> Tensor:
    """Returns x, and 0 of gates that a row does not ask; None: it asks all."""
    if asked_BG is None:
        return x_BGX
    return torch.where(asked_BG.view(*asked_BG.shape, *[1] * (x_BGX.dim() - 2)), x_BGX, 0)


def asked_picks(experts_BGK: Tensor, asked_BG: Tensor | None) -> Tensor:
    """Returns picks without those of gates that a row does not ask, which are no load either."""
    return experts_BGK if asked_BG is None else experts_BGK.masked_fill(~asked_BG[..., None], -1)


def mean(x: Tensor, ranks: RankSums = ONE_RANK, asked_BG: Tensor | None = None) -> Tensor:
    """Returns the mean over all ranks' numbers, or 0 of nothing.

    Args:
        x: Numbers, of any shape.
        ranks: That share a batch.
        asked_BG: Bool, which of the numbers `x_BG` count; None: all.
    """
    if asked_BG is not None:
        total, count = ranks.of_losses(where_asked(x, asked_BG).sum(), asked_BG.sum())
        return total / count.clamp(min=1)
    total, count = ranks.of_losses(x.sum(), x.numel())
    # sym_max leaves a traced batch size free
    return total / (count.clamp(min=1) if isinstance(count, Tensor) else torch.sym_max(count, 1))


def count_picks(experts_BGK: Tensor, num_experts: int) -> Tensor:
    """Counts how often each gate picked each expert: `[G, E]`, int64, exact.

    Example:
        >>> import torch
        >>> count_picks(torch.tensor([[[0, 2]], [[2, -1]]], dtype=torch.int32), 3).tolist()
        [[1, 0, 2]]
    """
    picks_GN = _or_beyond(experts_BGK, num_experts).transpose(0, 1).flatten(1)
    # Whole numbers: float32 stops counting at 2^24
    counts = picks_GN.new_zeros(picks_GN.shape[0], num_experts + 1)
    return counts.scatter_add(1, picks_GN, torch.ones_like(picks_GN))[:, :num_experts]


def count_pairs(experts_BGK: Tensor, num_experts: int) -> Tensor:
    """Counts distinct pairs of row and expert, each shared out evenly among the gates that pick it.

    The sum over gates is the number of rows that an expert computes.

    Returns:
        `[G, E]`, float64: thirds add up to whole numbers but for its last digits.

    Example:
        >>> import torch
        >>> count_pairs(torch.tensor([[[0, 2], [2, -1]]], dtype=torch.int32), 3).tolist()
        [[1.0, 0.0, 0.5], [0.0, 0.0, 0.5]]
    """
    picked_BGE = over_experts(
        torch.ones_like(experts_BGK, dtype=torch.float64), experts_BGK, num_experts
    )
    return (picked_BGE / picked_BGE.sum(1, keepdim=True).clamp(min=1)).sum(0)


def count_rows(experts_BGK: Tensor, num_experts: int) -> Tensor:
    """Counts the rows that each expert computes, however many gates pick it: `[E]`, int64, exact.

    Example:
        >>> import torch
        >>> count_rows(torch.tensor([[[0, 2], [2, -1]]], dtype=torch.int32), 3).tolist()
        [1, 0, 1]
    """
    picked_BGE = over_experts(torch.ones_like(experts_BGK), experts_BGK, num_experts)
    return picked_BGE.any(1).sum(0)


def over_experts(weights_BGK: Tensor, experts_BGK: Tensor, num_experts: int) -> Tensor:
    """Puts the weights of picks in the places of their experts: `[B, G, E]`, else 0."""
    weights_BGE = weights_BGK.new_zeros(*weights_BGK.shape[:2], num_experts + 1)
    index_BGK = _or_beyond(experts_BGK, num_experts)
    return weights_BGE.scatter(-1, index_BGK, weights_BGK)[..., :num_experts]


def _or_beyond(experts_BGK: Tensor, num_experts: int) -> Tensor:
    """Indices, with the unused picks in a column of their own behind the last expert."""
    return torch.where(experts_BGK < 0, num_experts, experts_BGK).long()


def _shares(amount_GE: Tensor, scope: Scope) -> Tensor:
    if scope == "all":
        amount_GE = amount_GE.sum(0, keepdim=True)
    total_G1 = amount_GE.sum(1, keepdim=True)
    return amount_GE / torch.where(total_G1 > 0, total_G1, 1)


def _mean_over_gates(x_GE: Tensor, visibility_GE: Tensor, scope: Scope) -> Tensor:
    """The mean of `Σ_e x_e / u_e`."""
    seen_GE = visibility_GE.to(x_GE.dtype)
    even_GE = seen_GE / seen_GE.sum(1, keepdim=True).clamp(min=1)
    if scope == "all":
        even_GE = even_GE.mean(0, keepdim=True)
    # The inner `where` keeps 0 / 0 out: masked by the outer one alone its gradient would be NaN
    terms_GE = torch.where(even_GE > 0, x_GE / torch.where(even_GE > 0, even_GE, 1), 0)
    return terms_GE.sum(1).mean()

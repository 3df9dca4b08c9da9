"""Noisy top-k gates: exploration, and two losses that keep experts busy."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.gates.learned import (
    SHARE_AXES,
    GateLogits,
    GateOptions,
    LearnedGate,
    Scored,
    check_coefficient,
)
from mmoe.mixture.gates.losses import cv_squared, over_experts, where_asked
from mmoe.mixture.gates.select import Selection

# Smallest standard deviation of the noise, so that no probability divides by 0. The paper has none;
# this is its authors' number (tensor2tensor, expert_utils.py, noise_epsilon).
NOISE_FLOOR = 0.01


class NoisyTopKGate(LearnedGate):
    """Top-k gates with learned noise: `H = W_g x + N(0, 1) · softplus(V_g x)`, softmax over the k.

    Noise is added in training only, from torch's default generator. Two losses keep the experts
    busy. The first looks at what they weigh: `importance_loss · CV²(Σ_b G(x_b))`. The second looks
    at how many rows they get, which is a count, through a smooth estimate: the probability that an
    expert is still picked when its own noise is drawn again,

    `P(x, e) = Φ((W x)_e − kth largest of H without e) / softplus(V x)_e)`,
    `load_loss · CV²(Σ_b P(x_b))`.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        k: Experts that one gate picks for one sample.
        importance_loss: Coefficient; like `load_loss` it follows `balance_scope`.
        load_loss: Coefficient. The estimate is that of gates which decide alone.
        selection: How the gates of a row decide together, by noisy logits in training, as in
            `TopKGate`.
        **options: See `GateOptions`. The MLP of `hidden` is for the logits; the noise is linear.

    Raises:
        ValueError: A setting out of range; in forward, more picks than a gate sees experts, or NaN
            logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import NoisyTopKGate
        >>> gate, x_BD = NoisyTopKGate(8, num_gates=2, num_experts=4, k=2), torch.randn(3, 8)
        >>> sorted(gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool)).auxiliary_losses)
        ['importance_loss', 'load_loss']

    Source: Shazeer et al., "Outrageously large neural networks" (ICLR 2017), equations 3 to 5
        (gate), 6 and 7 (importance), 8 to 11 (load). Unlike there the logits do not start at 0.
    """

    reads_requests: ClassVar = True

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        importance_loss: float = 0.01,
        load_loss: float = 0.01,
        selection: Selection | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(input_dim, num_gates, num_experts, options, k=k, selection=selection)
        self.noise = GateLogits(input_dim, num_gates, num_experts)
        # softplus(0) everywhere at first, as in appendix A
        nn.init.zeros_(self.noise.weights[0])
        check_coefficient("importance_loss", importance_loss)
        check_coefficient("load_loss", load_loss)
        self.importance_loss = importance_loss
        self.load_loss = load_loss

    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Returns what the dimension of its own tensor is."""
        return SHARE_AXES

    def values(self, logits_BGE: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Adds noise in training; its standard deviation is needed again."""
        if not self.training:
            return logits_BGE, None
        scale_BGE = self.options.temper(F.softplus(self.noise(inputs)) + NOISE_FLOOR)
        # Equation 4
        return logits_BGE + scale_BGE * torch.randn_like(logits_BGE), scale_BGE

    def losses(
        self,
        scored: Scored,
        weights: Tensor,
        experts_BGK: Tensor | None,
        probabilities_BGE: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Noise decides who is picked; the options' losses judge what was learnt, without it."""
        losses = super().losses(scored, weights, experts_BGK)
        scale_BGE, seen_GE, ranks = scored.own_BGE, scored.visibility_GE, self.options.ranks
        scope = self.options.balance_scope
        assert self.picks is not None and experts_BGK is not None and scale_BGE is not None
        if self.importance_loss:
            # Equations 6 and 7
            weights_BGE = over_experts(weights, experts_BGK, seen_GE.shape[1])
            (importance_GE,) = ranks.of_losses(weights_BGE.sum(0))
            cv = cv_squared(importance_GE, seen_GE, scope)
            losses["importance_loss"] = self.importance_loss * cv
        if self.load_loss:
            # Equations 8 to 11
            noisy_BGE = scored.values_BGE.masked_fill(~seen_GE, -torch.inf)
            chances_BGE = selection_probability(scored.logits_BGE, noisy_BGE, scale_BGE, self.picks)
            (load_GE,) = ranks.of_losses(where_asked(chances_BGE, scored.asked_BG).sum(0))
            losses["load_loss"] = self.load_loss * cv_squared(load_GE, seen_GE, scope)
        return losses


def selection_probability(
    clean_BGE: Tensor, noisy_BGE: Tensor, scale_BGE: Tensor, k: int
) -> Tensor:
    """Returns each expert's probability to be among the k best under new noise.

    Args:
        clean_BGE: Logits without noise.
        noisy_BGE: Logits with the noise that was drawn; −inf for experts that cannot be picked.
        scale_BGE: Standard deviation of the noise.
        k: Picks.

    Returns:
        `P(x, e)` of the paper's equation 9, `[B, G, E]`.

    Example:
        >>> import torch
        >>> clean, noisy = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]])
        >>> selection_probability(clean, noisy, torch.ones(1, 1, 2), k=1)[0, 0, 0]
        tensor(0.5000)
    """
    k = min(k, noisy_BGE.shape[-1])
    # Among the others, the kth best is the (k + 1)th of all for an expert that is in, else the kth.
    best = F.pad(noisy_BGE, (0, 1), value=-torch.inf).topk(k + 1, dim=-1).values
    kth_BG1, next_BG1 = best[..., k - 1 : k], best[..., k : k + 1]
    others_BGE = torch.where(noisy_BGE > next_BG1, next_BG1, kth_BG1)
    # Fewer than k others: picked for certain. 0 stands in for −inf, whose gradient would be NaN.
    certain_BGE = others_BGE == -torch.inf
    # Equation 9
    distance_BGE = (clean_BGE - others_BGE.masked_fill(certain_BGE, 0)) / scale_BGE
    inside_BGE = 0.5 * (1 + torch.erf(distance_BGE / math.sqrt(2)))
    inside_BGE = inside_BGE.masked_fill(certain_BGE, 1)
    return inside_BGE.masked_fill(noisy_BGE == -torch.inf, 0)

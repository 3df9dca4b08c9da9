"""Noisy top-k gates: exploration, and two losses that keep experts busy."""

import math
from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.checks import check_coefficient, check_k, check_sizes
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.logits import GateLogits, LogitsGate
from mmoe.mixture.gates.losses import cv_squared, over_experts, where_asked
from mmoe.mixture.gates.options import GateOptions, gate_settings, show_settings, visible_softmax
from mmoe.mixture.gates.select import Selection, Selector, Votes

# Smallest standard deviation of the noise, so that no probability divides by 0. The paper has none;
# this is its authors' number (tensor2tensor, expert_utils.py, noise_epsilon).
NOISE_FLOOR = 0.01


class NoisyTopKGate(LogitsGate):
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
        (gate), 6 and 7 (importance), 8 to 11 (load). The noise starts at softplus(0) everywhere as
        there (appendix A); the logits do not start at 0.
    """

    takes_asked = takes_domains = True
    extra_repr = show_settings
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
        super().__init__()
        self.options = gate_settings(self, options)
        self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=self.options.hidden)
        self.noise = GateLogits(input_dim, num_gates, num_experts)
        nn.init.zeros_(self.noise.weights[0])
        check_k(k, num_experts)
        check_coefficient("importance_loss", importance_loss)
        check_coefficient("load_loss", load_loss)
        self.k = k
        self.importance_loss = importance_loss
        self.load_loss = load_loss
        self.selection = selection
        self.select = Selector(num_gates, num_experts, k=k, selection=selection)
        self.traits = self.select.traits(num_gates)

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        votes: Votes | None = None,
        domains: RowDomains | None = None,
    ) -> GateOutput:
        """Picks the k best visible experts by noisy logits, best first."""
        check_sizes((self.logits.num_gates, self.logits.num_experts), inputs, visibility_GE)
        clean_BGE = self.options.temper(self.logits(inputs, domains))
        if not self.training:
            weights, experts = self.select(clean_BGE, visibility_GE, asked_BG, votes=votes)
            return GateOutput(weights, experts, {})
        scale_BGE = self.options.temper(F.softplus(self.noise(inputs)) + NOISE_FLOOR)
        noisy_BGE = clean_BGE + scale_BGE * torch.randn_like(clean_BGE)
        noisy_BGE = self.options.drop(noisy_BGE, visibility_GE, training=True)
        weights, experts = self.select(noisy_BGE, visibility_GE, asked_BG, votes=votes)
        # Noise decides who is picked; the losses judge what was learnt, without it
        losses = self.options.losses(
            clean_BGE,
            visibility_GE,
            experts,
            together=self.selection is not None,
            asked_BG=asked_BG,
        )
        scope = self.options.balance_scope
        if self.importance_loss:
            weights_BGE = over_experts(weights, experts, visibility_GE.shape[1])
            (importance_GE,) = self.options.ranks.of_losses(weights_BGE.sum(0))
            cv = cv_squared(importance_GE, visibility_GE, scope)
            losses["importance_loss"] = self.importance_loss * cv
        if self.load_loss:
            noisy_BGE = noisy_BGE.masked_fill(~visibility_GE, -torch.inf)
            chances_BGE = selection_probability(clean_BGE, noisy_BGE, scale_BGE, self.k)
            chances_BGE = where_asked(chances_BGE, asked_BG)
            (load_GE,) = self.options.ranks.of_losses(chances_BGE.sum(0))
            losses["load_loss"] = self.load_loss * cv_squared(load_GE, visibility_GE, scope)
        return GateOutput(weights, experts, losses)

    def wanted(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        domains: RowDomains | None = None,
    ) -> Tensor:
        """Computes how much each gate alone would weigh every expert that it sees."""
        return visible_softmax(self.options.temper(self.logits(inputs, domains)), visibility_GE)


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
        >>> from mmoe.mixture.gates.noisy_top_k import selection_probability
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
    distance_BGE = (clean_BGE - others_BGE.masked_fill(certain_BGE, 0)) / scale_BGE
    inside_BGE = 0.5 * (1 + torch.erf(distance_BGE / math.sqrt(2)))
    inside_BGE = inside_BGE.masked_fill(certain_BGE, 1)
    return inside_BGE.masked_fill(noisy_BGE == -torch.inf, 0)

"""Dense gates, as in the MMoE paper."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

from torch import Tensor

from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.checks import check_numbers, check_sizes
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.logits import GateLogits, LogitsGate
from mmoe.mixture.gates.options import GateOptions, gate_settings, show_settings, visible_softmax


class SoftmaxGate(LogitsGate):
    """Dense gates: `w_g = softmax(W_g x / temperature)` over the experts that gate g sees.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        **options: See `GateOptions`.

    Raises:
        ValueError: A setting out of range; in forward, a gate that sees no expert or whose logits
            are not finite (on the CPU in eager mode).

    Example:
        >>> import torch
        >>> from mmoe.mixture import SoftmaxGate
        >>> gate, x_BD = SoftmaxGate(8, num_gates=2, num_experts=4, dropout=0.1), torch.zeros(3, 8)
        >>> gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool)).weights.shape
        torch.Size([3, 2, 4])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), section 4.2.
    """

    takes_asked = takes_domains = True
    extra_repr = show_settings
    reads_requests: ClassVar = True

    def __init__(
        self, input_dim: int, num_gates: int, num_experts: int, **options: Unpack[GateOptions]
    ) -> None:
        super().__init__()
        self.options = gate_settings(self, options)
        self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=self.options.hidden)

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        domains: RowDomains | None = None,
    ) -> GateOutput:
        """Returns weights for every expert; exactly 0 where the gate sees nothing."""
        check_sizes((self.logits.num_gates, self.logits.num_experts), inputs, visibility_GE)
        logits_BGE = self.options.temper(self.logits(inputs, domains))
        left_BGE = self.options.drop(logits_BGE, visibility_GE, self.training)
        weights_BGE = visible_softmax(left_BGE, visibility_GE)
        check_numbers(weights_BGE, logits_BGE, visibility_GE)
        losses = {}
        if self.training:
            losses = self.options.losses(logits_BGE, visibility_GE, asked_BG=asked_BG)
        return GateOutput(weights_BGE, None, losses)

"""Switch gates: one expert."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.checks import check_share, check_sizes
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.logits import GateLogits, LogitsGate
from mmoe.mixture.gates.losses import asked_picks
from mmoe.mixture.gates.options import GateOptions, gate_settings, show_settings
from mmoe.ops.topk_gate import topk_gate

if TYPE_CHECKING:
    from mmoe.mixture.routing.capacity import Capacity


class SwitchGate(LogitsGate):
    """Top-1 gates: the expert with the largest probability, weighted by that probability.

    `p = softmax(W_g (x ⊙ u) / temperature)`, `u ~ U(1 − jitter, 1 + jitter)` in training.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        jitter: Half width of the input's noise; gates that read one tensor share its noise.
        capacity: Default capacity of a mixture with this gate; None: nothing is dropped.
        **options: See `GateOptions`; here `balance_loss` is 0.01 if not given, as in the paper.

    Raises:
        ValueError: A setting out of range; in forward, more picks than a gate sees experts, or NaN
            logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import SwitchGate
        >>> gate, x_BD = SwitchGate(8, num_gates=2, num_experts=4, jitter=0.01), torch.randn(3, 8)
        >>> weights, experts, losses = gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool))
        >>> experts.shape, list(losses)
        (torch.Size([3, 2, 1]), ['balance_loss'])

    Source: Fedus et al., "Switch Transformers" (JMLR 2022), equations 1 and 2 (gate), 4 to 6
        (loss), appendix C (jitter).
    """

    k = 1

    takes_asked = takes_domains = True
    extra_repr = show_settings

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        jitter: float = 0.0,
        capacity: "Capacity | None" = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        options.setdefault("balance_loss", 0.01)
        self.options = gate_settings(self, options)
        self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=self.options.hidden)
        check_share("jitter", jitter)
        self.jitter = jitter
        self.capacity = capacity

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        domains: RowDomains | None = None,
    ) -> GateOutput:
        """Picks the best visible expert."""
        check_sizes((self.logits.num_gates, self.logits.num_experts), inputs, visibility_GE)
        if self.training and self.jitter:
            inputs = self._jittered(inputs)
        logits_BGE = self.options.temper(self.logits(inputs, domains))
        left_BGE = self.options.drop(logits_BGE, visibility_GE, self.training)
        weights, experts = topk_gate(left_BGE, visibility_GE, 1, softmax="before")
        experts = asked_picks(experts, asked_BG)
        losses = {}
        if self.training:
            losses = self.options.losses(logits_BGE, visibility_GE, experts, asked_BG=asked_BG)
        return GateOutput(weights, experts, losses)

    def _jittered(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        results: list[Tensor] = []
        for g, x in enumerate(inputs):
            same = next((f for f in range(g) if inputs[f] is x), None)
            results.append(self._noisy(x) if same is None else results[same])
        return results

    def _noisy(self, x_BD: Tensor) -> Tensor:
        x_BD = x_BD.to(torch.promote_types(x_BD.dtype, torch.float32))
        return x_BD * (1 + self.jitter * (2 * torch.rand_like(x_BD) - 1))

"""GShard gates: two experts, the second by chance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.checks import check_sizes
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.logits import GateLogits, LogitsGate
from mmoe.mixture.gates.losses import asked_picks
from mmoe.mixture.gates.options import GateOptions, gate_settings, show_settings
from mmoe.ops.topk_gate import topk_gate

if TYPE_CHECKING:
    from mmoe.mixture.routing.capacity import Capacity


class GShardGate(LogitsGate):
    """Top-2 gates that take the second expert with probability `min(1, 2 · w₂)`.

    `w = softmax` over the two largest logits `W_g x / temperature`. A second expert that is not
    taken leaves its pick unused, and `w₁` as it is. In evaluation both are taken, so that a row's
    score does not depend on chance. The balance loss counts first picks, as in the paper.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E, at least 2.
        capacity: Default capacity of a mixture with this gate; None: nothing is dropped.
        **options: See `GateOptions`; here `balance_loss` is 0.01 if not given.

    Raises:
        ValueError: A setting out of range; in forward, more picks than a gate sees experts, or NaN
            logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import GShardGate
        >>> gate, x_BD = GShardGate(8, num_gates=2, num_experts=4), torch.randn(3, 8)
        >>> weights, experts, losses = gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool))
        >>> experts.shape, list(losses)
        (torch.Size([3, 2, 2]), ['balance_loss'])

    Source: Lepikhin et al., "GShard" (ICLR 2021), algorithm 1; its loss is scaled so that even
        loads give 1, as in its code.
    """

    k = 2

    takes_asked = takes_domains = True
    extra_repr = show_settings
    reads_requests: ClassVar = True

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        capacity: "Capacity | None" = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        options.setdefault("balance_loss", 0.01)
        self.options = gate_settings(self, options)
        self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=self.options.hidden)
        if num_experts < 2:
            raise ValueError(
                f"num_experts: expected 2 or more, of which GShard picks two, got {num_experts}"
            )
        self.capacity = capacity

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        asked_BG: Tensor | None = None,
        domains: RowDomains | None = None,
    ) -> GateOutput:
        """Picks the best visible expert and, by chance, the second best."""
        check_sizes((self.logits.num_gates, self.logits.num_experts), inputs, visibility_GE)
        logits_BGE = self.options.temper(self.logits(inputs, domains))
        left_BGE = self.options.drop(logits_BGE, visibility_GE, self.training)
        weights, experts = topk_gate(left_BGE, visibility_GE, 2)
        experts = asked_picks(experts, asked_BG)
        if not self.training:
            return GateOutput(weights, experts, {})
        losses = self.options.losses(logits_BGE, visibility_GE, experts[..., :1], asked_BG=asked_BG)
        second_BG1 = weights.detach()[..., 1:]
        dropped_BG1 = torch.rand_like(second_BG1) >= 2 * second_BG1
        dropped_BGK = torch.cat([torch.zeros_like(dropped_BG1), dropped_BG1], dim=-1)
        return GateOutput(
            weights.masked_fill(dropped_BGK, 0), experts.masked_fill(dropped_BGK, -1), losses
        )

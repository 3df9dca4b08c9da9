"""Sparse gates: the k best experts."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

from torch import Tensor

from mmoe.mixture.domains import RowDomains
from mmoe.mixture.gates.checks import check_k, check_sizes, check_softmax
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.gates.logits import GateLogits, LogitsGate
from mmoe.mixture.gates.options import GateOptions, gate_settings, show_settings, visible_softmax
from mmoe.mixture.gates.select import Selection, Selector, Votes
from mmoe.ops.topk_gate import Softmax


class TopKGate(LogitsGate):
    """Sparse gates: the k experts with the largest logits `W_g x / temperature`, softmax over them.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        k: Experts that one gate picks for one sample.
        softmax: `after` the selection (the k weights add up to 1) or `before` it (they are the
            full softmax's values).
        selection: How the gates of a row decide together; None: each picks its own k.
        **options: See `GateOptions`.

    Raises:
        ValueError: A setting out of range, such as k above the number of experts; in forward, k
            above what a gate sees or NaN logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import TopKGate
        >>> gate, x_BD = TopKGate(8, num_gates=2, num_experts=4, k=2), torch.randn(3, 8)
        >>> weights, experts, _ = gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool))
        >>> experts.shape, experts.dtype
        (torch.Size([3, 2, 2]), torch.int32)

    Source: Shazeer et al., "Outrageously large neural networks" (ICLR 2017), equations 3 and 5,
        without the noise.
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
        softmax: Softmax = "after",
        selection: Selection | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        self.options = gate_settings(self, options)
        self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=self.options.hidden)
        check_k(k, num_experts)
        check_softmax(softmax)
        self.k = k
        self.softmax: Softmax = softmax
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
        """Picks the k best visible experts, best first."""
        check_sizes((self.logits.num_gates, self.logits.num_experts), inputs, visibility_GE)
        logits_BGE = self.options.temper(self.logits(inputs, domains))
        left_BGE = self.options.drop(logits_BGE, visibility_GE, self.training)
        weights, experts = self.select(left_BGE, visibility_GE, asked_BG, self.softmax, votes)
        losses = {}
        if self.training:
            losses = self.options.losses(
                logits_BGE,
                visibility_GE,
                experts,
                together=self.selection is not None,
                asked_BG=asked_BG,
            )
        return GateOutput(weights, experts, losses)

    def wanted(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        domains: RowDomains | None = None,
    ) -> Tensor:
        """Computes how much each gate alone would weigh every expert that it sees."""
        return visible_softmax(self.options.temper(self.logits(inputs, domains)), visibility_GE)

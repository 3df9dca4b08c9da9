"""Dense gates, as in the MMoE paper."""

from typing import ClassVar, Unpack

from mmoe.mixture.gates.learned import GateOptions, LearnedGate


class SoftmaxGate(LearnedGate):
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

    reads_requests: ClassVar = True

    def __init__(
        self, input_dim: int, num_gates: int, num_experts: int, **options: Unpack[GateOptions]
    ) -> None:
        super().__init__(input_dim, num_gates, num_experts, options)

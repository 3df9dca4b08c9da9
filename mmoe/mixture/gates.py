"""Gates: how much of which expert each task gets.

A gate module serves all G gates of a mixture at once. Its contract is one method:

    forward(inputs, visibility_GE) → GateOutput

`inputs` holds G tensors `x_BD`, what each gate reads (often the same tensor G times);
`visibility_GE` says which gate may see which expert. Any `nn.Module` with this method is a gate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmoe.mixture.gate_logits import GateLogits


class GateOutput(NamedTuple):
    """What a gate decided.

    Attributes:
        weights: `weights_BGE`, a weight for every expert, where `experts` is None; else
            `weights_BGK`, one for each pick.
        experts: `experts_BGK`, the picked experts, int32, each at most once per gate; −1 = unused,
            whatever its weight. None: all experts.
        auxiliary_losses: Scalars to add to the loss, already scaled, by name.
    """

    weights: Tensor
    experts: Tensor | None
    auxiliary_losses: dict[str, Tensor]


class SoftmaxGate(nn.Module):
    """Dense gates: `w_g = softmax(W_g x / temperature)` over the experts that gate g sees.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        hidden: Widths of ReLU layers before the logits; `[]` = linear, as in the paper.
        temperature: Above 1 evens the weights out, below 1 sharpens them.

    Example:
        >>> import torch
        >>> from mmoe.mixture import SoftmaxGate
        >>> gate, x_BD = SoftmaxGate(8, num_gates=2, num_experts=4), torch.zeros(3, 8)
        >>> gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool)).weights.shape
        torch.Size([3, 2, 4])

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate
        mixture-of-experts" (KDD 2018), section 4.2.
    """

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        hidden: Sequence[int] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.logits = GateLogits(
            input_dim, num_gates, num_experts, hidden=hidden, temperature=temperature
        )

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """Weights for every expert; exactly 0 where the gate sees nothing."""
        logits_BGE = self.logits(inputs).masked_fill(~visibility_GE, -torch.inf)
        return GateOutput(logits_BGE.softmax(dim=-1), None, {})


class TopKGate(nn.Module):
    """Sparse gates: the k experts with the largest logits, softmax over those k.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        k: Experts that one gate picks for one sample.
        hidden: Widths of ReLU layers before the logits; `[]` = linear.
        temperature: Divides the logits.
        softmax: `after` the selection (the k weights add up to 1) or `before` it (they are the
            full softmax's values).

    Raises:
        ValueError: k is below 1 or above the number of experts.

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

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        hidden: Sequence[int] = (),
        temperature: float = 1.0,
        softmax: str = "after",
    ) -> None:
        super().__init__()
        if not 1 <= k <= num_experts:
            raise ValueError(f"k: expected 1 to {num_experts} (the number of experts), got {k}")
        if softmax not in ("before", "after"):
            raise ValueError(f"softmax: expected 'before' or 'after', got {softmax!r}")
        self.logits = GateLogits(
            input_dim, num_gates, num_experts, hidden=hidden, temperature=temperature
        )
        self.k = k
        self.softmax = softmax

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """The k best visible experts, best first."""
        logits_BGE = self.logits(inputs).masked_fill(~visibility_GE, -torch.inf)
        top_BGK, experts_BGK = logits_BGE.topk(self.k, dim=-1)
        if self.softmax == "after":
            weights_BGK = top_BGK.softmax(dim=-1)
        else:
            weights_BGK = logits_BGE.softmax(dim=-1).gather(-1, experts_BGK)
        # A gate that sees fewer than k experts leaves picks unused; their softmax is exactly 0.
        experts_BGK = experts_BGK.masked_fill(top_BGK == -torch.inf, -1).to(torch.int32)
        return GateOutput(weights_BGK, experts_BGK, {})


class FixedGate(nn.Module):
    """Gates that neither learn nor look: constant weights, normalised over each gate's experts.

    Args:
        weights_GE: Non-negative weights; each row with a positive sum.

    Example:
        >>> import torch
        >>> from mmoe.mixture import FixedGate
        >>> x_BD = torch.zeros(3, 8)
        >>> gate = FixedGate(torch.eye(2))
        >>> gate([x_BD, x_BD], torch.eye(2, dtype=torch.bool)).weights[0].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    weights_GE: Tensor

    def __init__(self, weights_GE: Tensor) -> None:
        super().__init__()
        if weights_GE.dim() != 2 or (weights_GE < 0).any() or (weights_GE.sum(1) <= 0).any():
            raise ValueError(
                "weights_GE: expected a [gates, experts] matrix of non-negative weights, each row "
                f"with a positive sum, got shape {list(weights_GE.shape)}"
            )
        weights_GE = weights_GE.to(torch.get_default_dtype())
        self.register_buffer("weights_GE", weights_GE / weights_GE.sum(1, keepdim=True))

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """The same weights for every sample, 0 for what a gate must not see."""
        weights_GE = self.weights_GE * visibility_GE
        return GateOutput(weights_GE.expand(len(inputs[0]), -1, -1), None, {})

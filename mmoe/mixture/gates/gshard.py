"""GShard gates: two experts, the second by chance."""

from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from mmoe.mixture.gates.learned import GateOptions, LearnedGate, Scored

if TYPE_CHECKING:
    from mmoe.mixture.capacity import Capacity


class GShardGate(LearnedGate):
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

    reads_requests: ClassVar = True
    heeds_selection: ClassVar = True

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        capacity: "Capacity | None" = None,
        **options: Unpack[GateOptions],
    ) -> None:
        if num_experts < 2:
            raise ValueError(
                f"num_experts: expected 2 or more, of which GShard picks two, got {num_experts}"
            )
        options.setdefault("balance_loss", 0.01)
        super().__init__(input_dim, num_gates, num_experts, options, k=2)
        self.capacity = capacity

    def pick(self, scored: Scored) -> tuple[Tensor, Tensor | None]:
        """Picks the best visible expert and, by chance, the second best."""
        weights, experts = super().pick(scored)
        if not self.training or experts is None:
            return weights, experts
        # Algorithm 1: the second one is taken with probability 2 · w₂; chance has no gradient
        second_BG1 = weights.detach()[..., 1:]
        dropped_BG1 = torch.rand_like(second_BG1) >= 2 * second_BG1
        dropped_BGK = torch.cat([torch.zeros_like(dropped_BG1), dropped_BG1], dim=-1)
        return weights.masked_fill(dropped_BGK, 0), experts.masked_fill(dropped_BGK, -1)

    def losses(
        self,
        scored: Scored,
        weights: Tensor,
        experts_BGK: Tensor | None,
        probabilities_BGE: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """First picks are the load."""
        assert experts_BGK is not None
        return super().losses(scored, weights, experts_BGK[..., :1])

"""Switch gates: one expert."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from mmoe.mixture.gates.learned import GateOptions, LearnedGate, check_share
from mmoe.mixture.inputs import Inputs

if TYPE_CHECKING:
    from mmoe.mixture.capacity import Capacity


class SwitchGate(LearnedGate):
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
        options.setdefault("balance_loss", 0.01)
        super().__init__(input_dim, num_gates, num_experts, options, k=1, softmax="before")
        check_share("jitter", jitter)
        self.jitter = jitter
        self.capacity = capacity

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Computes the logits of what is read, with noise in training."""
        if self.training and self.jitter:
            # Gates that read one tensor share its noise
            read = {id(x): x for x in inputs}
            noisy = {key: self._noisy(x_BD) for key, x_BD in read.items()}
            inputs = [noisy[id(x)] for x in inputs]
        return super().scores(inputs, rows)

    def _noisy(self, x_BD: Tensor) -> Tensor:
        # In bfloat16 there are four numbers between 0.99 and 1.01
        x_BD = x_BD.to(torch.promote_types(x_BD.dtype, torch.float32))
        return x_BD * (1 + self.jitter * (2 * torch.rand_like(x_BD) - 1))

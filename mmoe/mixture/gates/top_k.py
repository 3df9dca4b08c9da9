"""Sparse gates: the k best experts."""

from collections.abc import Mapping
from typing import ClassVar, Unpack

from mmoe.mixture.gates.learned import SHARE_AXES, GateOptions, LearnedGate
from mmoe.mixture.gates.select import Selection
from mmoe.ops import Softmax


class TopKGate(LearnedGate):
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
        sizes = input_dim, num_gates, num_experts
        super().__init__(*sizes, options, k=k, softmax=softmax, selection=selection)

    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Returns what the dimension of its own tensor is."""
        return SHARE_AXES

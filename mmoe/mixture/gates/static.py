"""Static gates: learned, but blind."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from mmoe.mixture.gates.contract import check_domains, rows_and_dtype
from mmoe.mixture.gates.learned import GateOptions, GateSettings, LearnedGate
from mmoe.mixture.inputs import Inputs, of_each_domain
from mmoe.ops import Softmax


class StaticGate(LearnedGate):
    """Gates that learn one mix per task, whatever the input: `w_g = softmax(θ_g / temperature)`.

    Gates of domains learn one per task and domain, of `θ_g + η_gm`; η is 0 at first.

    Args:
        num_gates: G.
        num_experts: E.
        k: Picks the k experts with the largest logits; None: all are weighed.
        softmax: With k, `after` the selection or `before` it, as in `TopKGate`.
        **options: See `GateOptions`; there is no input, so `hidden` must be empty.

    Raises:
        ValueError: A setting out of range; in forward, logits that are not finite (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import StaticGate
        >>> gate, x_BD = StaticGate(num_gates=2, num_experts=4), torch.zeros(3, 8)
        >>> gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool)).weights.shape
        torch.Size([3, 2, 4])

    Source: The static gates of Hazimeh et al., "DSelect-k" (NeurIPS 2021), section 3, with a
        softmax in the place of their selection.
    """

    own_logits_GME: nn.Parameter | None

    def __init__(
        self,
        num_gates: int,
        num_experts: int,
        *,
        k: int | None = None,
        softmax: Softmax = "after",
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(None, num_gates, num_experts, options, k=k, softmax=softmax)
        check_blind(self.options)
        # Nearly even, but not so even that all gates would pick the first k experts.
        self.logits_GE = nn.Parameter(0.01 * torch.randn(num_gates, num_experts))
        self.register_parameter("own_logits_GME", None)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        return {"logits_GE": {0: "gates", 1: "experts"},
                "own_logits_GME": {0: "gates", 1: "domains", 2: "experts"}}  # fmt: skip

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain a mix of its own, beside what they share."""
        num_gates, num_experts = self.logits_GE.shape
        zeros_GME = self.logits_GE.detach().new_zeros(num_gates, num_domains, num_experts)
        self.own_logits_GME = nn.Parameter(zeros_GME)

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Returns the same logits for every sample of a domain; reads no input."""
        check_domains(self.own_logits_GME, rows)
        height, dtype = rows_and_dtype(inputs)
        logits_BGE = self.logits_GE.to(dtype).expand(height, -1, -1)
        if self.own_logits_GME is not None and rows is not None:
            own_MGE = self.own_logits_GME.transpose(0, 1).to(dtype)
            logits_BGE = rows.domain_values(of_each_domain(self.logits_GE.to(dtype), own_MGE))
        return self.options.temper(logits_BGE)


def check_blind(options: GateSettings) -> None:
    """Refuses a gate MLP in a gate that reads no input."""
    if options.hidden:
        raise ValueError(
            f"hidden: expected [] for a gate without input, got {list(options.hidden)}"
        )

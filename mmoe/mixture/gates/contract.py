"""What a gate takes and what it gives back: the seam between gates and the mixture.

A gate is a file here; what a config may say of it is a class and a line in `mmoe.config.gates`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class GateOutput(NamedTuple):
    """What a gate decided: weights of all experts, or picks with their weights.

    Attributes:
        weights: `weights_BGE`, a weight for every expert, where `experts` is None; else
            `weights_BGK`, one for each pick.
        experts: `experts_BGK`, the picked experts, int32 (int64 is cast); −1 = unused, whatever its
            weight. Each at most once per gate; an expert that a gate picks twice for a row is
            computed once, and its weights add up. None: all experts.
        auxiliary_losses: Scalars to add to the loss, already scaled, by name; None: there are none.
    """

    weights: Tensor
    experts: Tensor | None = None
    auxiliary_losses: dict[str, Tensor] | None = None

    def as_weights(self, num_experts: int) -> Tensor:
        """Returns `weights_BGE` of either form; 0 exactly for experts not picked."""
        if self.experts is None:
            return self.weights
        weights_BGK = self.weights.masked_fill(self.experts < 0, 0)
        weights_BGE = weights_BGK.new_zeros(*weights_BGK.shape[:2], num_experts)
        return weights_BGE.scatter_add(-1, self.experts.clamp(min=0).long(), weights_BGK)

    def as_picks(self, visible_GV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `experts_BGK` and `weights_BGK`; dense weights pick all that is visible.

        Args:
            visible_GV: From `visible_experts`.
        """
        if self.experts is not None:
            return self.experts, self.weights
        experts_BGV = visible_GV.expand(self.weights.shape[0], -1, -1)
        return experts_BGV, self.weights.gather(-1, experts_BGV.clamp(min=0).long())

    def only_asked(self, asked_BG: Tensor | None) -> "GateOutput":
        """Returns the same without picks and weights of gates that a row does not ask."""
        if asked_BG is None:
            return self
        unasked_BG1 = ~asked_BG.unsqueeze(-1)
        experts = None if self.experts is None else self.experts.masked_fill(unasked_BG1, -1)
        return self._replace(weights=self.weights.masked_fill(unasked_BG1, 0), experts=experts)

    def picked(self, visibility_GE: Tensor) -> Tensor:
        """Returns bool `[B, G, E]`: which experts each gate asks for; dense asks for all seen."""
        if self.experts is None:
            return visibility_GE.expand(self.weights.shape[0], -1, -1)
        used_BGK = (self.experts >= 0).float()
        return self._replace(weights=used_BGK).as_weights(visibility_GE.shape[1]) > 0


def visible_experts(visibility_GE: Tensor) -> Tensor:
    """Lists the experts that each gate sees, as picks: `[G, V]` int32, −1 fills the rest.

    Example:
        >>> import torch
        >>> from mmoe.mixture.gates.contract import visible_experts
        >>> visible_experts(torch.tensor([[True, False, True], [False, False, True]])).tolist()
        [[0, 2], [2, -1]]
    """
    num_experts = visibility_GE.shape[1]
    numbers_GE = torch.where(visibility_GE, torch.arange(num_experts), num_experts)
    widest = int(visibility_GE.sum(1).max())
    numbers_GV = numbers_GE.sort(dim=1).values[:, :widest]
    return numbers_GV.masked_fill(numbers_GV == num_experts, -1).to(torch.int32)


def without_first(decision: GateOutput, count: int) -> GateOutput:
    """Returns picks without those of the first experts; dense weights stay as they are.

    Example:
        >>> import torch
        >>> picks = torch.tensor([[[0, 2]]], dtype=torch.int32)
        >>> without_first(GateOutput(torch.ones(1, 1, 2), picks), 1).experts.tolist()
        [[[-1, 2]]]
    """
    if decision.experts is None or not count:
        return decision
    return decision._replace(experts=torch.where(decision.experts < count, -1, decision.experts))


class Gate(Protocol):
    """Interface of a gate: one module for all G gates of a mixture, called like a function.

    Any `nn.Module` whose `forward` has this signature is a gate; there is nothing to inherit.
    What else it may say of itself are `GateTraits`, as `traits` or as attributes of their names:
    `k`, how many experts each gate picks; `capacity`, the capacity that goes with it.

    Example:
        A gate of one's own, which gives each task its own expert with probability `share`:

        >>> import torch
        >>> from mmoe.mixture import GateOutput, MultiGateMixture
        >>> class OwnExpertGate(torch.nn.Module):
        ...     def __init__(self, share):
        ...         super().__init__()
        ...         self.share = share
        ...
        ...     def forward(self, inputs, visibility_GE):
        ...         num_gates, num_experts = visibility_GE.shape
        ...         own_GE = torch.eye(num_gates, num_experts)
        ...         weights_GE = self.share * own_GE + (1 - self.share) / num_experts
        ...         return GateOutput(weights_GE.expand(inputs[0].shape[0], -1, -1))
        >>> experts = [torch.nn.Linear(8, 16) for _ in range(4)]
        >>> layer = MultiGateMixture(8, num_gates=2, experts=experts, gate=OwnExpertGate(0.5))
        >>> layer(torch.zeros(3, 8)).out_BGO.shape
        torch.Size([3, 2, 16])
    """

    def __call__(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """Decides.

        Args:
            inputs: G tensors `x_BD`, what each gate reads; often the same tensor G times. Where a
                mixture takes tuples or dicts, they are these.
            visibility_GE: Bool; which gate may see which expert.

        Returns:
            Weights for all experts, or picks with weights, in fp32 (fp64 for fp64 inputs), and the
            auxiliary losses. In evaluation mode a row's decision does not depend on its batch
            mates, and there are no losses.
        """
        ...

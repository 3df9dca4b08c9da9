"""What a gate takes and what it gives back: the seam between gates and the mixture."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class GateOutput(NamedTuple):
    """What a gate decided.

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


class Gate(Protocol):
    """A gate module serves all G gates of a mixture at once, and is called like a function.

    Any `nn.Module` whose `forward` has this signature is a gate; there is nothing to inherit.
    Attributes that a mixture reads where a gate has them: `k`, how many experts each gate picks
    (absent or None: all of them); `capacity`, the capacity that goes with it.

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

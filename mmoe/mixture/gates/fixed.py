"""Fixed gates: constants."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmoe.mixture.gates.contract import GateOutput, check_sizes, rows_and_dtype
from mmoe.ops import host_is_near


class FixedGate(nn.Module):
    """Gates that neither learn nor look: constant weights, normalised over each gate's experts.

    `w_g = v_g / Σ_e v_ge`, both over the experts that gate g sees.

    Args:
        weights_GE: Non-negative weights v; each row with a positive sum.

    Raises:
        ValueError: Weights that cannot be normalised; in forward, a gate with no weight on what it
            sees (on the CPU in eager mode), or other sizes than the mixture's.

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
        sums_ok = weights_GE.dim() == 2 and bool((weights_GE.sum(1) > 0).all())
        if not sums_ok or not weights_GE.isfinite().all() or (weights_GE < 0).any():
            raise ValueError(
                "weights_GE: expected a [gates, experts] matrix of non-negative weights, each row "
                f"with a positive sum, got shape {list(weights_GE.shape)}"
            )
        weights_GE = weights_GE.to(torch.get_default_dtype())
        self.register_buffer("weights_GE", weights_GE / weights_GE.sum(1, keepdim=True))

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its constants are."""
        return {"weights_GE": {0: "gates", 1: "experts"}}

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        """Returns the same weights for every sample, 0 for what a gate must not see."""
        check_sizes(self.weights_GE.shape, inputs, visibility_GE)
        rows, dtype = rows_and_dtype(inputs)
        weights_GE = self.weights_GE.to(dtype) * visibility_GE
        sums_G1 = weights_GE.sum(1, keepdim=True)
        if host_is_near(sums_G1):
            _check_sums(sums_G1.flatten().tolist())
        # On a GPU nobody looks whether a sum is 0: its weights then stay 0, and are not NaN
        weights_GE = weights_GE / torch.where(sums_G1 > 0, sums_G1, 1)
        return GateOutput(weights_GE.expand(rows, -1, -1), None, {})


def constants_of(module: nn.Module) -> set[str]:
    """Returns the names of the tensors that fixed gates have in a module.

    Example:
        >>> import torch
        >>> constants_of(torch.nn.ModuleList([FixedGate(torch.eye(2)), torch.nn.Linear(2, 2)]))
        {'0.weights_GE'}
    """
    gates = [(name, part) for name, part in module.named_modules() if isinstance(part, FixedGate)]
    return {f"{name}.{tensor}".lstrip(".") for name, part in gates for tensor in part.state_dict()}


def _check_sums(sums: Sequence[float]) -> None:
    for g, total in enumerate(sums):
        if not total > 0:
            raise ValueError(
                f"weights_GE: expected a positive weight of gate {g} on an expert that it sees, "
                "got none; show it more, or give it another weight"
            )

"""`CrossNetwork`: products of features up to any degree, which an MLP is slow to find."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import apply_linear
from mmoe.models.interactions.layers import Interaction

# Of a row, what each layer's products add to it at first. With 1 a network of six layers gives
# numbers 9 times as large as its input, and of two behind one another the first epoch's loss was
# 4 to 30. On the log of `tests/models/interactions/test_cross_network.py` (two seeds, AUC of a
# product of two and of three numbers) two behind one another found 0.55 and 0.56 with 1, 0.88 and
# 0.80 with 0.3, 0.88 and 0.79 with 0.1, 0.88 and 0.77 with 0; one as an expert 0.87 and 0.75 with
# 1, 0.88 and 0.80 with the others.
_SHARE = 0.3


class CrossNetwork(Interaction):
    """Multiplies features with one another, a degree more in each layer (DCN-v2).

    `x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l`, and at the end `y = V x_L + c`, or x_L itself. With L
    layers it holds products of up to L + 1 features. W_l is a D x D matrix, or with a `rank` the
    product of a D x R and an R x D one.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width D of a row.
        output: Width of what comes back; None: D, without V.
        layers: L.
        rank: R; None: whole matrices.

    Example:
        >>> CrossNetwork(10, 4, layers=3, rank=2)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Wang et al., "DCN V2: improved deep & cross network and practical lessons for web-scale
        learning to rank systems" (WWW 2021), equations 1 and 2; one low-rank matrix, without the
        paper's mixture of them: experts of a pool are that mixture.
    """

    narrows: Any  # an `nn.ModuleList` of `nn.Linear`
    crosses: Any  # likewise

    def __init__(
        self, input_dim: int, output: int | None = 128, *, layers: int = 2, rank: int | None = None
    ) -> None:
        super().__init__()
        self.input_dim, self.output_dim, self.rank = input_dim, output or input_dim, rank
        inner, narrowing = rank or input_dim, layers if rank else 0
        self.narrows = nn.ModuleList(
            nn.Linear(input_dim, inner, bias=False) for _ in range(narrowing)
        )
        self.crosses = nn.ModuleList(nn.Linear(inner, input_dim) for _ in range(layers))
        self.project = None if output is None else nn.Linear(input_dim, output)
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are; by the last one inputs are read."""
        found = {"project.weight": {1: "inputs"}}
        for number in range(len(self.crosses)):
            found[f"crosses.{number}.bias"] = found[f"crosses.{number}.weight"] = {0: "inputs"}
            if self.rank is None:
                found[f"crosses.{number}.weight"] = {0: "inputs", 1: "inputs"}
            found[f"narrows.{number}.weight"] = {1: "inputs"}
        return found

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        # Of entries of size 1, whatever D: the first network is near the identity
        shares = [1.0] * len(self.narrows) + [_SHARE] * len(self.crosses)
        for layer, share in zip((*self.narrows, *self.crosses), shares, strict=True):
            nn.init.normal_(layer.weight, std=share / math.sqrt(layer.in_features))
        for layer in self.crosses:
            nn.init.zeros_(layer.bias)
        if self.project is not None:
            nn.init.kaiming_normal_(self.project.weight, nonlinearity="linear")
            nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        crossed = x
        for number, cross in enumerate(self.crosses):
            narrow = crossed
            if self.rank is not None:
                narrow = apply_linear(self.narrows[number], crossed)
            crossed = torch.addcmul(crossed, x, apply_linear(cross, narrow))
        return crossed if self.project is None else apply_linear(self.project, crossed)

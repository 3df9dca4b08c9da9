"""`CrossNetwork`: products of features up to any degree, which an MLP is slow to find."""

import math

import torch
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import stable_linear


class CrossNetwork(nn.Module):
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

    Raises:
        ValueError: A width, a number of layers or a rank below 1.

    Example:
        >>> import torch
        >>> from mmoe.models.cross_network import CrossNetwork
        >>> CrossNetwork(10, 4, layers=3, rank=2)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Wang et al., "DCN V2: improved deep & cross network and practical lessons for web-scale
        learning to rank systems" (WWW 2021), equations 1 and 2; one low-rank matrix, without the
        paper's mixture of them: experts of a pool are that mixture.
    """

    def __init__(
        self, input_dim: int, output: int | None = 128, *, layers: int = 2, rank: int | None = None
    ) -> None:
        super().__init__()
        given = {"input_dim": input_dim, "output": output, "layers": layers, "rank": rank}
        for name, number in given.items():
            if number is not None and number < 1:
                raise ValueError(f"{name}: expected 1 or more, got {number}")
        self.input_dim, self.output_dim, self.rank = input_dim, output or input_dim, rank
        inner, narrowing = rank or input_dim, layers if rank else 0
        self.narrows = nn.ModuleList(
            nn.Linear(input_dim, inner, bias=False) for _ in range(narrowing)
        )
        self.crosses = nn.ModuleList(nn.Linear(inner, input_dim) for _ in range(layers))
        self.project = None if output is None else nn.Linear(input_dim, output)
        self.reset_parameters()

    @property
    def input_dims(self) -> dict[str, tuple[int, ...]]:
        """Returns the dimensions of tensors that are those of inputs; by the last they are read."""
        dims: dict[str, tuple[int, ...]] = {}
        if self.project is not None:
            dims["project.weight"] = (1,)
        for number in range(len(self.crosses)):
            dims[f"crosses.{number}.bias"] = (0,)
            if self.rank is None:
                dims[f"crosses.{number}.weight"] = (0, 1)
            else:
                dims[f"crosses.{number}.weight"] = (0,)
                dims[f"narrows.{number}.weight"] = (1,)
        return dims

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in (*self.narrows, *self.crosses):
            assert isinstance(layer, nn.Linear)
            # Each product then adds a share of the row's own size, whatever D and L are
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
        for layer in self.crosses:
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.bias)
        if self.project is not None:
            nn.init.kaiming_normal_(self.project.weight, nonlinearity="linear")
            nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        crossed = x
        for number, cross in enumerate(self.crosses):
            narrow = (
                crossed if self.rank is None else self._apply_layer(self.narrows[number], crossed)
            )
            crossed = torch.addcmul(crossed, x, self._apply_layer(cross, narrow))
        return crossed if self.project is None else self._apply_layer(self.project, crossed)

    def _apply_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear)
        return layer(x) if self.training else stable_linear(x, layer.weight, layer.bias)

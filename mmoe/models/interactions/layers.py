"""Base of this folder's modules: what they declare, linear layers, checks."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import stable_linear
from mmoe.models.inputs import Added, Rows


class Interaction(nn.Module):
    """A module that says which dimensions of its tensors are those of `inputs` and of `logits`.

    So a run that goes on with others finds what it had learnt of those that stay.

    Attributes:
        reads: The columns that its `inputs` are: all inputs of a network, or of these the numbers,
            which stand first, or the embeddings behind them.
    """

    reads: Literal["inputs", "numbers", "embeddings"] = "inputs"

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns by tensor and dimension what it is; by the last one of inputs they are read."""
        return {}


class Products(Interaction):
    """An interaction of embeddings whose numbers, one a logit, are added to those of towers."""

    def added(self, rows: Rows) -> Added | None:
        """Returns what it computes of rows' embeddings; None where nothing is looked up."""
        x_BX = rows.others.x_NE
        return None if x_BX is None else Added(self(x_BX))


class Beside(Interaction):
    """Puts what a module makes of a row beside that row: `[x, module(x)]`.

    So gates and experts go on reading numbers and embeddings as they are, of which a normalisation
    or attention keeps a part.

    Args:
        module: Maps `[B, X]` to `[B, Y]`.

    Example:
        >>> from mmoe.models.interactions.cross_network import CrossNetwork
        >>> Beside(CrossNetwork(4, 3))(torch.zeros(2, 4)).shape
        torch.Size([2, 7])
    """

    def __init__(self, module: Interaction) -> None:
        super().__init__()
        self.module, self.reads = module, module.reads

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of the module's tensors are."""
        return {f"module.{name}": dims for name, dims in self.module.axes().items()}

    def forward(self, x_BX: Tensor) -> Tensor:
        """Maps `[B, X]` to `[B, X + Y]`."""
        return torch.cat([x_BX, self.module(x_BX).to(x_BX.dtype)], 1)


def apply_linear(layer: nn.Linear, x: Tensor, *, training: bool) -> Tensor:
    """Applies an `nn.Linear`: in training by torch, else so that rows do not feel each other.

    Example:
        >>> apply_linear(torch.nn.Linear(2, 3), torch.zeros(4, 2), training=False).shape
        torch.Size([4, 3])
    """
    product = F.linear if training else stable_linear
    return product(x, layer.weight, layer.bias)


def check_sizes(**sizes: int | None) -> None:
    """Refuses a number below 1; None passes.

    Raises:
        ValueError: Names the argument.
    """
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}: expected 1 or more, got {size}")

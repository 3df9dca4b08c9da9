"""A multi-layer perceptron, the body of experts and towers; settings of pools of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import activate, stable_linear

Activation = Literal["relu", "gelu", "silu"]
ExpertActivation = Literal["relu", "gelu", "silu", "swiglu"]
# Of the last layer; None: it has none
OutputActivation = Literal["same", "relu", "gelu", "silu", "swiglu"] | None


class MLP(nn.Module):
    """Linear layers, each followed by an activation and dropout: `x ← drop(act(W x + b))`.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width of the input.
        hidden: Width of every layer; the last one is the output's. Empty: the input comes back.
        activation: `relu`, `gelu` or `silu`.
        dropout: Probability that a unit is zeroed while training.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLP
        >>> MLP(10, [32, 16])(torch.zeros(4, 10)).shape
        torch.Size([4, 16])

    Source: Weights start as in He et al., "Delving deep into rectifiers" (ICCV 2015), equation 10:
        normal with variance 2 / fan-in; biases start at zero. GELU and SiLU are close enough to
        ReLU to share it.
    """

    layers: Any  # an `nn.ModuleList` of `nn.Linear`

    def __init__(
        self,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        words = {"activation": (activation, get_args(Activation))}
        check_layers(input_dim, hidden, words, {"dropout": dropout})
        widths = [input_dim, *hidden]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.activation: Activation = activation
        self.dropout = dropout
        self.input_dim = input_dim
        self.output_dim = widths[-1]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are: the first layer reads the inputs."""
        return {"layers.0.weight": {1: "inputs"}}

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        return self.after_first(self._linear(0, x)) if len(self.layers) else x

    def after_first(self, y: Tensor) -> Tensor:
        """Goes on from what the first layer's matrix gave, of an MLP that has one; it may be lost.

        Args:
            y: `[..., widths[0]]`, changed in place.
        """
        for layer in range(len(self.layers)):
            x = _activate(y, self.activation, self.training)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            if layer + 1 == len(self.layers):
                return x
            y = self._linear(layer + 1, x)
        raise AssertionError("it has a layer")

    def _linear(self, layer: int, x: Tensor) -> Tensor:
        own = self.layers[layer]
        # Scores alone must not depend on the batch beside a row
        return own(x) if self.training else stable_linear(x, own.weight, own.bias)

    def extra_repr(self) -> str:
        """Returns the settings that `print` shows."""
        return f"activation={self.activation}, dropout={self.dropout}"


def _activate(x: Tensor, activation: Activation, training: bool) -> Tensor:
    # In place where the gradient allows it: x is our own product, and a second buffer of its size
    # costs more than the ReLU itself.
    if activation == "relu":
        return F.relu(x, inplace=True)
    return activate(x, activation, training=training)


def check_layers(
    input_dim: int,
    hidden: Sequence[int],
    words: Mapping[str, tuple[str | None, Sequence[str | None]]],
    dropouts: Mapping[str, float],
) -> None:
    """Refuses settings out of range, by their names; `words` come with those that are known."""
    if input_dim < 1:
        raise ValueError(f"input_dim: expected a width of 1 or more, got {input_dim}")
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden: expected widths of 1 or more, got {list(hidden)}")
    for name, (value, known) in words.items():
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, known))}, got {value!r}")
    for name, dropout in dropouts.items():
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}: expected a probability in [0, 1), got {dropout}")

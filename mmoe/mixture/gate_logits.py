"""The learned part that gates have in common: input → logits, for all gates at once."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.linear import stable_linear


class GateLogits(nn.Module):
    """Small networks, run together: `logits_g = W_g · relu(… V_g x + c_g) / temperature`.

    The arithmetic is in fp32 (fp64 for fp64 inputs) whatever the rest of the model runs in, also
    under autocast: a rounded logit sends a sample to another expert. The last layer has no bias,
    as in the papers. The weights of all gates lie in one tensor per layer, so that gates that read
    the same input cost one product.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        hidden: Widths of ReLU layers; `[]` = linear.
        temperature: Divides the logits.

    Example:
        >>> import torch
        >>> from mmoe.mixture.gate_logits import GateLogits
        >>> x_BD = torch.zeros(3, 8)
        >>> GateLogits(8, num_gates=2, num_experts=4)([x_BD, x_BD]).shape
        torch.Size([3, 2, 4])

    Source: Hidden layers start as in He et al. (ICCV 2015); the logits' layer is uniform in
        ±1/√fan-in (torch's `nn.Linear`), so the gates start nearly even, but break ties.
    """

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        hidden: Sequence[int] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("input_dim", input_dim),
            ("num_gates", num_gates),
            ("num_experts", num_experts),
            *((f"hidden[{i}]", width) for i, width in enumerate(hidden)),
        ):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, got {value}")
        if not temperature > 0:
            raise ValueError(f"temperature: expected a number above 0, got {temperature}")
        widths = [input_dim, *hidden, num_experts]
        self.weights = nn.ParameterList(
            torch.empty(num_gates, after, before) for before, after in pairwise(widths)
        )
        self.biases = nn.ParameterList(torch.empty(num_gates, width) for width in hidden)
        self.input_dim, self.num_gates, self.num_experts = input_dim, num_gates, num_experts
        self.temperature = temperature
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        *hidden, last = self.weights
        for weight in hidden:
            nn.init.normal_(weight, std=math.sqrt(2 / weight.shape[-1]))
        nn.init.uniform_(last, -1 / math.sqrt(last.shape[-1]), 1 / math.sqrt(last.shape[-1]))
        for bias in self.biases:
            nn.init.zeros_(bias)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """G inputs `x_BD` → `logits_BGE`."""
        self._check(inputs)
        with torch.autocast(inputs[0].device.type, enabled=False):
            outputs: Sequence[Tensor] = inputs
            for layer in range(len(self.weights)):
                outputs = self._layer(layer, outputs)
            logits_BGE = torch.stack(list(outputs), dim=1)
        return logits_BGE if self.temperature == 1 else logits_BGE / self.temperature

    def _layer(self, layer: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        dtype = torch.promote_types(inputs[0].dtype, torch.float32)
        weight_GHD = self.weights[layer].to(dtype)
        bias_GH = self.biases[layer].to(dtype) if layer < len(self.biases) else None
        linear = F.linear if self.training else stable_linear
        if all(x is inputs[0] for x in inputs):
            bias = None if bias_GH is None else bias_GH.flatten()
            together = linear(inputs[0].to(dtype), weight_GHD.flatten(0, 1), bias)
            outputs = together.unflatten(1, (self.num_gates, -1)).unbind(1)
        else:
            # unbind, not indexing: weight[g] in a loop gives every gate a full-size gradient.
            biases = [None] * self.num_gates if bias_GH is None else bias_GH.unbind(0)
            outputs = [
                linear(x.to(dtype), weight, bias)
                for x, weight, bias in zip(inputs, weight_GHD.unbind(0), biases, strict=True)
            ]
        return outputs if bias_GH is None else [y.relu() for y in outputs]

    def _check(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != self.num_gates:
            raise ValueError(
                f"inputs: expected {self.num_gates} tensors, one per gate, got {len(inputs)}"
            )
        for g, x in enumerate(inputs):
            if x.dim() != 2 or x.shape[1] != self.input_dim:
                raise ValueError(
                    f"inputs[{g}]: expected shape [rows, {self.input_dim}], got {list(x.shape)}"
                )

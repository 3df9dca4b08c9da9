"""The learned part that gates have in common: input → logits, for all gates at once."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from mmoe.mixture.gates.contract import check_domains
from mmoe.mixture.inputs import Inputs, of_each_domain
from mmoe.ops import gate_mm

GateInput = Tensor | Inputs


class GateLogits(nn.Module):
    """Computes logits of all gates together: `logits_g = W_g · relu(… V_g x + c_g) [+ b_g]`.

    The arithmetic is in fp32 (fp64 for fp64 inputs), also under autocast. The weights of all gates
    lie in one tensor per layer, so that gates that read the same input cost one product.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E, logits of each gate.
        hidden: Widths of ReLU layers; `[]` = linear.
        output_bias: Whether the last layer has a bias; in most papers it has none.

    Example:
        >>> import torch
        >>> x_BD = torch.zeros(3, 8)
        >>> GateLogits(8, num_gates=2, num_experts=4)([x_BD, x_BD]).shape
        torch.Size([3, 2, 4])

    Source: Hidden layers start as in He et al. (ICCV 2015); the logits' layer is uniform in
        ±1/√fan-in (torch's `nn.Linear`), so the gates start nearly even, but break ties.
    """

    own_GMED: nn.Parameter | None
    own_bias_GME: nn.Parameter | None

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        hidden: Sequence[int] = (),
        output_bias: bool = False,
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
        widths = [input_dim, *hidden, num_experts]
        self.weights = nn.ParameterList(
            torch.empty(num_gates, after, before) for before, after in pairwise(widths)
        )
        with_bias = [*hidden, num_experts] if output_bias else hidden
        self.biases = nn.ParameterList(torch.empty(num_gates, width) for width in with_bias)
        self.register_parameter("own_GMED", None)
        self.register_parameter("own_bias_GME", None)
        self.input_dim, self.num_gates, self.num_experts = input_dim, num_gates, num_experts
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        last = len(self.weights) - 1
        own = {0: "gates", 1: "domains", 2: "experts"}
        found = {name: {0: "gates"} for name in self.state_dict()}
        found |= {f"{name}.{last}": {0: "gates", 1: "experts"} for name in ("weights", "biases")}
        found |= {"own_GMED": own if last else {**own, 3: "inputs"}, "own_bias_GME": own}
        found["weights.0"][2] = "inputs"
        return found

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain gates of its own: the last layer is `(W_g + U_gm) …` in domain m.

        U is 0 at first, so that domains with few rows begin with what all have learnt together. So
        is what is added to the last layer's bias, if it has one.

        Args:
            num_domains: M.

        Example:
            >>> import torch
            >>> from mmoe.mixture.inputs import Inputs
            >>> logits = GateLogits(8, num_gates=2, num_experts=4)
            >>> logits.add_domains(3)
            >>> rows = Inputs(x_BR=torch.zeros(2, 8)).in_domains(torch.tensor([2, 0]).int(), 3)
            >>> logits([rows.whole] * 2, rows).shape
            torch.Size([2, 2, 4])
        """
        last_GED = self.weights[-1].detach()
        num_gates, num_experts, width = last_GED.shape
        zeros_GMED = last_GED.new_zeros(num_gates, num_domains, num_experts, width)
        self.own_GMED = nn.Parameter(zeros_GMED)
        if len(self.biases) == len(self.weights):
            self.own_bias_GME = nn.Parameter(zeros_GMED[..., 0].clone())

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        *hidden, last = self.weights
        for weight in hidden:
            nn.init.normal_(weight, std=math.sqrt(2 / weight.shape[-1]))
        nn.init.uniform_(last, -1 / math.sqrt(last.shape[-1]), 1 / math.sqrt(last.shape[-1]))
        for bias in self.biases:
            nn.init.zeros_(bias)

    def forward(self, inputs: Sequence[GateInput], rows: Inputs | None = None) -> Tensor:
        """Computes `logits_BGE` from G inputs `x_BD`, or rows of requests, and their domains."""
        if self.own_GMED is not None or rows is not None:
            check_domains(self.own_GMED, rows)
        if len(inputs) != self.num_gates:
            raise ValueError(
                f"inputs: expected {self.num_gates} tensors, one per gate, got {len(inputs)}"
            )
        for g, x in enumerate(inputs):
            if len(x.shape) != 2 or x.shape[1] != self.input_dim:
                raise ValueError(
                    f"inputs[{g}]: expected shape [rows, {self.input_dim}], got {list(x.shape)}"
                )
        last = len(self.weights) - 1
        # G tensors, or one `[B, G, H]` where one product served all gates
        outputs: Sequence[GateInput] | Tensor = inputs
        # In fp32 whatever runs around it: a rounded logit sends a row to another expert
        with torch.autocast(self.weights[0].device.type, enabled=False):
            for layer, weight_GHD in enumerate(self.weights):
                read = outputs.unbind(1) if isinstance(outputs, Tensor) else outputs
                bias_GH = self.biases[layer] if layer < len(self.biases) else None
                if layer == last and rows is not None and self.own_GMED is not None:
                    return self._of_domains(read, bias_GH, rows)
                outputs = gate_products(read, weight_GHD, bias_GH)
                if layer < last:
                    alone = [outputs] if isinstance(outputs, Tensor) else outputs
                    hidden = [y.relu() for y in alone]
                    outputs = hidden[0] if isinstance(outputs, Tensor) else hidden
            if isinstance(outputs, Tensor):
                return outputs
            return torch.stack([y_BE for y_BE in outputs if isinstance(y_BE, Tensor)], dim=1)

    def _of_domains(
        self, inputs: Sequence[GateInput], bias_GE: Tensor | None, rows: Inputs
    ) -> Tensor:
        """The last layer, of gates that domains have of their own."""
        assert self.own_GMED is not None, "there are domains"
        weights, biases = _of_each_gate(self.weights[-1], self.own_GMED), None
        if bias_GE is not None and self.own_bias_GME is not None:
            biases = _of_each_gate(bias_GE, self.own_bias_GME)
        return domain_logits(inputs, weights, rows, biases)


def gate_products(
    inputs: Sequence[GateInput], weight_GHD: Tensor, bias_GH: Tensor | None = None
) -> Sequence[Tensor] | Tensor:
    """Computes `y_g = W_g x_g + b_g`, in one product where gates read the same tensor.

    On the CPU a row's bits depend on that row alone. The libraries behind `F.linear` sum a row in
    an order that depends on its place, and are no faster at these widths.

    Args:
        inputs: G tensors `x_BD`, of any float type, or rows of requests: what weighs their columns
            of the request is then computed once a request.
        weight_GHD: Of any float type; computed is in fp32, or fp64 for fp64 inputs.
        bias_GH: Likewise.

    Returns:
        `y_BGH` where there was one product, else G tensors `y_BH`.

    Example:
        >>> import torch
        >>> x_BD = torch.ones(3, 2)
        >>> gate_products([x_BD, x_BD], torch.ones(2, 4, 2)).shape
        torch.Size([3, 2, 4])
    """
    if len({id(x) for x in inputs}) > 1:
        biases = [None] * len(inputs) if bias_GH is None else bias_GH.unbind(0)
        # unbind, not indexing: weight[g] in a loop gives every gate a full-size gradient.
        return [
            _product(x, weight_HD, bias_H)
            for x, weight_HD, bias_H in zip(inputs, weight_GHD.unbind(0), biases, strict=True)
        ]
    bias_N = None if bias_GH is None else bias_GH.flatten()
    return _product(inputs[0], weight_GHD.flatten(0, 1), bias_N).unflatten(1, weight_GHD.shape[:2])


def domain_logits(
    inputs: Sequence[GateInput],
    weights: Sequence[Tensor],
    rows: Inputs,
    biases: Sequence[Tensor] | None = None,
) -> Tensor:
    """Computes `y_g = W_gm x_g [+ b_gm]`, m the domain of a row, as `gate_products` without.

    Args:
        inputs: As in `gate_products`; rows of requests are read whole.
        weights: `weight_NED` of each gate, from `of_each_domain`.
        rows: With their domains.
        biases: `bias_NE` of each gate likewise.

    Returns:
        `y_BGE`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.inputs import Inputs
        >>> rows = Inputs(x_BR=torch.ones(1, 3)).in_domains(torch.tensor([1]).int(), 1)
        >>> domain_logits([rows.whole] * 2, [torch.zeros(2, 4, 3)] * 2, rows).shape
        torch.Size([1, 2, 4])
    """
    whole: list[Tensor] = [Inputs.of(x).whole for x in inputs]
    if all(x_BD is whole[0] for x_BD in whole):
        # Gates that read the same rows share one product over the rows by domain
        joined_NXD = torch.cat(list(weights), dim=1)
        joined_NX = None if biases is None else torch.cat(list(biases), dim=1)
        y_BX = rows.domain_products(whole[0], joined_NXD, joined_NX)
        return y_BX.unflatten(1, (len(weights), -1))
    each = [None] * len(weights) if biases is None else biases
    parts = [
        rows.domain_products(x_BD, weight_NED, bias_NE)
        for x_BD, weight_NED, bias_NE in zip(whole, weights, each, strict=True)
    ]
    return torch.stack(parts, dim=1)


def _of_each_gate(shared_GX: Tensor, own_GMX: Tensor) -> list[Tensor]:
    """Returns each gate's parameters, domain by domain."""
    # unbind, not indexing: each gate's gradient would have the size of all
    pairs = zip(shared_GX.unbind(0), own_GMX.unbind(0), strict=True)
    return [of_each_domain(shared_X, own_MX) for shared_X, own_MX in pairs]


def _product(x_BD: GateInput, weight_ND: Tensor, bias_N: Tensor | None) -> Tensor:
    if not isinstance(x_BD, Tensor):
        return x_BD.product(_product, weight_ND, bias_N)
    if x_BD.dtype == torch.float16:
        # The operator takes bfloat16, float32 and float64
        x_BD, weight_ND = x_BD.float(), weight_ND.float()
        bias_N = None if bias_N is None else bias_N.float()
    return gate_mm(x_BD, weight_ND.t(), bias_N)

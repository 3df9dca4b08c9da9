"""`DeepFM`: a factorization machine and an MLP that read the same embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmoe.mixture import MLP
from mmoe.mixture.experts.mlp import Activation
from mmoe.models.interactions.factorization_machine import FactorizationExpert, FactorizationMachine
from mmoe.models.interactions.layers import Products, apply_linear


class DeepFM(Products):
    """Adds products of all pairs of features, and an MLP of all embeddings, to every task's logit.

    `logit_t += Σ_d w_td Σ_{f < g} e_fd · e_gd + u_t · mlp([e_1, e_2, …]) + c_t`; the tables are
    those of the mixture, and tasks share the MLP. The paper's first order of features is
    `model.wide`.

    The last layer begins at zero: the model then begins as one with a factorization machine.

    Args:
        starts: Where the embedding of each feature that is multiplied begins in a row, [F].
        dim: Width of all of them.
        input_dim: Width X of a row: the MLP reads embeddings of other widths too.
        num_tasks: T.
        hidden: Widths of the MLP.
        activation: Of the MLP.
        dropout: Of the MLP's units, while training.

    Example:
        >>> DeepFM([0, 2], 2, 5, num_tasks=3, hidden=[8])(torch.ones(4, 5)).shape
        torch.Size([4, 3])

    Source: Guo et al., "DeepFM: a factorization-machine based neural network for CTR prediction"
        (IJCAI 2017), equations 1 to 4.
    """

    def __init__(
        self,
        starts: Sequence[int],
        dim: int,
        input_dim: int,
        num_tasks: int,
        *,
        hidden: Sequence[int] = (128, 64),
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.machine = FactorizationMachine(starts, dim, num_tasks)
        self.deep = MLP(input_dim, hidden, activation=activation, dropout=dropout)
        self.logits = nn.Linear(self.deep.output_dim, num_tasks)
        nn.init.zeros_(self.logits.weight)
        nn.init.zeros_(self.logits.bias)

    reads = "embeddings"

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are; the inputs are embeddings."""
        own = ("machine.weight_TD", "logits.weight", "logits.bias")
        return {**{name: {0: "logits"} for name in own}, "deep.layers.0.weight": {1: "inputs"}}

    def forward(self, x_BX: Tensor) -> Tensor:
        """Computes what is added to the logits, [B, T] in fp32 (fp64 where the weights are).

        Args:
            x_BX: Embeddings of all features.
        """
        pairs_BT = self.machine(x_BX)
        h_BH = self.deep(x_BX)
        with torch.autocast(x_BX.device.type, enabled=False):
            wide_BH = h_BH.to(self.logits.weight.dtype)
            return pairs_BT + apply_linear(self.logits, wide_BH, training=self.training)


class DeepFMExpert(nn.Module):
    """Adds up a factorization machine of a row's entries and an MLP of that row (an expert).

    `y = fm(x) + W mlp(x)`; fm is `FactorizationExpert`.

    Args:
        input_dim: Width D of a row.
        output: Width of what comes back.
        factors: Of the factorization machine.
        hidden: Widths of the MLP.
        activation: Of the MLP.
        dropout: Of the MLP's units, while training.

    Raises:
        ValueError: A setting out of range.

    Example:
        >>> DeepFMExpert(10, 4, factors=3, hidden=[8])(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Guo et al., "DeepFM" (IJCAI 2017), with the entries of a row for fields of one number
        each: an expert of an upper level knows no others.
    """

    def __init__(
        self,
        input_dim: int,
        output: int = 128,
        *,
        factors: int = 16,
        hidden: Sequence[int] = (128, 64),
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.machine = FactorizationExpert(input_dim, output, factors=factors)
        self.deep = MLP(input_dim, hidden, activation=activation, dropout=dropout)
        self.project = nn.Linear(self.deep.output_dim, output, bias=False)
        nn.init.kaiming_normal_(self.project.weight, nonlinearity="linear")
        self.input_dim, self.output_dim = input_dim, output

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        pairs = {f"machine.{name}": dims for name, dims in self.machine.axes().items()}
        return {**pairs, "deep.layers.0.weight": {1: "inputs"}}

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        deep = apply_linear(self.project, self.deep(x), training=self.training)
        return self.machine(x) + deep

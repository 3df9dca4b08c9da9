"""Factorization machines, of features of ids or of a row's entries; with an MLP, DeepFM."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import MLP, stable_linear
from mmoe.mixture.batch_invariant import apply_linear
from mmoe.mixture.experts.mlp import Activation
from mmoe.models.interactions.layers import Products


class FactorizationMachine(Products):
    """Adds products of all pairs of features to every task's logit.

    `logit_t += Σ_d w_td Σ_{f < g} e_fd · e_gd`, by the identity `½ ((Σ_f e_f)² − Σ_f e_f²)`. Each
    task weighs the D products on its own, with both signs from the start, so tasks that want
    opposite things of a pair share its embeddings.

    Args:
        starts: Where the embedding of each feature begins in a row, [F].
        dim: Width D of all of them.
        num_tasks: T.

    Example:
        >>> machine = FactorizationMachine([0, 2], 2, num_tasks=1)
        >>> _ = torch.nn.init.ones_(machine.weight_TD)
        >>> machine(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist()  # 1·3 + 2·4
        [[11.0]]

    Source: Rendle, "Factorization machines" (ICDM 2010), equation 5 and lemma 3.1; the embeddings
        are shared with the deep part as in Guo et al., "DeepFM" (IJCAI 2017); weights by dimension
        as in Xiao et al., "Attentional factorization machines" (IJCAI 2017), equation 3.
    """

    columns_C: Tensor

    def __init__(self, starts: Sequence[int], dim: int, num_tasks: int) -> None:
        super().__init__()
        self.shape = (len(starts), dim)
        columns = [start + d for start in starts for d in range(dim)]
        self.register_buffer("columns_C", torch.tensor(columns), persistent=False)
        self.weight_TD = nn.Parameter(torch.empty(num_tasks, dim))
        nn.init.normal_(self.weight_TD, std=0.3)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensor are."""
        return {"weight_TD": {0: "logits"}}

    def forward(self, x_BX: Tensor) -> Tensor:
        """Computes what is added to the logits, [B, T], of all embeddings side by side.

        Args:
            x_BX: Embeddings of all features; those of `starts` are read.

        Returns:
            fp32, or fp64 where the embeddings are.
        """
        with torch.autocast(x_BX.device.type, enabled=False):
            x_BX = x_BX.to(torch.promote_types(x_BX.dtype, torch.float32))
            e_BFD = x_BX[:, self.columns_C].unflatten(1, self.shape)
            pairs_BD = (e_BFD.sum(1).square() - e_BFD.square().sum(1)) / 2
            # Not a product of matrices: its sums depend on the height of the batch
            return (pairs_BD[:, None, :] * self.weight_TD).sum(2)


class FactorizationExpert(nn.Module):
    """Adds up products of all pairs of entries of a row (an expert, which knows no fields).

    `y = W p + U x + b` with `p_k = Σ_{i < j} x_i v_ik x_j v_jk`, which is
    `½ ((x V)_k² − (x² V²)_k)`.

    In evaluation on the CPU a row's bits depend on that row alone. The pairs are computed in fp32
    under autocast too: they are differences of squares.

    Args:
        input_dim: Width D of a row.
        output: Width O of what comes back.
        factors: K.

    Example:
        >>> FactorizationExpert(10, 4, factors=3)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Rendle, "Factorization machines" (ICDM 2010), equation 1 with O outputs, and lemma 3.1.
    """

    def __init__(self, input_dim: int, output: int = 128, *, factors: int = 16) -> None:
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output
        self.factors_KD = nn.Parameter(torch.empty(factors, input_dim))
        self.pairs = nn.Linear(factors, output, bias=False)
        self.linear = nn.Linear(input_dim, output)
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        return {"factors_KD": {1: "inputs"}, "linear.weight": {1: "inputs"}}

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        # Pairs of entries of size 1 then have about size 1, and both parts half of the output
        nn.init.normal_(self.factors_KD, std=(2**0.5 / self.input_dim) ** 0.5)
        for layer in (self.pairs, self.linear):
            nn.init.normal_(layer.weight, std=(2 * layer.in_features) ** -0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        product = F.linear if self.training else stable_linear
        with torch.autocast(x.device.type, enabled=False):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            squares = product(wide.square(), self.factors_KD.square())
            pairs = (product(wide, self.factors_KD).square() - squares) / 2
            return product(pairs, self.pairs.weight) + product(
                wide, self.linear.weight, self.linear.bias
            )


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
            return pairs_BT + apply_linear(self.logits, wide_BH)


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
        deep = apply_linear(self.project, self.deep(x))
        return self.machine(x) + deep

"""Factorization machines: products of all pairs, of features of ids or of a row's entries."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import stable_linear
from mmoe.models.interactions.layers import Products, check_sizes


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

    Raises:
        ValueError: A width below 1.

    Example:
        >>> FactorizationExpert(10, 4, factors=3)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Rendle, "Factorization machines" (ICDM 2010), equation 1 with O outputs, and lemma 3.1.
    """

    def __init__(self, input_dim: int, output: int = 128, *, factors: int = 16) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, output=output, factors=factors)
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

"""Interactions of features of ids, which an MLP is slow to find."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FactorizationMachine(nn.Module):
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

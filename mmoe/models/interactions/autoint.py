"""`AutoInt`: fields that look at one another, by attention of several heads."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import stable_linear
from mmoe.mixture.batch_invariant import apply_linear
from mmoe.mixture.experts.mlp import fast_dropout
from mmoe.models.interactions.layers import Interaction


class FieldAttention(nn.Module):
    """Layers in which each field of a row reads all of them, by how they go together.

    In head h: `a_fg = softmax_g(⟨Q e_f, K e_g⟩ / √d)`, `ẽ_f = Σ_g a_fg V e_g`; the layer gives
    `relu([ẽ_f of every head] + R e_f)`.

    In evaluation on the CPU a row's bits depend on that row alone: sums over fields are then taken
    one after another, not by a product of matrices.

    Args:
        input_dim: Width of a field's embedding.
        layers: How many.
        heads: H.
        head_dim: d.
        dropout: Probability that an entry is zeroed behind a layer, while training.

    Example:
        >>> FieldAttention(4, layers=1, heads=2, head_dim=8)(torch.zeros(5, 3, 4)).shape
        torch.Size([5, 3, 16])

    Source: Song et al., "AutoInt: automatic feature interaction learning via self-attentive neural
        networks" (CIKM 2019), equations 5 to 8; logits are divided by √d as in Vaswani et al. 2017,
        equation 1, so that attention begins even whatever d is.
    """

    layers: Any  # an `nn.ModuleList` of `nn.Linear`

    def __init__(
        self,
        input_dim: int,
        *,
        layers: int = 2,
        heads: int = 2,
        head_dim: int = 8,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout
        self.output_dim = heads * head_dim
        widths = [input_dim, *[self.output_dim] * (layers - 1)]
        # Q, K, V and R of all heads, one below another
        self.layers = nn.ModuleList(
            nn.Linear(width, 4 * self.output_dim, bias=False) for width in widths
        )
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, e_BFD: Tensor) -> Tensor:
        """Maps `[B, F, input_dim]` to `[B, F, output_dim]`."""
        for layer in self.layers:
            joined = apply_linear(layer, e_BFD)
            heads = joined.unflatten(2, (4, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
            query, key, value, rest = heads.unbind(0)  # [B, H, F, d] each
            attended = self._attend(query * self.head_dim**-0.5, key, value) + rest
            e_BFD = F.relu(attended).transpose(1, 2).flatten(2)
            e_BFD = fast_dropout(e_BFD, self.dropout, self.training)
        return e_BFD

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.training or query.device.type != "cpu":
            return (query @ key.transpose(2, 3)).softmax(3) @ value
        # Batched products round by what stands where in memory; these sums have one order
        logits = _sum_products(query.unsqueeze(3), key.unsqueeze(2), 4)
        weights = logits.softmax(3)
        return _sum_products(weights.unsqueeze(4), value.unsqueeze(2), 3)


def _sum_products(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """`(left * right).sum(dim)`, added up from the first to the last, never held whole."""
    parts = zip(left.unbind(dim), right.unbind(dim), strict=True)
    one, other = next(parts)
    total = one * other
    for one, other in parts:
        total = total + one * other
    return total


class AutoInt(Interaction):
    """Attention among the features of a row: embeddings, and numbers times an embedding each.

    Field f is the embedding of a feature as it was looked up, or for a feature of numbers
    `Σ_c x_c v_c` over its columns c: one for a number, several for a vector or for pieces. What
    comes back is all fields behind the last layer of `FieldAttention`, side by side.

    Args:
        dim: Width of an embedding.
        starts: Where each embedding begins in a row.
        numbers: For each feature of numbers its columns in a row, where numbers stand first: runs
            [start, stop) of them.
        layers: As for `FieldAttention`, and those below.
        heads: H.
        head_dim: d.
        dropout: Behind a layer.

    Example:
        >>> attention = AutoInt(4, [2], [[(0, 1)], [(1, 2)]], heads=2, head_dim=8)
        >>> attention(torch.zeros(5, 6)).shape
        torch.Size([5, 48])

    Source: Song et al., "AutoInt" (CIKM 2019), section 4.2 and equations 3 to 8.
    """

    def __init__(
        self,
        dim: int,
        starts: Sequence[int],
        numbers: Sequence[Sequence[tuple[int, int]]],
        *,
        layers: int = 2,
        heads: int = 2,
        head_dim: int = 8,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_fields = len(starts) + len(numbers)
        self.dim, self.starts = dim, tuple(starts)
        self.numbers = tuple(map(tuple, numbers))
        self.attention = FieldAttention(
            dim, layers=layers, heads=heads, head_dim=head_dim, dropout=dropout
        )
        columns = max((stop for runs in self.numbers for _, stop in runs), default=0)
        self.vectors_CD = nn.Parameter(torch.empty(columns, dim))
        nn.init.normal_(self.vectors_CD, std=dim**-0.5)
        self.output_dim = num_fields * self.attention.output_dim

    reads = "numbers"

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are; the inputs are numbers."""
        return {"vectors_CD": {0: "inputs"}}

    def forward(self, x_BX: Tensor) -> Tensor:
        """Maps rows of inputs to `[B, output_dim]`."""
        fields = [x_BX[:, start : start + self.dim] for start in self.starts]
        fields += [self._number(x_BX, runs) for runs in self.numbers]
        return self.attention(torch.stack(fields, 1)).flatten(1)

    def _number(self, x_BX: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        product = F.linear if self.training else stable_linear
        parts = [
            product(x_BX[:, start:stop].contiguous(), self.vectors_CD[start:stop].t().contiguous())
            for start, stop in runs
        ]
        return sum(parts[1:], start=parts[0]).to(x_BX.dtype)


class AutoIntExpert(nn.Module):
    """Attention among fields that are linear projections of a row (an expert).

    `e_f = P_f x`, then `FieldAttention`, and `y = W [e'_1, e'_2, …] + b`. A row has no fields of
    its own here: on upper levels it is a mix of experts' outputs.

    Args:
        input_dim: Width D of a row.
        output: Width of what comes back.
        fields: How many are made.
        field_dim: Width of each.
        layers: As for `FieldAttention`, and those below.
        heads: H.
        head_dim: d.
        dropout: Behind a layer.

    Example:
        >>> AutoIntExpert(10, 4, fields=3, field_dim=6)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])

    Source: Song et al., "AutoInt" (CIKM 2019), equations 5 to 9.
    """

    def __init__(
        self,
        input_dim: int,
        output: int = 128,
        *,
        fields: int = 8,
        field_dim: int = 16,
        layers: int = 2,
        heads: int = 2,
        head_dim: int = 8,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output
        self.shape = (fields, field_dim)
        self.spread = nn.Linear(input_dim, fields * field_dim, bias=False)
        self.attention = FieldAttention(
            field_dim, layers=layers, heads=heads, head_dim=head_dim, dropout=dropout
        )
        self.project = nn.Linear(fields * self.attention.output_dim, output)
        nn.init.normal_(self.spread.weight, std=input_dim**-0.5)
        nn.init.kaiming_normal_(self.project.weight, nonlinearity="relu")  # half of it is 0
        nn.init.zeros_(self.project.bias)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        return {"spread.weight": {1: "inputs"}}

    def forward(self, x_RD: Tensor) -> Tensor:
        """Maps `[R, input_dim]` to `[R, output_dim]`."""
        fields = apply_linear(self.spread, x_RD)
        e_RFD = self.attention(fields.unflatten(1, self.shape))
        return apply_linear(self.project, e_RFD.flatten(1))

"""Embeddings on plain PyTorch, for machines where torchrec cannot be installed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings.pooling import divide_by_length, feature_weights


class RowWiseAdagrad(torch.optim.Optimizer):
    r"""Adagrad with one accumulator for a whole embedding row, on sparse gradients.

    For each row r that the batch touched, with gradient g (a vector of width D):
    `s_r += mean(g²)`, `w_r -= lr · g / (√s_r + eps)`. Rows not touched are not read.

    Args:
        params: Two-dimensional parameters with sparse gradients.
        lr: Learning rate.
        eps: Added to the root.

    Source: Duchi et al. 2011; row-wise as in FBGEMM's EXACT_ROWWISE_ADAGRAD, which it equals.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["sum"] = torch.zeros(weight.shape[0], device=weight.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Applies the gradients of the rows that have one."""
        assert closure is None, "row-wise Adagrad takes no closure"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad.coalesce(), group)

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, float]) -> None:
        rows, g_RD = gradient.indices()[0], gradient.values()
        total = self.state[weight]["sum"]
        sum_R = total[rows] + g_RD.square().mean(dim=1)
        total[rows] = sum_R
        weight.index_add_(
            0, rows, g_RD / (sum_R.sqrt() + group["eps"])[:, None], alpha=-group["lr"]
        )


class PlainEmbeddings(nn.Module):
    """Pooled embeddings by `F.embedding_bag`, one call a feature.

    Args:
        tables: Rows and widths.
        features: In the order of the output.
        optimizer: Row-wise Adagrad's settings.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        optimizer: EmbeddingOptimizerConfig,
    ) -> None:
        super().__init__()
        self.features = list(features)
        self.tables = nn.ParameterDict(
            {table.name: nn.Parameter(torch.zeros(table.num_rows, table.dim)) for table in tables}
        )
        dims = {table.name: table.dim for table in tables}
        self.output_dim = sum(dims[feature.table] for feature in features)
        # A group, because torch refuses an empty list: there may be no tables
        self.optimizer = RowWiseAdagrad(
            [{"params": list(self.tables.values())}], lr=optimizer.learning_rate, eps=optimizer.eps
        )

    def forward(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Tensor:
        """See `EmbeddingBackend`.

        Args:
            values: Ids of all features, feature-major, int64 [V].
            lengths_CB: Ids per row, feature-major, flat [C·B].
            id_weights: Of the ids, float32 [V]; those of weighted features count.

        Returns:
            x_BD float32.
        """
        batch = lengths_CB.numel() // max(len(self.features), 1)
        lengths = lengths_CB.view(len(self.features), batch)
        counts = lengths.sum(dim=1).tolist()
        ids = values.split(counts)
        weights = feature_weights(self.features, counts, id_weights)
        pooled = []
        for feature, ids_V, lengths_B, weights_V in zip(
            self.features, ids, lengths, weights, strict=True
        ):
            offsets = lengths_B.cumsum(0) - lengths_B
            out = F.embedding_bag(
                ids_V,
                self.tables[feature.table],
                offsets.to(ids_V.dtype),
                mode="sum",
                sparse=True,
                per_sample_weights=weights_V,
            )
            pooled.append(divide_by_length(out, lengths_B) if feature.pooling == "mean" else out)
        return torch.cat(pooled, dim=1) if pooled else torch.zeros(batch, 0)

    def table_weights(self) -> dict[str, Tensor]:
        """The tables by name."""
        return {name: weight.data for name, weight in self.tables.items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """The accumulators by table."""
        return {name: self.optimizer.state[weight]["sum"] for name, weight in self.tables.items()}

    def set_learning_rate(self, learning_rate: float) -> None:
        """For the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(self) -> None:
        """Applies and clears the sparse gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

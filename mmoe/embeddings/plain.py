"""Embeddings on plain PyTorch, for machines where torchrec cannot be installed."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import EmbeddingOptimizerConfig, FeatureSpec, TableSpec
from mmoe.embeddings.backend import EmbeddingBackend, module_name
from mmoe.embeddings.lookups import Lookups, divide_by_length, lengths_of_events, split_bags
from mmoe.embeddings.row_updates import TableOptimizer, decays_of, row_update


class PlainEmbeddings(EmbeddingBackend):
    """Embeddings by `F.embedding_bag`, or `F.embedding` where they stay events; a call a feature.

    Args:
        tables: Rows and widths.
        features: In the order of the output.
        optimizer: Its kind, settings and rate.
        device: Of the tables; default: the CPU.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        optimizer: EmbeddingOptimizerConfig,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.features = list(features)
        weights = {
            table.name: nn.Parameter(
                torch.zeros(table.num_rows, table.dim, device=device),
                requires_grad=not table.frozen,
            )
            for table in tables
        }
        self.tables = nn.ParameterDict({module_name(name): w for name, w in weights.items()})
        self._names = list(weights)
        dims = {table.name: table.dim for table in tables}
        self.output_dim = sum(dims[f.table] for f in features if f.pooling != "none")
        rates = {table.name: table.learning_rate or optimizer.learning_rate for table in tables}
        moved = {table.name: weights[table.name] for table in tables if not table.frozen}
        self.optimizer = TableOptimizer(
            moved, rates, row_update(optimizer), decays_of(tables, optimizer)
        )

    def forward(
        self, values: Tensor, lengths_CB: Tensor, id_weights: Tensor | None = None
    ) -> Lookups:
        """Returns pooled embeddings, the features side by side, and those of events.

        Args:
            values: Ids of all features, feature-major, int64 [V].
            lengths_CB: Ids per row, feature-major, flat [C·B].
            id_weights: Of the ids, float32 [V]; those of weighted features count.
        """
        bags = split_bags(self.features, values, lengths_CB, id_weights)  # a GPU is waited for here
        pooled, events = [], []
        for feature, (ids_V, lengths_B, weights_V) in zip(self.features, bags, strict=True):
            table = self.tables[module_name(feature.table)]
            if feature.pooling == "none":
                events.append(F.embedding(ids_V, table, sparse=True))
                continue
            offsets = lengths_B.cumsum(0) - lengths_B
            out = F.embedding_bag(
                ids_V, table, offsets, mode="sum", sparse=True, per_sample_weights=weights_V
            )
            pooled.append(divide_by_length(out, lengths_B) if feature.pooling == "mean" else out)
        lengths_SB = lengths_of_events(self.features, lengths_CB)
        if not pooled:
            rows = len(lengths_CB) if lengths_SB is None else lengths_SB.shape[1]
            return Lookups(torch.zeros(rows, 0, device=values.device), tuple(events), lengths_SB)
        return Lookups(torch.cat(pooled, dim=1), tuple(events), lengths_SB)

    def table_weights(self) -> dict[str, Tensor]:
        """Returns the tables by name."""
        return {name: self.tables[module_name(name)].data for name in self._names}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Returns what a resumed run needs (not copies): `TABLE/NAME`."""
        return self.optimizer.state()

    def scale_learning_rates(self, factor: float) -> None:
        """Scales all tables' rates for the next step."""
        self.optimizer.factor = factor

    def step(self) -> None:
        """Applies and clears the sparse gradients."""
        self.optimizer.step()

"""`WidePart`: a linear model of all features beside the network, fitted by itself and then kept."""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import FeatureSpec, TableSpec
from mmoe.embeddings.lookups import needed_weights
from mmoe.mixture import stable_linear
from mmoe.models.inputs import Added, Rows


class WidePart(nn.Module):
    """Logits of a linear model of ids and dense columns: `Σ_f pool_f w[id] + W x + b`.

    Its weights are buffers, zeros at first: nothing here is trained. Features that share a table
    share weights; ids are pooled as their embeddings are, events to their mean. All is computed in
    fp32, under autocast too.

    Args:
        tables: Whose rows have a weight each and task.
        features: That look them up, in the order of a batch's ids.
        num_dense: Number of dense columns, those of vectors included.
        num_tasks: T.
        unread: Names of features that it does not read.
        unread_dense: Numbers of dense columns that it does not read.

    Attributes:
        ids_RT: A weight for each row of all tables, one table after the other, and task.
        dense_TF: Weights of the dense columns.
        bias_T: Of each task.
        mixed_T: Whether the network's logit is added; not for a task that nothing was found to
            predict, of too few positives to look any further.
        first_rows: Of each feature's table, where its rows begin in `ids_RT`.

    Raises:
        ValueError: A table has managed ids, whose rows change hands.

    Example:
        >>> item = FeatureSpec(name="item", table="item", pooling="sum")
        >>> wide = WidePart([TableSpec(name="item", num_rows=3, dim=4)], [item], 1, 2)
        >>> wide.ids_RT[2] = torch.tensor([1.0, -1.0])
        >>> wide(torch.zeros(2, 1), torch.tensor([2, 0]), torch.ones(2, dtype=torch.int32)).tolist()
        [[1.0, -1.0], [0.0, 0.0]]

    Source: Cheng et al., "Wide & Deep learning for recommender systems" (DLRS 2016), whose wide
        part is trained jointly; here it comes first, as the earlier rounds of boosting do.
    """

    ids_RT: Tensor
    dense_TF: Tensor
    bias_T: Tensor
    mixed_T: Tensor
    _first_C: Tensor
    _weighted_C: Tensor

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[FeatureSpec],
        num_dense: int,
        num_tasks: int,
        *,
        unread: Collection[str] = (),
        unread_dense: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.read_C = [feature.name not in unread for feature in features]
        self.unread_dense = list(unread_dense)
        starts, rows = {}, 0
        for table in tables:
            if table.managed is not None:
                raise ValueError(
                    f"model.wide needs rows that stay one id's, but table {table.name!r} has "
                    "managed ids; give it another encoding, or set model.wide: false"
                )
            starts[table.name] = rows
            rows += table.num_rows
        self.features = tuple(features)
        self.first_rows = [starts[feature.table] for feature in features]
        self.register_buffer("ids_RT", torch.zeros(rows, num_tasks))
        self.register_buffer("dense_TF", torch.zeros(num_tasks, num_dense))
        self.register_buffer("bias_T", torch.zeros(num_tasks))
        self.register_buffer("mixed_T", torch.ones(num_tasks, dtype=torch.bool))
        first_C = torch.tensor(self.first_rows, dtype=torch.int64)
        self.register_buffer("_first_C", first_C, persistent=False)
        weighted_C = torch.tensor([feature.weighted for feature in features], dtype=torch.bool)
        self.register_buffer("_weighted_C", weighted_C, persistent=False)

    def added(self, rows: Rows) -> Added:
        """Returns the logits that it computes of rows, one a task."""
        batch = rows.batch
        ids = batch.values, batch.lengths_CB, batch.id_weights
        return Added(self(batch.dense_BF, *ids), self.mixed_T, one_a_task=True)

    def forward(
        self, dense_BF: Tensor, values: Tensor, lengths: Tensor, id_weights: Tensor | None = None
    ) -> Tensor:
        """Computes `logits_BT`, fp32, of what a `Batch` has."""
        with torch.autocast(dense_BF.device.type, enabled=False):
            logits_BT = self._of_dense(dense_BF.float())
            for pooled_BT in self._of_ids(values, lengths, id_weights):
                logits_BT = logits_BT + pooled_BT
        return logits_BT

    def _of_dense(self, dense_BF: Tensor) -> Tensor:
        if not dense_BF.shape[1]:
            return self.bias_T.expand(len(dense_BF), -1)
        linear = F.linear if self.training else stable_linear
        return linear(dense_BF, self.dense_TF, self.bias_T)

    def _of_ids(
        self, values: Tensor, lengths: Tensor, id_weights: Tensor | None
    ) -> Sequence[Tensor]:
        """Pooled weights `[B, T]` of each feature; to be added in order, whatever the batch."""
        if not self.features:
            return []
        lengths_CB = lengths.long().view(len(self.features), -1)
        counts_C = lengths_CB.sum(dim=1)
        weights_V = needed_weights(self.features, id_weights)
        if weights_V is not None:
            weighted_V = self._of_each(self._weighted_C, counts_C, values)
            weights_V = torch.where(weighted_V, weights_V, 1.0)
        ends = lengths_CB.flatten().cumsum(0)
        pooled = F.embedding_bag(
            values.long() + self._of_each(self._first_C, counts_C, values),
            self.ids_RT,
            ends - lengths_CB.flatten(),
            mode="sum",
            per_sample_weights=weights_V,
        )
        pooled_CBT = pooled.view(*lengths_CB.shape, self.ids_RT.shape[1])
        return [
            one_BT / lengths_B.clamp(min=1)[:, None] if feature.pooling != "sum" else one_BT
            for read, feature, one_BT, lengths_B in zip(
                self.read_C, self.features, pooled_CBT, lengths_CB, strict=True
            )
            if read
        ]

    def _of_each(self, of_feature_C: Tensor, counts_C: Tensor, values: Tensor) -> Tensor:
        """Repeats a feature's number for each of its ids; no device is waited for."""
        return torch.repeat_interleave(of_feature_C, counts_C, output_size=len(values))

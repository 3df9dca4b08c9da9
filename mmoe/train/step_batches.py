"""The batches that one optimizer step is made of, and the ids of all of them together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmoe.datasets.rows.batch import Batch


@dataclass(frozen=True)
class StepBatches:
    """This rank's rows of the batches of one step, one or several that count as one.

    Attributes:
        batches: One at least.
        ids: Ids, lengths and weights of ids of one batch made of all, feature-major, as the
            embeddings take them.

    Example:
        >>> import torch
        >>> from mmoe.datasets.rows.batch import Batch
        >>> from mmoe.train.step_batches import StepBatches
        >>> one, two = (
        ...     Batch(
        ...         dense_BF=torch.zeros(1, 0), values=torch.tensor(ids), num_rows=1,
        ...         lengths_CB=torch.ones(2, dtype=torch.int32),
        ...         labels_BT=None, observed_BT=None, weights_BT=None)
        ...     for ids in ([1, 10], [2, 20]))
        >>> StepBatches.of([one, two]).ids[0]
        tensor([ 1,  2, 10, 20])
    """

    batches: Sequence[Batch]
    ids: tuple[Tensor, Tensor, Tensor | None]

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "StepBatches":
        """Joins their ids."""
        return cls(batches, _all_ids(batches))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory until `stream`, which reads it, has done what it was told so far."""
        for batch in self.batches:
            batch.record_stream(stream)
        for tensor in self.ids:
            if tensor is not None:
                tensor.record_stream(stream)


def _all_ids(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor | None]:
    # One without rows does not tell how many features there are
    batches = [batch for batch in batches if len(batch)] or batches[:1]
    if len(batches) == 1:
        return batches[0].values, batches[0].lengths_CB, batches[0].id_weights
    lengths = [batch.lengths_CB.view(-1, len(batch)) for batch in batches]
    counts = [lengths_CB.sum(dim=1).tolist() for lengths_CB in lengths]
    weights = [batch.id_weights for batch in batches if batch.id_weights is not None]
    return (
        _by_feature([batch.values for batch in batches], counts),
        torch.cat(lengths, dim=1).flatten(),
        _by_feature(weights, counts) if weights else None,
    )


def _by_feature(tensors: Sequence[Tensor], counts: Sequence[list[int]]) -> Tensor:
    """Joins feature-major values of several batches: all of the first feature, then the next."""
    parts = [values.split(counted) for values, counted in zip(tensors, counts, strict=True)]
    ordered = [part for of_feature in zip(*parts, strict=True) for part in of_feature]
    return torch.cat(ordered) if ordered else tensors[0]  # no feature has ids

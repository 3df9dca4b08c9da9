"""`Lookups`: what a batch's ids were looked up to be."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.config import FeatureSpec


class Lookups(NamedTuple):
    """Embeddings of a batch.

    Attributes:
        x_BD: Pooled features side by side, in their order, float32.
        events: Of each feature with pooling none `e_VD`, an embedding for each id, row after row.
        lengths_SB: How many ids each of these has in each row.
    """

    x_BD: Tensor
    events: tuple[Tensor, ...] = ()
    lengths_SB: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """Those that have gradients."""
        return [self.x_BD, *self.events]

    def leaves(self, sizes: Sequence[int]) -> "list[Lookups]":
        """Cuts them into batches of these heights: leaves of a graph, which collect gradients.

        Where nothing that was looked up is trained, they collect none.
        """
        x, learns = self.x_BD.detach().split(list(sizes)), self.x_BD.requires_grad
        if self.lengths_SB is None:
            return [Lookups(x_BD.requires_grad_(learns)) for x_BD in x]
        lengths = self.lengths_SB.split(list(sizes), dim=1)
        counts = torch.stack([lengths_SB.sum(dim=1) for lengths_SB in lengths]).tolist()
        by_event = [
            events_VD.detach().split([of_batch[s] for of_batch in counts])
            for s, events_VD in enumerate(self.events)
        ]
        return [
            Lookups(
                x_BD.requires_grad_(learns),
                tuple(
                    events_VD.requires_grad_(whole.requires_grad)
                    for events_VD, whole in zip(events, self.events, strict=True)
                ),
                lengths_SB,
            )
            for x_BD, events, lengths_SB in zip(
                x, zip(*by_event, strict=True), lengths, strict=True
            )
        ]


def lengths_of_events(features: Sequence[FeatureSpec], lengths_CB: Tensor) -> Tensor | None:
    """Returns the lengths of features with pooling none, [S, B]; None where there are none.

    Example:
        >>> import torch
        >>> from mmoe.config import FeatureSpec
        >>> item = FeatureSpec(name="item", table="item", pooling="sum")
        >>> events = FeatureSpec(name="seen", table="item", pooling="none")
        >>> lengths_of_events([item, events], torch.tensor([1, 1, 0, 3]))
        tensor([[0, 3]])
    """
    unpooled = [c for c, feature in enumerate(features) if feature.pooling == "none"]
    if not unpooled:
        return None
    return lengths_CB.view(len(features), lengths_CB.numel() // len(features))[unpooled]

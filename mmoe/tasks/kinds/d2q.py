"""D2Q: the quantile of a watch time among those of videos of about the same duration."""

from collections.abc import Sequence

from torch import Tensor

from mmoe.config.tasks import TaskConfig
from mmoe.mixture.batch_invariant import stable_sigmoid
from mmoe.tasks.kinds.base import OneLogit


class D2Q(OneLogit):
    """Objective of a quantile q from 0 to 1: `(σ(z) − q)²`.

    Longer videos are watched longer, whoever watches: of the watch time the network learns only
    what is left when the duration's share is taken away. What the model outputs is a quantile;
    whoever has the row's duration makes a watch time of it
    (`mmoe.datasets.labels.watch_quantiles`): that at the expected quantile, which is rather a
    median than a mean.

    Source: Zhan et al., "Deconfounding duration bias in watch-time prediction for video
        recommendation" (KDD 2022), section 4.2 and algorithm 1.
    """

    def loss(
        self, t: int, logits: Sequence[Tensor], label_B: Tensor, tasks: Sequence[TaskConfig]
    ) -> Tensor:
        """Computes the squared error of each row's quantile."""
        return (logits[t].sigmoid() - label_B).square()

    def link(self, logit_B: Tensor) -> Tensor:
        """Turns logits into quantiles."""
        return stable_sigmoid(logit_B)

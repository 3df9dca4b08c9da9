"""`IdDropout`: rare ids are now and then looked up as unseen ones, while training."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmoe.parallel import rank, world_size

_UNSEEN = 1  # its row, in every table of ids
# Ids, lengths and weights of ids, as the embeddings take them
_Ids = tuple[Tensor, Tensor, Tensor | None]


class IdDropout:
    """Dropout of whole ids: one of n training rows is unseen with probability `c / (c + n)`.

    Embeddings of ids that come a few times learn the labels of their rows by heart in the second
    epoch; so layers above may not rely on them. A wide part reads all ids as they are. What is
    drawn follows from seed, step and rank, so that a resumed run draws the same.

    Args:
        counts: Training rows of each id of all tables, inf where it is not to be dropped
            (`FeatureEncoder.id_counts`), float64 [R].
        first: Of each feature, where its table begins in `counts`; None: its ids are not counted.
        rows: c.
        seed: Of the run.
        device: Of the ids.

    Example:
        >>> import numpy as np, torch
        >>> from mmoe.train.id_dropout import IdDropout
        >>> counts = np.array([np.inf, np.inf, 1e9, 1.0])
        >>> dropout = IdDropout(counts, [0], 1e6, seed=0, device=torch.device("cpu"))
        >>> dropout((torch.tensor([0, 2, 3]), torch.tensor([1, 1, 1]), None), 0)[0].tolist()
        [0, 2, 1]

    Source: Volkovs et al., "DropoutNet" (NeurIPS 2017), whose rates do not depend on n; the
        one-epoch phenomenon: Zhang et al., "Towards understanding the overfitting phenomenon of
        deep click-through rate models" (CIKM 2022).
    """

    def __init__(
        self,
        counts: np.ndarray,
        first: Sequence[int | None],
        rows: float,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        shares_R = np.append(rows / (rows + counts), 0.0)  # the last of ids that are not counted
        self._shares_R = torch.from_numpy(shares_R).float().to(device)
        self._first_C = torch.tensor([one or 0 for one in first], device=device)
        self._counted_C = torch.tensor([one is not None for one in first], device=device)
        self._seed = (seed * world_size() + rank()) << 32

    def __call__(self, ids: _Ids, step: int) -> _Ids:
        """Returns the ids of a step, some of them unseen.

        Args:
            ids: Feature-major; not changed.
            step: Number of the step in the run.
        """
        values, lengths, weights = ids
        if not len(values):
            return ids
        counts_C = lengths.long().view(len(self._first_C), -1).sum(dim=1)
        feature_V = torch.repeat_interleave(counts_C, output_size=len(values))
        places_V = self._first_C[feature_V] + values.long()
        counted_V = self._counted_C[feature_V]
        share_V = self._shares_R[torch.where(counted_V, places_V, len(self._shares_R) - 1)]
        draws = torch.Generator().manual_seed((self._seed + step) % 2**63)
        drawn_V = torch.rand(len(values), generator=draws).to(values.device)
        return values.masked_fill(drawn_V < share_V, _UNSEEN), lengths, weights

"""Sums over the ranks that share a batch: layers that look across rows see all of them.

The mixture is handed a `RankSums` as it is handed a dispatcher; it never knows how ranks talk.
"""

from typing import Any, Protocol

from torch import Tensor


class RankSums(Protocol):
    """Adds amounts up over ranks, each of which has some rows of one batch.

    The loss is `L = Σ_r L_r`, the sum of what each rank calls `backward` on. Two kinds of sums
    differ in their gradient:

    - `of_losses`: every rank computes the same loss F(S) from the sums `S = Σ_r s_r`, and F counts
      once, not W times. So `dF/ds_r = F'(S)`, which every rank knows by itself.
    - `of_rows`: every rank's rows read the sums, so `dL/ds_r = Σ_q dL_q/dS`, a sum over ranks too.
    """

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Adds up losses and counts, of the types that came; no gradient between ranks."""
        ...

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Adds up what the rows of every rank read, of the types that came."""
        ...


class OneRank:
    """A `RankSums` of one process: every amount is its own sum.

    Example:
        >>> OneRank().of_losses(3)
        (3,)
    """

    def of_losses(self, *amounts: Tensor | int) -> tuple[Any, ...]:
        """Returns the amounts as they are."""
        return amounts

    def of_rows(self, *amounts: Tensor) -> tuple[Tensor, ...]:
        """Returns the amounts as they are."""
        return amounts


ONE_RANK = OneRank()

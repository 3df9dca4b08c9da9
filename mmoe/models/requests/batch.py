"""`RequestBatch`: what a batch says of the requests of its rows."""

from functools import cached_property

import torch
from torch import Tensor

from mmoe.datasets import Batch
from mmoe.ops.row_sums import Owners


class RequestBatch:
    """Numbers of a batch's Q requests, and which row is of which.

    Args:
        dense_QF: The requests' dense columns, float32.
        requests_B: Place of each row's request, int64.

    Example:
        >>> requests = RequestBatch(torch.zeros(2, 3), torch.tensor([0, 1, 1]))
        >>> requests.owners.count
        2
    """

    def __init__(self, dense_QF: Tensor, requests_B: Tensor) -> None:
        if len(requests_B) and not len(dense_QF):  # rows of padding alone are of some request
            dense_QF = dense_QF.new_zeros(1, dense_QF.shape[1])
        self.dense_QF, self.requests_B = dense_QF, requests_B

    @classmethod
    def of(cls, batch: Batch) -> "RequestBatch":
        """Returns those of a batch whose features have requests."""
        assert batch.requests_B is not None and batch.request_dense_QF is not None
        return cls(batch.request_dense_QF, batch.requests_B)

    @cached_property
    def owners(self) -> Owners:
        """Returns each row's request."""
        return Owners(self.requests_B, len(self.dense_QF))


def flat_ids(
    values: Tensor,
    lengths_CB: Tensor,
    id_weights: Tensor | None,
    requests_B: Tensor,
    of_request_C: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gives every row the ids of its request: ids, lengths and weights as without requests.

    Args:
        values: Ids of all features, feature-major, int64; those of requests come once.
        lengths_CB: How many each feature has in each place, int32, flat.
        id_weights: Of the ids; or None.
        requests_B: Place of each row's request.
        of_request_C: Whether each feature is of requests, bool.

    Example:
        >>> user_of_2_requests, item_of_3_rows = [7, 8], [1, 2, 3]
        >>> flat_ids(
        ...     torch.tensor(user_of_2_requests + item_of_3_rows),
        ...     torch.tensor([1, 1, 0, 1, 1, 1]).int(), None, torch.tensor([0, 1, 1]),
        ...     torch.tensor([True, False]))[0].tolist()
        [7, 8, 8, 1, 2, 3]
    """
    features, rows = len(of_request_C), len(requests_B)
    if not features:
        return values, lengths_CB, id_weights
    own_B = torch.arange(rows, device=requests_B.device)
    places_CB = torch.where(of_request_C[:, None], requests_B, own_B)
    places_CB = places_CB + rows * torch.arange(features, device=places_CB.device)[:, None]
    index_N, lengths_N = repeated_lists(lengths_CB, places_CB.flatten())
    weights = None if id_weights is None else id_weights.index_select(0, index_N)
    return values.index_select(0, index_N), lengths_N, weights


def repeated_lists(lengths_Q: Tensor, places_B: Tensor) -> tuple[Tensor, Tensor]:
    """Says which items B lists have that are those of Q lists: index of each item, and lengths.

    On a GPU it waits for how many there are.

    Args:
        lengths_Q: How many items each of Q lists has, int; they lie one after the other.
        places_B: Which of them each list is, int64.

    Returns:
        `index_W`, int64, and `lengths_B`.

    Example:
        >>> repeated_lists(torch.tensor([2, 1]), torch.tensor([1, 0, 1]))
        (tensor([2, 0, 1, 2]), tensor([1, 2, 1]))
    """
    lengths_B = lengths_Q.index_select(0, places_B)
    ends_Q = lengths_Q.to(torch.int64).cumsum(0)
    wide_B = lengths_B.to(torch.int64)
    # The first item of each list, less its place among all that come
    shift_B = (ends_Q - lengths_Q).index_select(0, places_B) - (wide_B.cumsum(0) - wide_B)
    shift_W = torch.repeat_interleave(shift_B, wide_B)
    return shift_W + torch.arange(len(shift_W), device=shift_W.device), lengths_B

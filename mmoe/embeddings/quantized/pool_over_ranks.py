"""Sums of rows that other ranks hold: ids go to who has their rows, sums come back."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmoe.embeddings.lookups import Bags
from mmoe.parallel import Wire


def pool_over_ranks(
    bags: Sequence[Bags],
    held: Sequence[Sequence[range]],
    dims: Sequence[int],
    pool: Callable[[int, Bags], Tensor],
) -> list[Tensor]:
    """Returns `sums_BD` of each feature for this rank's rows; all ranks call it together.

    Args:
        bags: This rank's ids of each feature.
        held: For each feature, the rows of its table that rank 0 holds, that rank 1 holds, …
        dims: Width of each feature.
        pool: Of a feature's number and bags with ids counted from the first row that this rank
            holds, their sums.

    Returns:
        The pooled bags; where rows of one lie on several ranks, partial sums are added in the order
        of the ranks.
    """
    wire = Wire()
    asked = [[c for c, rows in enumerate(held) if rows[w]] for w in range(wire.world_size)]
    requests = [[bags[c].within(held[c][w]) for c in of] for w, of in enumerate(asked)]
    height, own = len(bags[0].lengths_B), asked[wire.rank]
    weighted = [bags[c].weights_V is not None for c in own]
    # Zero columns first: `cat` needs one, also of a rank that was asked for nothing
    answers = [
        torch.cat([torch.zeros(rows, 0), *map(pool, own, batch)], dim=1)
        for rows, batch in _exchange(wire, requests, height, weighted)
    ]
    widths = [sum(dims[c] for c in of) for of in asked]
    received = _send(
        wire, [answer_BD.flatten() for answer_BD in answers], [height * width for width in widths]
    )
    sums = [torch.zeros(height, dim) for dim in dims]
    for w, pooled in enumerate(received):
        columns = pooled.view(height, widths[w]).split([dims[c] for c in asked[w]], dim=1)
        for c, column_BD in zip(asked[w], columns, strict=True):
            sums[c] += column_BD
    return sums


def _exchange(
    wire: Wire, requests: Sequence[Sequence[Bags]], height: int, weighted: Sequence[bool]
) -> list[tuple[int, list[Bags]]]:
    """Exchanges every rank's number of rows, and its bags for this one.

    Args:
        wire: Of all ranks.
        requests: For each rank, the bags of the features it holds.
        height: Rows of this rank's batch.
        weighted: Whether this rank's features have weights.
    """
    ids = [_joined([b.ids_V for b in of], torch.int64) for of in requests]
    weights = [
        _joined([b.weights_V for b in of if b.weights_V is not None], torch.float32)
        for of in requests
    ]
    lengths = [_joined([b.lengths_B for b in of], torch.int64) for of in requests]
    sizes = [[height, len(i), len(w)] for i, w in zip(ids, weights, strict=True)]
    told = wire.exchange_sizes(torch.tensor(sizes))
    heights, counts, weight_counts = zip(*told, strict=True)
    of_lengths = _send(wire, lengths, [rows * len(weighted) for rows in heights])
    of_ids, of_weights = _send(wire, ids, counts), _send(wire, weights, weight_counts)
    return [
        (rows, _unpacked(lengths_L.view(len(weighted), rows), ids_V, weights_V, weighted))
        for rows, lengths_L, ids_V, weights_V in zip(
            heights, of_lengths, of_ids, of_weights, strict=True
        )
    ]


def _unpacked(
    lengths_CB: Tensor, ids_V: Tensor, weights_V: Tensor, weighted: Sequence[bool]
) -> list[Bags]:
    counts = lengths_CB.sum(dim=1).tolist()
    each = iter(weights_V.split([n for n, w in zip(counts, weighted, strict=True) if w]))
    return [
        Bags(ids, lengths_B, next(each) if has_weights else None)
        for ids, lengths_B, has_weights in zip(
            ids_V.split(counts), lengths_CB, weighted, strict=True
        )
    ]


def _send(wire: Wire, tensors: Sequence[Tensor], receive: Sequence[int]) -> Sequence[Tensor]:
    sent = [len(tensor) for tensor in tensors]
    return wire.begin_rows(torch.cat(list(tensors)), sent, receive).wait().split(list(receive))


def _joined(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.empty(0, dtype=dtype), *tensors])

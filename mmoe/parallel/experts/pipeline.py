"""A batch in chunks: the rows of one travel while the experts compute another."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from mmoe.mixture.routing.dispatcher import Compute
from mmoe.parallel.experts.exchange import Departure, Exchange, Piece, Terms
from mmoe.parallel.experts.steps import Steps, staggered
from mmoe.parallel.experts.two_levels import TwoLevels


def in_chunks(
    road: Exchange | TwoLevels,
    whole: Piece,
    terms: Terms,
    chunks: int,
    compute: Compute,
    meanwhile: Iterator[object] | None = None,
) -> Tensor:
    """Sends the rows out, computes, and brings the outputs back: `out_BGO`.

    Each rank cuts its own batch into as many chunks, some of them empty where it has fewer rows. In
    the backward pass autograd runs what was made last first, so it goes through the same order from
    its end, and the gradients of one chunk travel while another's are computed.

    Args:
        road: How rows travel.
        whole: The batch.
        terms: What all ranks agree on.
        chunks: n.
        compute: Runs the experts.
        meanwhile: See `staggered`.
    """
    pieces = cut(whole, chunks)
    ways = [there_and_back(road, leaving, compute) for leaving in road.prepare(pieces, terms)]
    outs = staggered(ways, road.num_steps, meanwhile)
    return outs[0] if chunks == 1 else torch.cat(outs)


def cut(whole: Piece, chunks: int) -> list[Piece]:
    """Cuts a batch into chunks whose sizes differ by at most one row.

    Example:
        >>> import torch
        >>> from mmoe.mixture import DispatchPlan
        >>> from mmoe.parallel.experts.exchange import Piece
        >>> picks = torch.zeros(3, 1, 1, dtype=torch.int32)
        >>> plan = DispatchPlan(
        ...     experts_BGK=picks, weights_BGK=picks, num_experts=1, expert_source=(0,)
        ... )
        >>> [len(piece.sources[0]) for piece in cut(Piece([torch.zeros(3, 2)], plan), 2)]
        [1, 2]
    """
    if chunks == 1:
        return [whole]
    plan, rows = whole.plan, len(whole.plan.experts_BGK)
    bounds = [rows * i // chunks for i in range(chunks + 1)]
    sizes = [b - a for a, b in pairwise(bounds)]
    # One split of each, whose backward pass joins the chunks' gradients instead of adding them up
    sources = [source.split(sizes) for source in whole.sources]
    picks, weights = plan.experts_BGK.split(sizes), plan.weights_BGK.split(sizes)
    return [
        Piece(
            [source[i] for source in sources],
            replace(plan, experts_BGK=picks[i], weights_BGK=weights[i], routes=None),
        )
        for i in range(chunks)
    ]


def there_and_back(
    road: Exchange | TwoLevels, leaving: Departure, compute: Compute
) -> Steps[Tensor]:
    """Takes rows to their experts, and their outputs back."""
    handle = yield from road.outward(leaving)
    y = compute(handle.arrived.x_RD, handle.arrived.offsets_E1)
    return (yield from road.homeward(y, handle))  # type: ignore[arg-type]  # of the same road

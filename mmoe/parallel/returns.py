"""The way back: outputs are packed on the rank of the experts, and mixed on that of the samples.

Pairs and sums are mixed by one operator in one order: the picks of a rank first, then the ranks. So
the result has the same bits whichever way each link chose, and no row's bits depend on its batch
mates.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from mmoe import ops
from mmoe.parallel.links import Links
from mmoe.parallel.outbound import Outbound


def pack_returns(
    y_RO: Tensor,
    routes: ops.RoutePlan,
    picks_NGK: Tensor,
    weights_NGK: Tensor,
    theirs: Links,
) -> Tensor:
    """On the rank of the experts: what goes back, rank by rank.

    Args:
        y_RO: The experts' outputs, expert-major.
        routes: The plan of the picks that came.
        picks_NGK: Those picks, of rows in the order of the ranks that they came from.
        weights_NGK: Their weights, where sums go back.
        theirs: The links that they came over.

    Returns:
        `back_TO`: for each rank its pairs by (expert, sample), or its sums by (row, gate).
    """
    device, G = y_RO.device, picks_NGK.shape[1]
    ranks_N = theirs.of_rows(range(len(theirs.sizes)), device)
    sums_N = theirs.of_rows(theirs.sums, device)
    rows_R = routes.rows_P.long()
    pairs_T = (~sums_N[rows_R]).nonzero().squeeze(1)
    index_T, ranks_T = pairs_T, ranks_N[rows_R[pairs_T]]
    if any(theirs.sums):
        slots_NGK = routes.slots_BGK.masked_fill(~sums_N.view(-1, 1, 1), -1)
        sums_XO = ops.gated_combine(y_RO, slots_NGK, weights_NGK).flatten(0, 1)
        asked_X = (slots_NGK >= 0).any(2).flatten().nonzero().squeeze(1)
        index_T = torch.cat([pairs_T, len(y_RO) + asked_X])
        ranks_T = torch.cat([ranks_T, ranks_N[asked_X // G]])
        y_RO = torch.cat([y_RO, sums_XO])
    # No row goes back twice, so the gradient of this is a plain copy.
    return y_RO.index_select(0, index_T[ranks_T.argsort(stable=True)])


def mix_returned(back_TO: Tensor, weights_BGK: Tensor, out: Outbound, ours: Links) -> Tensor:
    """On the rank of the samples: `out_BGO[b, g] = Σ_lane Σ_{k of the lane} w[b, g, k] · y[pick]`.

    Args:
        back_TO: What came back, rank by rank.
        weights_BGK: The gates' weights.
        out: What went out.
        ours: The links that it went over.

    Returns:
        `out_BGO`, in the dtype of `back_TO`.
    """
    B, G = weights_BGK.shape[:2]
    sums_BGK = torch.tensor(ours.sums, device=back_TO.device)[out.ranks_BGK] & (out.sums_BGK >= 0)
    parts_BGK, num_parts = _parts(out)
    parts_J1 = torch.arange(num_parts, device=back_TO.device).unsqueeze(1)
    theirs_BGJK = parts_BGK.unsqueeze(2) == parts_J1
    places_BGK = _places(out, sums_BGK, ours)
    slots_BGJK = torch.where(theirs_BGJK, places_BGK.unsqueeze(2), -1)
    # A sum serves all of its picks at once: the first of them takes it, as it is.
    again_BGJK = sums_BGK.unsqueeze(2) & (theirs_BGJK.cumsum(3) > 1)
    slots_BGJK = slots_BGJK.masked_fill(again_BGJK, -1).to(torch.int32)
    weights_BG1K = torch.where(sums_BGK, 1, weights_BGK).unsqueeze(2)
    parts_BXO = ops.gated_combine(
        back_TO,
        slots_BGJK.flatten(1, 2),
        weights_BG1K.expand(-1, -1, num_parts, -1).flatten(1, 2),
    )
    asked_BGJ = theirs_BGJK.any(3)
    all_BGJ = torch.arange(B * G * num_parts, device=back_TO.device).view(B, G, num_parts)
    slots_BGJ = torch.where(asked_BGJ, all_BGJ, -1).to(torch.int32)
    ones_BGJ = weights_BGK.new_ones(()).expand(B, G, num_parts)
    return ops.gated_combine(parts_BXO.flatten(0, 1), slots_BGJ, ones_BGJ)


def _parts(out: Outbound) -> tuple[Tensor, int]:
    """Numbers the lanes that each gate of a sample asks, from 0 on: `parts_BGK`, and how many."""
    B, G, K = out.lanes_BGK.shape
    lanes, unused_BGK = out.rows.offsets_E1.shape[0] - 1, out.lanes_BGK < 0
    # Lane C takes what unused picks write.
    lanes_BGK = out.lanes_BGK.masked_fill(unused_BGK, lanes).long()
    asked_BGC = torch.zeros(B, G, lanes + 1, dtype=torch.bool, device=lanes_BGK.device)
    numbers_BGC = asked_BGC.scatter(2, lanes_BGK, True).cumsum(2) - 1
    return numbers_BGC.gather(2, lanes_BGK).masked_fill(unused_BGK, -1), min(K, lanes)


def _places(out: Outbound, sums_BGK: Tensor, ours: Links) -> Tensor:
    """Where each pick's pair, or its sum, lies in what came back."""
    starts = list(accumulate(ours.back, initial=0))

    def moved(counts: Sequence[int]) -> Tensor:
        before = accumulate(counts, initial=0)
        shifts = [start - first for start, first in zip(starts, before, strict=True)]
        return torch.tensor(shifts, device=sums_BGK.device)[out.ranks_BGK]

    of_pairs_BGK = out.pairs.slots_BGK + moved([size.pairs for size in ours.sizes])
    of_sums_BGK = out.sums_BGK + moved([size.sums for size in ours.sizes])
    return torch.where(sums_BGK, of_sums_BGK, of_pairs_BGK)

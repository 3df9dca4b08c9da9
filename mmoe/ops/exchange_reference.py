"""Specification of the operators of an exchange between ranks, in plain PyTorch.

Letters beside those of `reference`: W ranks, S sources, L = W · S lanes, a lane being a (rank,
source); N rows that travel (distinct sample and lane), M = B · min(G · K, L, E) the most N can be;
Q picks, those in use first; Z rows that come back.

`links_WL` [W + 1, 6], int64: where each rank's rows, picks, weights, pairs, sums and rows back
start; the last row holds the totals. Weights travel, one for each pick, where sums come back.

A message holds for each rank, without a gap:

    [rows][codes of picks][weights]     and on the way back of the gradients     [rows][weights]

The functions that read a message read `links_WL` back from a GPU; the kernels do not.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from mmoe.ops import reference
from mmoe.ops._checks import accumulate_dtype

ROWS, PICKS, WEIGHTS, PAIRS, SUMS, BACK = range(6)


def outbound_plan(
    experts_BGK: Tensor, homes_E3: Tensor, num_ranks: int, num_sources: int
) -> tuple[Tensor, ...]:
    """Sorts a batch by where it goes; see `mmoe.ops.outbound_plan` for what is returned.

    Args:
        experts_BGK: int32; −1 = unused.
        homes_E3: int32, for each expert its rank, its number there, and the source it reads.
        num_ranks: W.
        num_sources: S.
    """
    B, G, K = experts_BGK.shape
    E, L, device = len(homes_E3), num_ranks * num_sources, experts_BGK.device
    rank_E, place_E, source_E = homes_E3.long().unbind(1)
    held_W = torch.zeros(num_ranks, dtype=torch.int64, device=device)
    held_W = held_W.scatter_add(0, rank_E, torch.ones_like(rank_E))
    order_E = held_W.cumsum(0)[rank_E] - held_W[rank_E] + place_E
    unused_BGK, at_BGK = experts_BGK < 0, experts_BGK.clamp(min=0).long()

    def of_picks(values_E: Tensor) -> Tensor:
        return values_E[at_BGK].masked_fill(unused_BGK, -1).to(torch.int32)

    # A target, one source of one rank, is planned as if it were an expert.
    targets_BGK = of_picks(rank_E * num_sources + source_E)
    samples_M, target_bounds, rows_BGK = reference.route_plan(targets_BGK, L)
    samples_M = samples_M[: B * min(G * K, L, E)]
    _, pair_bounds, pairs_BGK = reference.route_plan(of_picks(order_E), E)
    numbers_M = torch.arange(len(samples_M), device=device)
    targets_M = torch.searchsorted(target_bounds[1:].long(), numbers_M, right=True)
    rows_M = torch.where(samples_M >= 0, samples_M * num_sources + targets_M % num_sources, -1)

    # By (row, gate, pick), unused ones last.
    keys_Q = rows_BGK.masked_fill(unused_BGK, B * G * K).flatten()
    order_Q = keys_Q.argsort(stable=True)
    rows_Q, used_Q = keys_Q[order_Q], ~unused_BGK.flatten()[order_Q]
    gates_Q = order_Q // K % G
    first_of_row_Q = _begins(rows_Q) & used_Q
    first_of_sum_Q = (_begins(rows_Q) | _begins(gates_Q)) & used_Q
    expert_Q = at_BGK.flatten()[order_Q]
    codes_Q = order_Q % (G * K) * held_W[rank_E[expert_Q]] + place_E[expert_Q]
    codes_Q = torch.where(first_of_row_Q, -1 - codes_Q, codes_Q).masked_fill(~used_Q, 0)
    sums_Q = (first_of_sum_Q.cumsum(0) - 1).masked_fill(~used_Q, -1)
    sums_BGK = torch.empty_like(sums_Q).scatter(0, order_Q, sums_Q).view(B, G, K)

    def per_rank(counted_Q: Tensor) -> Tensor:
        return torch.zeros_like(held_W).scatter_add(0, rank_E[expert_Q], counted_Q.long())

    pairs_in_order_E = pair_bounds.diff().long()
    sizes_W4 = torch.stack(
        [
            target_bounds.diff().long().view(num_ranks, num_sources).sum(1),
            per_rank(used_Q),
            torch.zeros_like(held_W).scatter_add(0, rank_E, pairs_in_order_E[order_E]),
            per_rank(first_of_sum_Q),
        ],
        dim=1,
    )
    indices = (rows_M, order_Q.masked_fill(~used_Q, -1), codes_Q, rows_BGK, pairs_BGK, sums_BGK)
    return *(index.to(torch.int32) for index in indices), sizes_W4


def _begins(values_Q: Tensor) -> Tensor:
    """Marks where a value differs from the one before."""
    begins_Q = torch.ones_like(values_Q, dtype=torch.bool)
    begins_Q[1:] = values_Q[1:] != values_Q[:-1]
    return begins_Q


def _bytes(tensor: Tensor) -> Tensor:
    # A copy: contiguous() keeps a single number's stride, which view does not take
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _numbers(blocks: Sequence[Tensor], dtype: torch.dtype, *shape: int) -> Tensor:
    # cat copies, so that the numbers start where numbers of their type may.
    return torch.cat(list(blocks)).view(dtype).view(*shape)


def _join(links_WL: Tensor, rows_ND: Tensor, codes_Q: Tensor | None, weights_Q: Tensor) -> Tensor:
    """Puts a message together from all rows, all picks' codes and all picks' weights."""
    bounds, blocks = links_WL.tolist(), []
    for own, ends in pairwise(bounds):
        blocks.append(_bytes(rows_ND[own[ROWS] : ends[ROWS]]))
        if codes_Q is not None:
            blocks.append(_bytes(codes_Q[own[PICKS] : ends[PICKS]]))
        if ends[WEIGHTS] > own[WEIGHTS]:
            blocks.append(_bytes(weights_Q[own[PICKS] : ends[PICKS]]))
    return torch.cat(blocks)


def _split(
    message: Tensor,
    links_WL: Tensor,
    width: int,
    wire: torch.dtype,
    weight: torch.dtype,
    codes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a message apart: rows, codes (of so many bytes each), and weights, 0 where none came."""
    bounds, sizes = links_WL.tolist(), []
    for own, ends in pairwise(bounds):
        sizes.append((ends[ROWS] - own[ROWS]) * width * wire.itemsize)
        sizes.append((ends[PICKS] - own[PICKS]) * codes)
        sizes.append((ends[WEIGHTS] - own[WEIGHTS]) * weight.itemsize)
    parts = message.split(sizes)
    weights = []
    for part, (own, ends) in zip(parts[2::3], pairwise(bounds), strict=True):
        came = ends[WEIGHTS] > own[WEIGHTS]
        none = part.new_zeros((ends[PICKS] - own[PICKS]) * weight.itemsize)
        weights.append(part if came else none)
    return (
        _numbers(parts[::3], wire, bounds[-1][ROWS], width),
        _numbers(parts[1::3], torch.int32, -1),
        _numbers(weights, weight, -1),
    )


def pack_rows(
    sources: Sequence[Tensor],
    weights_BGK: Tensor,
    rows_M: Tensor,
    entries_Q: Tensor,
    codes_Q: Tensor,
    links_WL: Tensor,
    wire: torch.dtype,
    num_bytes: int,
) -> Tensor:
    """Puts together what goes out: rows rounded to the wire's dtype, codes, and weights."""
    rows, picks = links_WL[-1, ROWS], links_WL[-1, PICKS]
    x_XD = torch.stack(list(sources), 1).flatten(0, 1)
    x_ND = x_XD.index_select(0, rows_M[:rows].long()).to(wire)
    weights_Q = _of(weights_BGK.flatten(), entries_Q[:picks], 0)
    return _join(links_WL, x_ND, codes_Q[:picks], weights_Q)


def pack_rows_backward(
    message: Tensor,
    rows_M: Tensor,
    rows_BGK: Tensor,
    entries_Q: Tensor,
    links_WL: Tensor,
    num_sources: int,
    width: int,
    dtype: torch.dtype,
    wire: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Adds up what came back for each sample and source, by row: grad_BSD; and grad_weights_BGK."""
    wide = accumulate_dtype(dtype)
    grad_ND, _, grad_Q = _split(message, links_WL, width, wire, wide, codes=0)
    B, G, K = rows_BGK.shape
    S, owners_N = num_sources, rows_M[: len(grad_ND)]
    rows_BGK_of = rows_BGK.unsqueeze(1)
    source_BGK = _of(owners_N % S, rows_BGK, -1).unsqueeze(1)
    sources_S11 = torch.arange(S, device=message.device).view(-1, 1, 1)
    slots_BSGK = torch.where(source_BGK == sources_S11, rows_BGK_of, -1).flatten(0, 1)
    grad_XD = reference.unpermute(grad_ND.to(wide), owners_N, slots_BSGK).to(dtype)
    entries_Q = entries_Q[: links_WL[-1, PICKS]].long()
    entries_Q = torch.where(entries_Q < 0, B * G * K, entries_Q)  # behind the last: cut off
    grad_weights = grad_Q.new_zeros(B * G * K + 1).index_copy(0, entries_Q, grad_Q)[:-1]
    return grad_XD.view(B, S, width), grad_weights.view(B, G, K)


def _of(values_N: Tensor, numbers_BGK: Tensor, otherwise: int) -> Tensor:
    """The value of each number; `otherwise` for −1."""
    padded = torch.cat([values_N, values_N.new_full((1,), otherwise)])
    return padded[numbers_BGK.long()]


def decode_picks(
    message: Tensor,
    links_WL: Tensor,
    num_rows: int,
    num_picks: int,
    num_gates: int,
    k: int,
    num_experts: int,
    width: int,
    dtype: torch.dtype,
    wire: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads the picks that came: picks_NGK, weights_NGK (0 where none came), places_Q."""
    wide = accumulate_dtype(dtype)
    _, codes_Q, weights_Q = _split(message, links_WL, width, wire, wide, codes=4)
    rows_Q = (codes_Q < 0).cumsum(0) - 1
    codes_Q = torch.where(codes_Q < 0, -1 - codes_Q, codes_Q).long()
    experts = max(num_experts, 1)
    places_Q = rows_Q * num_gates * k + codes_Q // experts
    numbers = num_rows * num_gates * k
    picks_X = codes_Q.new_full((numbers,), -1).index_copy(0, places_Q, codes_Q % experts)
    weights_X = weights_Q.new_zeros(numbers).index_copy(0, places_Q, weights_Q)
    shape = (num_rows, num_gates, k)
    return picks_X.view(shape).to(torch.int32), weights_X.view(shape), places_Q.to(torch.int32)


def unpack_rows(
    message: Tensor,
    rows_R: Tensor,
    links_WL: Tensor,
    width: int,
    dtype: torch.dtype,
    wire: torch.dtype,
) -> Tensor:
    """Gathers the rows that came: x_RD[i] = row rows_R[i] of the message, 0 for −1."""
    x_ND, _, _ = _split(message, links_WL, width, wire, accumulate_dtype(dtype), codes=4)
    return reference.permute(x_ND.to(dtype), rows_R, rows_R.new_empty(len(x_ND), 1, 0))


def unpack_rows_backward(
    grad_RD: Tensor,
    grad_weights_NGK: Tensor,
    slots_NGK: Tensor,
    places_Q: Tensor,
    links_WL: Tensor,
    wire: torch.dtype,
    num_bytes: int,
) -> Tensor:
    """Puts together the gradients that go back: of each row the sum over its pairs, and weights."""
    rows_N = torch.arange(len(slots_NGK), dtype=torch.int32, device=grad_RD.device)
    owners_R = rows_N.new_full((len(grad_RD) + 1,), -1)
    targets_NX = torch.where(slots_NGK >= 0, slots_NGK, len(grad_RD)).flatten(1).long()
    samples_NX = rows_N.unsqueeze(1).expand_as(targets_NX)
    owners_R = owners_R.scatter(0, targets_NX.flatten(), samples_NX.flatten())[:-1]
    wide = accumulate_dtype(grad_RD.dtype)
    grad_ND = reference.unpermute(grad_RD.to(wide), owners_R, slots_NGK).to(wire)
    grad_Q = grad_weights_NGK.flatten()[places_Q.long()]
    return _join(links_WL, grad_ND, None, grad_Q)


def return_plan(
    rows_R: Tensor, offsets_E1: Tensor, slots_NGK: Tensor, links_WL: Tensor
) -> tuple[Tensor, Tensor]:
    """Numbers what goes back, rank by rank: its pairs by (expert, row), or its sums by (row, gate).

    Returns:
        back_R: int32, the row back that a pair is; −1 where sums go back.
        back_NG: int32, the row back that a partial sum is; −1 where pairs go back, or none asked.
    """
    sums_W = links_WL[:, WEIGHTS].diff() > 0
    rank_N = _rank_of(torch.arange(len(slots_NGK), device=rows_R.device), links_WL, ROWS)
    pair_R = (rows_R >= 0) & ~_of(sums_W[rank_N], rows_R, 0).bool()
    asked_NG = (slots_NGK >= 0).any(2) & sums_W[rank_N].unsqueeze(1)
    ranks_R = _of(rank_N, rows_R, 0)
    back_R, back_NG = torch.full_like(rows_R, -1), rows_R.new_full(asked_NG.shape, -1)
    for rank, first in enumerate(links_WL[:-1, BACK]):
        for back, own in (
            (back_R, pair_R & (ranks_R == rank)),
            (back_NG, asked_NG & (rank_N == rank).unsqueeze(1)),
        ):
            numbers = own.flatten().cumsum(0).view(own.shape) - 1 + first
            back.copy_(torch.where(own, numbers, back))
    return back_R, back_NG


def _rank_of(numbers: Tensor, links_WL: Tensor, column: int) -> Tensor:
    ends_W = links_WL[1:, column].contiguous()
    found = torch.searchsorted(ends_W, numbers.long(), right=True)
    return found.clamp(max=len(ends_W) - 1)


def pack_returns(
    y_RO: Tensor,
    weights_NGK: Tensor,
    back_R: Tensor,
    back_NG: Tensor,
    slots_NGK: Tensor,
    num_rows: int,
    wire: torch.dtype,
) -> Tensor:
    """Puts outputs, or the gates' sums of them, in the order in which they go back."""
    sums_NGO = reference.gated_combine(y_RO, slots_NGK, weights_NGK)
    # Entry Z takes what does not go back.
    places = torch.cat([back_R, back_NG.flatten()]).long()
    places = torch.where(places >= 0, places, num_rows)
    back_ZO = y_RO.new_zeros(num_rows + 1, y_RO.shape[1])
    back_ZO = back_ZO.index_copy(0, places, torch.cat([y_RO, sums_NGO.flatten(0, 1)]))
    return back_ZO[:num_rows].to(wire)


def pack_returns_backward(
    grad_ZO: Tensor,
    y_RO: Tensor,
    weights_NGK: Tensor,
    back_R: Tensor,
    back_NG: Tensor,
    slots_NGK: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gives the gradients of `pack_returns` for y_RO and weights_NGK."""
    grad_ZO = torch.cat([grad_ZO, grad_ZO.new_zeros(1, grad_ZO.shape[1])]).to(y_RO.dtype)
    slots_NGK = torch.where((back_NG >= 0).unsqueeze(2), slots_NGK, -1)
    grad_y_RO, grad_weights_NGK = reference.gated_combine_backward(
        grad_ZO[back_NG.long()], y_RO, slots_NGK, weights_NGK
    )
    return grad_y_RO + grad_ZO[back_R.long()], grad_weights_NGK


def mix_returns(
    back_ZO: Tensor,
    weights_BGK: Tensor,
    rows_BGK: Tensor,
    pairs_BGK: Tensor,
    sums_BGK: Tensor,
    links_WL: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Mixes what came back: out[b, g] = Σ_row Σ_{k of the row} w[b, g, k] · y[pick].

    The partial sum over the picks of one row is rounded to `dtype`, as it is where it comes
    back as a sum. So the result has the same bits whichever way the links chose.
    """
    partial, whole = _mix_steps(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL)
    partial_XO = reference.gated_combine(back_ZO.to(dtype), *partial).flatten(0, 1)
    return reference.gated_combine(partial_XO, *whole)


def mix_returns_backward(
    grad_BGO: Tensor,
    back_ZO: Tensor,
    weights_BGK: Tensor,
    rows_BGK: Tensor,
    pairs_BGK: Tensor,
    sums_BGK: Tensor,
    links_WL: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gives the gradients of `mix_returns` for back_ZO and weights_BGK.

    A weight whose sum came back has gradient 0 here: it gets its own where the sum was taken.
    """
    partial, _ = _mix_steps(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL)
    J = partial[0].shape[1] // max(rows_BGK.shape[1], 1)
    grad_y_ZO, grad_weights = reference.gated_combine_backward(
        grad_BGO.repeat_interleave(J, 1), back_ZO.to(grad_BGO.dtype), *partial
    )
    grad_weights_BGK = grad_weights.unflatten(1, (-1, J)).sum(2)
    sums_W = links_WL[:, WEIGHTS].diff() > 0
    came_as_sum_BGK = (rows_BGK >= 0) & sums_W[_rank_of(rows_BGK, links_WL, ROWS)]
    return grad_y_ZO.to(back_ZO.dtype), grad_weights_BGK.masked_fill(came_as_sum_BGK, 0)


def _mix_steps(
    back_ZO: Tensor,
    weights_BGK: Tensor,
    rows_BGK: Tensor,
    pairs_BGK: Tensor,
    sums_BGK: Tensor,
    links_WL: Tensor,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Slots and weights of two mixes: picks to J partial sums of each gate, and these to gates."""
    B, G, K = rows_BGK.shape
    used_BGK, rank_BGK = rows_BGK >= 0, _rank_of(rows_BGK, links_WL, ROWS)
    as_sum_BGK = (links_WL[:, WEIGHTS].diff() > 0)[rank_BGK] & used_BGK
    shift = {c: (links_WL[:, BACK] - links_WL[:, c])[rank_BGK] for c in (PAIRS, SUMS)}
    places_BGK = torch.where(as_sum_BGK, sums_BGK + shift[SUMS], pairs_BGK + shift[PAIRS])
    # Part j of a gate is the j-th of the rows that its picks name.
    sorted_BGK, order_BGK = rows_BGK.sort(dim=2, stable=True)
    new_BGK = torch.ones_like(used_BGK)
    new_BGK[..., 1:] = sorted_BGK[..., 1:] != sorted_BGK[..., :-1]
    new_BGK &= sorted_BGK >= 0
    partial_BGK = torch.empty_like(order_BGK).scatter(2, order_BGK, new_BGK.cumsum(2) - 1)
    partial_BGJK = torch.arange(K, device=rows_BGK.device).view(-1, 1) == partial_BGK.unsqueeze(2)
    partial_BGJK = partial_BGJK & used_BGK.unsqueeze(2)
    # A sum serves all of its picks at once: the first of them takes it, as it is.
    again_BGJK = as_sum_BGK.unsqueeze(2) & (partial_BGJK.cumsum(3) > 1)
    slots_BGJK = torch.where(partial_BGJK & ~again_BGJK, places_BGK.unsqueeze(2), -1).int()
    weights_BGJK = torch.where(as_sum_BGK, 1, weights_BGK).unsqueeze(2).expand(-1, -1, K, -1)
    numbers_BGJ = torch.arange(B * G * K, device=rows_BGK.device).view(B, G, K)
    slots_BGJ = torch.where(partial_BGJK.any(3), numbers_BGJ, -1).int()
    ones_BGJ = weights_BGK.new_ones(()).expand(B, G, K)
    return (slots_BGJK.flatten(1, 2), weights_BGJK.flatten(1, 2)), (slots_BGJ, ones_BGJ)

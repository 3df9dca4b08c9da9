"""The operators of an exchange of rows between ranks, as `bench_ops` races them: without a wire.

Four ranks that all have the same batch, and one of them at work: what it sends to itself is what
each of the others sends it, so one process has what every operator is given.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmoe.ops import route_plan
from mmoe.ops.exchange import exchange_reference
from mmoe.parallel.experts.links import Links, Sizes, WayBack

RANKS = 4
CODE_BYTES, WEIGHT_BYTES = 4, 4
Contest = tuple[dict[str, Callable[[], object]], int]


def contests(
    experts_BGK: Tensor, num_experts: int, width: int, dtype: torch.dtype, way: WayBack
) -> dict[str, Contest]:
    """Each step beside its reference, and all of them one after another.

    Args:
        experts_BGK: What each rank's gates pick.
        num_experts: E, of all ranks.
        width: Of rows and of outputs.
        dtype: Of both, on the wire too.
        way: In which outputs come back.

    Returns:
        By name: contestants, and bytes: each argument read once, each result written once.
    """
    found: dict[str, Contest] = {}
    given = given_arguments(experts_BGK, num_experts, width, dtype, way)
    indexing = _indexing(given, dtype) if way == "pairs" else {}
    for name, arguments in given.items():
        ours = partial(getattr(torch.ops.mmoe, name), *arguments)
        reference = partial(getattr(exchange_reference, name), *arguments)
        moved = _bytes(arguments) + _bytes(ours())
        if name == "decode_picks":  # of the message it reads the codes alone
            moved += CODE_BYTES * arguments[3] - _bytes(arguments[0])
        calls: dict[str, Callable[[], object]] = {"mmoe": ours, "reference": reference}
        if name in indexing:
            calls["indexing"] = indexing[name]
        found[name] = calls, moved
    whole: dict[str, Callable[[], object]] = {
        who: partial(_each, [calls[who] for calls, _ in found.values()])
        for who in ("mmoe", "reference")
    }
    found["exchange train"] = whole, sum(moved for _, moved in found.values())
    return found


def given_arguments(
    experts_BGK: Tensor, E: int, width: int, dtype: torch.dtype, way: WayBack
) -> dict[str, tuple[Any, ...]]:
    """What each operator is given, by its name, in the order of a step."""
    (B, G, K), device, ops = experts_BGK.shape, experts_BGK.device, torch.ops.mmoe
    x_BD = torch.randn(B, width, device=device).to(dtype)
    weights_BGK = torch.rand(B, G, K, device=device)
    held, numbers_E = E // RANKS, torch.arange(E, dtype=torch.int32, device=device)
    homes_E3 = torch.stack((numbers_E // held, numbers_E % held, numbers_E * 0), 1)
    found: dict[str, tuple[Any, ...]] = {"outbound_plan": (experts_BGK, homes_E3, RANKS, 1)}
    rows_M, entries_Q, codes_Q, *slots, sizes_W4 = ops.outbound_plan(*found["outbound_plan"])

    sizes = [Sizes(*row) for row in sizes_W4.tolist()]
    ours, theirs = _links(sizes, way), _links(sizes[:1] * RANKS, way)
    ours_WL, theirs_WL = ours.table(device), theirs.table(device)
    lengths = _lengths(ours, width * dtype.itemsize, CODE_BYTES)
    sources = [x_BD], weights_BGK, rows_M, entries_Q, codes_Q, ours_WL
    found["pack_rows"] = *sources, dtype, sum(lengths)
    message = ops.pack_rows(*found["pack_rows"])[: lengths[0]].repeat(RANKS)

    came, counts = (message, theirs_WL), (sum(theirs.rows), sum(theirs.picks))
    found["decode_picks"] = *came, *counts, G, K, held, width, dtype, dtype
    picks_NGK, weights_NGK, places_Q = ops.decode_picks(*found["decode_picks"])
    rows_P, offsets_E1, slots_NGK = route_plan(picks_NGK, held)
    rows_R = rows_P[: sum(size.pairs for size in theirs.sizes)]
    found["unpack_rows"] = message, rows_R, theirs_WL, width, dtype, dtype

    found["return_plan"] = rows_R, offsets_E1, slots_NGK, theirs_WL
    returned = ops.return_plan(*found["return_plan"])
    y_RO = torch.randn(len(rows_R), width, device=device).to(dtype)
    sent = y_RO, weights_NGK, *returned, slots_NGK
    found["pack_returns"] = *sent, sum(theirs.back), dtype
    back_ZO = torch.randn(sum(ours.back), width, device=device).to(dtype)
    mixed = back_ZO, weights_BGK, *slots, ours_WL
    found["mix_returns"] = *mixed, dtype

    grad_BGO = torch.randn(B, G, width, device=device).to(dtype)
    found["mix_returns_backward"] = grad_BGO, *mixed
    grad_ZO = torch.randn(sum(theirs.back), width, device=device).to(dtype)
    found["pack_returns_backward"] = grad_ZO, *sent
    length = sum(_lengths(theirs, width * dtype.itemsize, 0))
    grads = y_RO, torch.rand_like(weights_NGK), slots_NGK, places_Q
    found["unpack_rows_backward"] = *grads, theirs_WL, dtype, length
    length = sum(_lengths(ours, width * dtype.itemsize, 0))
    gradients = torch.zeros(length, dtype=torch.uint8, device=device)
    sorted_rows = rows_M, slots[0], entries_Q
    found["pack_rows_backward"] = gradients, *sorted_rows, ours_WL, 1, width, dtype, dtype
    return found


def _indexing(
    given: dict[str, tuple[Any, ...]], dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """What one writes without operators, where pairs come back; the message is cut beforehand."""
    (x_BD,), _, rows_M, _, codes_Q, *_ = given["pack_rows"]
    out_N, codes_Q = rows_M[rows_M >= 0].long(), codes_Q.view(torch.uint8)
    _, rows_R, links_WL, width, *_ = given["unpack_rows"]
    came_ND = torch.randn(int(links_WL[-1, 0]), width, device=x_BD.device).to(dtype)
    y_RO, _, back_R, _, _, num_back, _ = given["pack_returns"]
    sent_ZO, back_R, rows_R = y_RO.new_empty(num_back, width), back_R.long(), rows_R.long()
    back_ZO, weights_BGK, _, pairs_BGK, *_ = given["mix_returns"]
    pairs_BGK, weights_BGK1 = pairs_BGK.long(), weights_BGK.unsqueeze(-1).to(dtype)
    return {
        "pack_rows": lambda: torch.cat(
            [x_BD.index_select(0, out_N).view(torch.uint8).flatten(), codes_Q]
        ),
        "unpack_rows": lambda: came_ND.index_select(0, rows_R),
        "pack_returns": lambda: torch.empty_like(sent_ZO).index_copy_(0, back_R, y_RO),
        "mix_returns": lambda: (back_ZO[pairs_BGK] * weights_BGK1).sum(2),
    }


def _links(sizes: Sequence[Sizes], way: WayBack) -> Links:
    return Links(list(sizes), [way == "sums"] * RANKS)


def _lengths(links: Links, row_bytes: int, code_bytes: int) -> list[int]:
    """The bytes of each rank's message."""
    counts = zip(links.rows, links.picks, links.weights, strict=True)
    return [rows * row_bytes + p * code_bytes + w * WEIGHT_BYTES for rows, p, w in counts]


def _bytes(values: Any) -> int:
    """Of all tensors among these, each once."""
    if isinstance(values, Tensor):
        return values.numel() * values.element_size()
    return sum(map(_bytes, values)) if isinstance(values, list | tuple) else 0


def _each(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()

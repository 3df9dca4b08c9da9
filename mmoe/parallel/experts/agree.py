"""Agreement of all ranks before a batch travels; refused on all alike, or some would wait."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture import DispatchPlan
from mmoe.mixture.pytrees import Tree
from mmoe.ops import FLOAT_DTYPES, accumulate_dtype
from mmoe.parallel.experts.exchange import Piece, Terms
from mmoe.parallel.experts.links import WayBack, WayCosts
from mmoe.parallel.experts.placement import ExpertPlacement

# Codes of picks are int32.
CODES = 2**31


def agree(
    sources: Sequence[Tree],
    plan: DispatchPlan,
    *,
    placement: ExpertPlacement,
    wire_dtype: torch.dtype | None,
    way_back: WayBack,
    host_size: int = 1,
) -> tuple[Piece, Terms]:
    """Returns a batch that can travel, and what both ends of each link know of it.

    Args:
        sources: S tensors `x_BD`, or what is refused.
        plan: The picks.
        placement: Who holds which expert.
        wire_dtype: What rows travel in; None: their own dtype.
        way_back: Which way the outputs come back.
        host_size: Ranks that get rows together.

    Raises:
        ValueError: Inputs that are no tensors, experts whose output is no tensor of a known width,
            or picks of another number of experts.
    """
    if plan.num_experts != placement.num_experts:
        raise ValueError(
            f"plan: expected picks of the {placement.num_experts // placement.slices} experts of "
            f"the placement, got {plan.num_experts // placement.slices}"
        )
    read = [sources[s] for s in sorted(set(plan.expert_source))]
    kinds = [_kind(x) for x in read]
    if None in kinds or len(set(kinds)) > 1:
        raise ValueError(
            "x: expected [rows, width] tensors of one width and floating point type, which is "
            f"what travels to other ranks, got {', '.join(_describe(x) for x in read)}"
        )
    if plan.output_dim is None:
        raise ValueError(
            "experts: expected an output_dim, which tells how wide the rows are that come back, "
            "got None; pass ExpertPool(…, output_dim=…)"
        )
    _check_codes(plan, placement, host_size)
    first = cast(Tensor, read[0])
    width, dtype = first.shape[1], first.dtype
    wire = wire_dtype or dtype
    # A wider wire would carry the same numbers in more bytes.
    rows = ops.RowsFormat(width, dtype, wire if wire.itemsize < dtype.itemsize else dtype)
    G, K = plan.experts_BGK.shape[1:]
    costs = WayCosts(
        way=way_back,
        output_dim=plan.output_dim,
        number_bytes=rows.wire.itemsize,
        weight_bytes=accumulate_dtype(dtype).itemsize,
        by_batch=rows.wire == dtype or torch.is_grad_enabled(),
        picks=(G, K),
        bound=plan.bound,
    )
    return Piece(cast(Sequence[Tensor], sources), plan), Terms(rows, costs)


def _check_codes(plan: DispatchPlan, placement: ExpertPlacement, host_size: int) -> None:
    """Codes number the picks of a row, and the experts where it goes."""
    G, K = plan.experts_BGK.shape[1:]
    held = list(map(len, placement.experts))
    most = max(sum(held[i : i + host_size]) for i in range(0, len(held), host_size))
    if G * K * most > CODES:
        raise ValueError(
            f"experts_BGK: expected {G} gates × {K} picks × {most} experts of a rank or host to "
            "fit in int32 codes; spread the experts over more ranks"
        )


def _kind(x: Tree) -> tuple[int, torch.dtype] | None:
    """Returns what the sources must agree in; None: cannot travel."""
    rows = isinstance(x, Tensor) and x.dim() == 2 and x.dtype in FLOAT_DTYPES
    return (x.shape[1], x.dtype) if rows else None


def _describe(x: Tree) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"

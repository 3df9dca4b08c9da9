"""Mixes as they would be without an expert: more gates over outputs that are there already."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mmoe.mixture.asking import RowAsks, decide
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.gates import DSelectKGate
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.multi_gate import MultiGateMixture
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.traits import GateTraits, traits_of

# Left-out experts, and rows, whose mixes are made at a time: of 4 gates of width 128 that is 16 MiB
# at most, near the processor. All 4,096 rows at once took seven times as long
_TOGETHER, _ROWS = 16, 512


class LeftOutBlock(NamedTuple):
    """What is needed to mix some rows without each of some experts.

    Attributes:
        experts: Which L of those that were asked for.
        rows: Which rows.
        weights_BLGE: Of the gates, 0 for the expert that is left out.
        y_BEO: What every expert gave of these rows.
    """

    experts: slice
    rows: slice
    weights_BLGE: Tensor
    y_BEO: Tensor

    def mixes(self) -> list[Tensor]:
        """For each gate `[B, L, O]`."""
        return [mixed(weights_BLE, self.y_BEO) for weights_BLE in self.weights_BLGE.unbind(2)]


class LeftOutMixes(NamedTuple):
    """What a mixture gives, and what it would give without each of some experts.

    Attributes:
        out_BGO: As the mixture itself, all experts run on all rows.
        weights_BGE: As its gates gave them.
        without: Blocks, made when they are asked for.
    """

    out_BGO: Tensor
    weights_BGE: Tensor
    without: Iterator[LeftOutBlock]


def mixes_without(
    layer: MultiGateMixture,
    sources: Sequence[Tensor],
    experts: Sequence[int],
    *,
    refill: bool = False,
    asks: RowAsks | None = None,
) -> LeftOutMixes:
    """Mixes with all experts, and without each of some, whose outputs are computed once.

    Renormalised, the weights of a gate's other experts are scaled up to their old sum:
    `w'_e = w_e · Σ_f w_f / Σ_{f ≠ left out} w_f`; a row that its gate gave to that expert alone
    gets a mix of zeros. For dense gates that is what they give where they do not see the expert.
    With `refill` the gates decide anew without it: of a gate that picks, the next best takes its
    place.

    Args:
        layer: In evaluation mode, with all experts here.
        sources: S tensors `x_BD`, what experts and gates read.
        experts: Numbers; each mix does without one.
        refill: Let the gates decide again; only what `can_refill` may be.
        asks: Which gates each row asks, as of `MultiGateMixture`.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.mixture.leave_out import mixes_without
        >>> layer = MultiGateMixture(4, num_gates=2, experts=mlp_experts(3, 4, [8])).eval()
        >>> blocks = mixes_without(layer, [torch.zeros(5, 4)], [0, 2]).without
        >>> [[mix.shape for mix in block.mixes()] for block in blocks]
        [[torch.Size([5, 2, 8]), torch.Size([5, 2, 8])]]
    """
    decision = _decide(layer, sources, layer.visibility_GE, asks)
    weights_BGE = decision.as_weights(layer.num_experts)
    read = layer.expert_source
    read = read[:1] if len(set(read)) == 1 else read
    pool = cast(Pool, layer.experts)
    y = pool.dense([cast_for_autocast(sources[s]) for s in read])
    blocks = [slice(first, first + _ROWS) for first in range(0, max(len(weights_BGE), 1), _ROWS)]
    y_blocks = [torch.stack([y_BO[rows] for y_BO in y], dim=1) for rows in blocks]

    def without() -> Iterator[LeftOutBlock]:
        for start in range(0, len(experts), _TOGETHER):
            some = experts[start : start + _TOGETHER]
            if refill:
                others_BLGE = torch.stack([_without(layer, sources, e, asks) for e in some], dim=1)
            else:
                others_BLGE = _renormalised(layer, sources, decision, weights_BGE, some, asks)
            for rows, y_BEO in zip(blocks, y_blocks, strict=True):
                places = slice(start, start + len(some))
                yield LeftOutBlock(places, rows, others_BLGE[rows], y_BEO)

    pairs = zip(blocks, y_blocks, strict=True)
    whole = [mixed(weights_BGE[rows], y_BEO) for rows, y_BEO in pairs]
    return LeftOutMixes(torch.cat(whole), weights_BGE, without())


def can_refill(layer: MultiGateMixture, expert: int) -> bool:
    """Returns whether gates that pick can decide without an expert, and may then decide otherwise.

    Dense gates share its weight out as renormalising does. A gate with no more experts than picks
    has none to take its place, and the codes of `DSelectKGate` name experts by their numbers.

    Example:
        >>> from mmoe.mixture import MultiGateMixture, TopKGate, mlp_experts
        >>> from mmoe.mixture.leave_out import can_refill
        >>> gate = TopKGate(4, num_gates=1, num_experts=3, k=2)
        >>> layer = MultiGateMixture(4, 1, experts=mlp_experts(3, 4, [8]), gate=gate)
        >>> can_refill(layer, 0)
        True
    """
    k = traits_of(layer.gate, GateTraits).k
    if k is None or isinstance(layer.gate, DSelectKGate):
        return False
    left_G = layer.visibility_GE.sum(1) - layer.visibility_GE[:, expert].long()
    return bool((left_G >= k).all())


def _decide(
    layer: MultiGateMixture,
    sources: Sequence[Tensor],
    visibility_GE: Tensor,
    asks: RowAsks | None,
) -> GateOutput:
    inputs = [sources[s] for s in layer.gate_source]
    return decide(layer.gate, inputs, visibility_GE, asks, sees_all=bool(visibility_GE.all()))


def _without(
    layer: MultiGateMixture, sources: Sequence[Tensor], expert: int, asks: RowAsks | None
) -> Tensor:
    """What the gates give where nobody sees the expert."""
    visibility_GE = layer.visibility_GE.clone()
    visibility_GE[:, expert] = False
    return _decide(layer, sources, visibility_GE, asks).as_weights(layer.num_experts)


def _renormalised(
    layer: MultiGateMixture,
    sources: Sequence[Tensor],
    decision: GateOutput,
    weights_BGE: Tensor,
    experts: Sequence[int],
    asks: RowAsks | None,
) -> Tensor:
    """The gates' weights of the others, with the sum that all had: `[B, L, G, E]`."""
    gone_LE = torch.zeros(len(experts), layer.num_experts, device=weights_BGE.device)
    gone_LE[torch.arange(len(experts)), torch.tensor(experts)] = 1
    rest_BLGE = weights_BGE[:, None] * (1 - gone_LE)[None, :, None].to(weights_BGE.dtype)
    # Added up anew: the whole less one weight near it would lose most digits
    left_BLG1 = rest_BLGE.sum(-1, keepdim=True)
    whole_B1G1 = weights_BGE.sum(-1, keepdim=True)[:, None]
    scaled_BLGE = rest_BLGE * (whole_B1G1 / torch.where(left_BLG1 > 0, left_BLG1, 1))
    vanished_BLG = (left_BLG1 == 0).squeeze(-1) & (whole_B1G1 > 0).squeeze(-1)
    if decision.experts is None and bool(vanished_BLG.any()):
        for place, e in enumerate(experts):
            others_GE = layer.visibility_GE.clone()
            others_GE[:, e] = False
            if bool(others_GE.any(1).all()) and bool(vanished_BLG[:, place].any()):
                # Of a dense gate so sure that its other weights are 0 in fp32: its logits know more
                again_BGE = _without(layer, sources, e, asks)
                found_BGE = torch.where(
                    vanished_BLG[:, place, :, None], again_BGE, scaled_BLGE[:, place]
                )
                scaled_BLGE[:, place] = found_BGE
    return scaled_BLGE


def mixed(weights_BNE: Tensor, y_BEO: Tensor) -> Tensor:
    """Computes N mixes of each row, `[B, N, O]` in y's type; sums are in fp32 at least.

    Example:
        >>> import torch
        >>> from mmoe.mixture.leave_out import mixed
        >>> mixed(torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[2.0], [4.0]]])).tolist()
        [[[3.0]]]
    """
    dtype = torch.promote_types(y_BEO.dtype, weights_BNE.dtype)
    with torch.autocast(y_BEO.device.type, enabled=False):
        return torch.bmm(weights_BNE.to(dtype), y_BEO.to(dtype)).to(y_BEO.dtype)

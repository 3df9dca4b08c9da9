"""Mixes as they would be without an expert: more gates over outputs that are there already."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mmoe import ops
from mmoe.mixture.checks import check_decision
from mmoe.mixture.experts.pool import Pool
from mmoe.mixture.gates import DSelectKGate
from mmoe.mixture.gates.contract import GateOutput
from mmoe.mixture.multi_gate import MultiGateMixture
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.traits import GateTraits, traits_of

# Left-out experts whose mixes are made at a time: their gates times rows and widths are in memory
_TOGETHER = 16


class LeftOutMixes(NamedTuple):
    """What a mixture gives, and what it would give without each of some experts.

    Attributes:
        out_BGO: As the mixture itself, all experts run on all rows.
        weights_BGE: As its gates gave them.
        without: Tensors `[L, B, G, O]`, made when they are asked for: without each of some of the
            experts, then of the next.
    """

    out_BGO: Tensor
    weights_BGE: Tensor
    without: Iterator[Tensor]


def mixes_without(
    layer: MultiGateMixture,
    sources: Sequence[Tensor],
    experts: Sequence[int],
    *,
    refill: bool = False,
) -> LeftOutMixes:
    """Mixes with all experts, and without each of some, whose outputs are computed once.

    Renormalised, the weights of a gate's other experts are scaled up to their old sum:
    `w'_e = w_e · Σ_f w_f / Σ_{f ≠ left out} w_f`; a row that its gate gave to that expert alone
    gets a mix of zeros. For dense gates that is what they give where they do not see the expert.
    With `refill` the gates decide anew without it: of a gate that picks, the next best takes its
    place.

    Every left-out expert makes G gates more over the same outputs, and `dense_combine` reads each
    output once for all of them.

    Args:
        layer: In evaluation mode, with all experts here.
        sources: S tensors `x_BD`, what experts and gates read.
        experts: L numbers; each mix does without one.
        refill: Let the gates decide again.

    Raises:
        ValueError: `refill`, and the gates cannot (`can_refill`).

    Example:
        >>> import torch
        >>> from mmoe.mixture import MultiGateMixture, mlp_experts
        >>> from mmoe.mixture.leave_out import mixes_without
        >>> layer = MultiGateMixture(4, num_gates=2, experts=mlp_experts(3, 4, [8])).eval()
        >>> [mixes.shape for mixes in mixes_without(layer, [torch.zeros(5, 4)], [0, 2]).without]
        [torch.Size([2, 5, 2, 8])]
    """
    decision = _decide(layer, sources, layer.visibility_GE)
    weights_BGE = decision.as_weights(layer.num_experts)
    read = layer.expert_source
    read = read[:1] if len(set(read)) == 1 else read
    pool = cast(Pool, layer.experts)
    y = pool.dense([cast_for_autocast(sources[s]) for s in read])

    def without() -> Iterator[Tensor]:
        for start in range(0, len(experts), _TOGETHER):
            some = experts[start : start + _TOGETHER]
            if refill:
                others = [_without(layer, sources, e) for e in some]
            else:
                others = [_renormalised(layer, sources, decision, weights_BGE, e) for e in some]
            out = ops.dense_combine(y, torch.cat(others, dim=1))
            yield out.unflatten(1, (len(some), -1)).transpose(0, 1)

    return LeftOutMixes(ops.dense_combine(y, weights_BGE), weights_BGE, without())


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
    layer: MultiGateMixture, sources: Sequence[Tensor], visibility_GE: Tensor
) -> GateOutput:
    decision = layer.gate([sources[s] for s in layer.gate_source], visibility_GE)
    return check_decision(decision, len(sources[0]), visibility_GE, bool(visibility_GE.all()))


def _without(layer: MultiGateMixture, sources: Sequence[Tensor], expert: int) -> Tensor:
    """What the gates give where nobody sees the expert."""
    visibility_GE = layer.visibility_GE.clone()
    visibility_GE[:, expert] = False
    return _decide(layer, sources, visibility_GE).as_weights(layer.num_experts)


def _renormalised(
    layer: MultiGateMixture,
    sources: Sequence[Tensor],
    decision: GateOutput,
    weights_BGE: Tensor,
    expert: int,
) -> Tensor:
    """The gates' weights of the others, with the sum that all had."""
    rest_BGE = weights_BGE.clone()
    rest_BGE[:, :, expert] = 0
    # Added up anew: the whole less one weight near it would lose most digits
    left_BG1 = rest_BGE.sum(-1, keepdim=True)
    vanished_BG = (left_BG1.squeeze(-1) == 0) & (weights_BGE[:, :, expert] > 0)
    whole_BG1 = weights_BGE.sum(-1, keepdim=True)
    scaled_BGE = rest_BGE * (whole_BG1 / torch.where(left_BG1 > 0, left_BG1, 1))
    others_GE = layer.visibility_GE.clone()
    others_GE[:, expert] = False
    if decision.experts is not None or not bool(others_GE.any(1).all()) or not vanished_BG.any():
        return scaled_BGE
    # Of a dense gate so sure that its other weights are 0 in fp32: its logits know their shares
    return torch.where(vanished_BG[..., None], _without(layer, sources, expert), scaled_BGE)

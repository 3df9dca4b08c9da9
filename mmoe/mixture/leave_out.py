"""Mixes as they would be without an expert: more gates over outputs that are there already."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mmoe.mixture.gates.contract import GateOutput, decide
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.multi_gate import MultiGateMixture
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.ops import dense_combine

# Left-out experts, and numbers of their gates' weights, that are in memory at a time: 8 MiB
_TOGETHER, _WEIGHTS = 16, 2**21
# Rows whose mixes are made at a time: of 4 gates of width 128 and 8 experts 8 MiB, near the
# processor. All 4,096 rows at once took 1.5 times as long
_ROWS = 512


class LeftOutBlock(NamedTuple):
    """Inputs for mixing some rows without each of some experts.

    Attributes:
        experts: Which L of those that were asked for.
        rows: Which rows.
        weights_BLGE: Of the gates, 0 for the expert that is left out.
        y: What every expert gave of these rows, E tensors [B, O].
    """

    experts: slice
    rows: slice
    weights_BLGE: Tensor
    y: list[Tensor]

    def parts(self) -> Iterator["LeftOutBlock"]:
        """Cuts it into blocks of few rows, whose mixes stay near the processor."""
        for first in range(0, max(len(self.weights_BLGE), 1), _ROWS):
            rows = slice(first, first + _ROWS)
            at = slice(
                self.rows.start + rows.start, min(self.rows.start + rows.stop, self.rows.stop)
            )
            own = [y_BO[rows] for y_BO in self.y]
            yield LeftOutBlock(self.experts, at, self.weights_BLGE[rows], own)

    def mixes(self) -> list[Tensor]:
        """Returns each gate's mixes, `[B, L, O]`."""
        return [dense_combine(self.y, weights_BLE) for weights_BLE in self.weights_BLGE.unbind(2)]


class LeftOutMixes(NamedTuple):
    """Mixes, and those that would be without each of some experts.

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
    x: Sequence[Tensor | Inputs],
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

    Args:
        layer: In evaluation mode, with all experts here.
        x: S tensors `x_BD`, what experts and gates read, or `Inputs`.
        experts: Numbers; each mix does without one.
        refill: Let the gates decide again; only what `can_refill` may be.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture
        >>> layer = MultiGateMixture(4, num_gates=2, experts=MLPExperts(3, 4, [8])).eval()
        >>> blocks = mixes_without(layer, [torch.zeros(5, 4)], [0, 2]).without
        >>> [[mix.shape for mix in block.mixes()] for block in blocks]
        [[torch.Size([5, 2, 8]), torch.Size([5, 2, 8])]]
    """
    sources = [Inputs.of(source) for source in x]
    decision = _decide(layer, sources, layer.visibility_GE)
    weights_BGE = decision.as_weights(layer.num_experts)
    read = layer.expert_source
    # One input serves all experts, which then share a product
    read = read[:1] if len(set(read)) == 1 else read
    y = layer.experts.dense([cast_for_autocast(sources[s].whole) for s in read])

    rows_BGE = weights_BGE.contiguous()  # a gate may have them expert by expert: slow to repeat

    def without() -> Iterator[LeftOutBlock]:
        for start in range(0, len(experts), _TOGETHER):
            some = experts[start : start + _TOGETHER]
            again = _Again(layer, sources, some)
            dense = decision.experts is None
            height = max(_ROWS, _WEIGHTS // max(1, len(some) * rows_BGE[:1].numel()))
            for first in range(0, max(len(weights_BGE), 1), height):
                rows = slice(first, first + height)
                if refill:
                    weights_BLGE = again.weights_BLGE[rows]
                else:
                    known = again if dense else None
                    weights_BLGE = _renormalised(rows_BGE[rows], some, known, rows)
                places = slice(start, start + len(some))
                yield LeftOutBlock(places, rows, weights_BLGE, [y_BO[rows] for y_BO in y])

    return LeftOutMixes(dense_combine(y, weights_BGE), weights_BGE, without())


class _Again:
    """Gates' decisions without one of some experts, computed on demand."""

    def __init__(
        self, layer: MultiGateMixture, sources: Sequence[Inputs], experts: Sequence[int]
    ) -> None:
        self.layer, self.sources, self.experts = layer, sources, experts
        self._found: dict[int, Tensor] = {}

    def of(self, place: int) -> Tensor:
        """`weights_BGE` without the expert of this place."""
        if place not in self._found:
            visibility_GE = self.visibility(place)
            decision = _decide(self.layer, self.sources, visibility_GE)
            self._found[place] = decision.as_weights(self.layer.num_experts)
        return self._found[place]

    def visibility(self, place: int) -> Tensor:
        """`visibility_GE` without the expert of this place."""
        visibility_GE = self.layer.visibility_GE.clone()
        visibility_GE[:, self.experts[place]] = False
        return visibility_GE

    @cached_property
    def weights_BLGE(self) -> Tensor:
        """Returns the weights without each of the experts."""
        return torch.stack([self.of(place) for place in range(len(self.experts))], dim=1)


def can_refill(layer: MultiGateMixture, expert: int) -> bool:
    """Returns whether gates that pick can decide without an expert, and may then decide otherwise.

    Dense gates share its weight out as renormalising does. A gate with no more experts than picks
    has none to take its place, and the codes of `DSelectKGate` name experts by their numbers.

    Example:
        >>> from mmoe.mixture import MLPExperts, MultiGateMixture, TopKGate
        >>> gate = TopKGate(4, num_gates=1, num_experts=3, k=2)
        >>> layer = MultiGateMixture(4, 1, experts=MLPExperts(3, 4, [8]), gate=gate)
        >>> can_refill(layer, 0)
        True
    """
    traits = traits_of(layer.gate, GateTraits)
    if traits.k is None or traits.spells_numbers:
        return False
    left_G = layer.visibility_GE.sum(1) - layer.visibility_GE[:, expert].long()
    return bool((left_G >= traits.k).all())


def _decide(
    layer: MultiGateMixture, sources: Sequence[Inputs], visibility_GE: Tensor
) -> GateOutput:
    inputs, sees_all = [sources[s].whole for s in layer.gate_source], bool(visibility_GE.all())
    return decide(layer.gate, inputs, visibility_GE, sources[0], sees_all=sees_all)


def _renormalised(
    weights_BGE: Tensor, experts: Sequence[int], again: _Again | None, rows: slice
) -> Tensor:
    """The gates' weights of the others, with the sum that all had: `[B, L, G, E]`.

    Of some rows; `again` knows what dense gates give all of them.
    """
    stays_LE = torch.ones(len(experts), weights_BGE.shape[2], dtype=torch.float64)
    stays_LE[torch.arange(len(experts)), torch.tensor(experts)] = 0
    # Added up anew: the whole less one weight near it would lose most digits
    left_BLG = torch.matmul(weights_BGE, stays_LE.t().to(weights_BGE)).transpose(1, 2)
    whole_B1G = weights_BGE.sum(-1)[:, None]
    vanished_BLG = (left_BLG == 0) & (whole_B1G > 0)
    scale_BLG = whole_B1G / torch.where(left_BLG > 0, left_BLG, 1)
    # Copied and then cleared: a product with zeros and ones took five times as long
    rest_BLGE = weights_BGE[:, None].repeat(1, len(experts), 1, 1)
    for place, e in enumerate(experts):
        rest_BLGE[:, place, :, e] = 0
    rest_BLGE *= scale_BLG[..., None]
    if again is not None and bool(vanished_BLG.any()):
        for place in range(len(experts)):
            seen = bool(again.visibility(place).any(1).all())
            if seen and bool(vanished_BLG[:, place].any()):
                # Of a dense gate so sure that its other weights are 0 in fp32: its logits know more
                gone_BG = vanished_BLG[:, place]
                rest_BLGE[:, place][gone_BG] = again.of(place)[rows][gone_BG]
    return rest_BLGE

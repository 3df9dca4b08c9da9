"""`MixWithout`: levels that also say what the network would do without each of some experts."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mmoe.explain.places import ExpertPlace, levels_of
from mmoe.mixture.leave_out import LeftOutBlock, mixes_without
from mmoe.mixture.multi_gate import MixtureOutput, Unmixed
from mmoe.models.network import MixtureNetwork
from mmoe.tasks.towers import logits_of_unmixed


class MixWithout:
    """Runs a network's levels once, and finds the logits without each of some experts meanwhile.

    Experts run once on every row. Of the last level all that is left to do without one are mixes
    and towers; without an expert of a lower level, the levels above it run again. Made for one
    batch.

    Args:
        left_out: Experts; each variant does without one of them, in their order.
        refill: Gates that pick decide again (`mixes_without`).

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.explain.places import places_of
        >>> from mmoe.explain.without import MixWithout
        >>> from mmoe.models import build_network
        >>> network = build_network(ModelConfig(num_experts=3), 20, ["click", "buy"]).eval()
        >>> network(torch.zeros(4, 20), mixer=MixWithout(places_of(network))).variants_VBT.shape
        torch.Size([3, 4, 2])
    """

    def __init__(self, left_out: Sequence[ExpertPlace], *, refill: bool = False) -> None:
        self.left_out, self.refill = tuple(left_out), refill
        self._found: dict[int, Tensor] = {}

    def __call__(
        self,
        network: MixtureNetwork,
        number: int,
        sources: Sequence[Tensor],
        domains_B: Tensor | None,
    ) -> MixtureOutput:
        """Runs a level, and all above it without each expert of it that is left out."""
        level = levels_of(network)[number]
        mine = [v for v, place in enumerate(self.left_out) if place.level == number]
        experts = [self.left_out[v].expert for v in mine]
        asks = network.asks(level, network.row_domains(domains_B))
        mixed = mixes_without(level.mixture, sources, experts, refill=self.refill, asks=asks)
        parts: dict[int, list[Tensor]] = {v: [] for v in mine}
        for block in mixed.without:
            without = _above(network, number, block, domains_B)
            for v, logits_BT in zip(mine[block.experts], without, strict=True):
                parts[v].append(logits_BT)
        self._found |= {v: torch.cat(blocks) for v, blocks in parts.items()}
        return MixtureOutput(mixed.out_BGO, {}, mixed.weights_BGE)

    @property
    def variants_VBT(self) -> Tensor | None:
        """Logits without each expert; None where none is left out."""
        found = [self._found[v] for v in range(len(self.left_out))]
        return torch.stack(found) if found else None


def _above(
    network: MixtureNetwork, number: int, block: LeftOutBlock, domains_B: Tensor | None
) -> Iterable[Tensor]:
    """Logits of what a level mixed without each of L experts: L times `logits_BT`."""
    levels = levels_of(network)
    if number + 1 == len(levels) and network.towers_mix(levels[number]):
        # Gates without an expert are more gates, with the same towers
        count = block.weights_BLGE.shape[1]
        unmixed = Unmixed(block.y, block.weights_BLGE.flatten(1, 2))
        logits_BX = logits_of_unmixed([*network.towers] * count, unmixed)
        if logits_BX is not None:
            return logits_BX.unflatten(1, (count, -1)).unbind(1)
    found = [_above_mixes(network, number, part, domains_B) for part in block.parts()]
    return torch.cat(found).unbind(1)


def _above_mixes(
    network: MixtureNetwork, number: int, block: LeftOutBlock, domains_B: Tensor | None
) -> Tensor:
    """The same by mixes that are made: `logits_BLT`."""
    count, domains = block.weights_BLGE.shape[1], None
    # Row after row, all variants of each: what comes back is cut the same way
    sources = [mixes_BLO.flatten(0, 1) for mixes_BLO in block.mixes()]
    if domains_B is not None:
        domains = network.row_domains(domains_B[block.rows].repeat_interleave(count))
    for level in levels_of(network)[number + 1 :]:
        asks = network.asks(level, domains)
        sources = list(level.mixture(sources, asks=asks).out_BGO.unbind(1))
    return network.logits_of(sources, domains).unflatten(0, (-1, count))

"""`NetworkWithout`: a network that also says what it would do without each of some experts."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.explain.places import ExpertPlace, levels_of
from mmoe.mixture.leave_out import LeftOutBlock, mixes_without
from mmoe.mixture.output import Unmixed
from mmoe.models.network import GateRecord, MixtureNetwork, NetworkOutput, gate_record
from mmoe.tasks.alike import logits_of_unmixed


class NetworkWithout(nn.Module):
    """Computes the logits of a network and, as `variants_VBT`, those without each expert.

    Experts run once on every row. Of the last level all that is left to do without one are mixes
    and towers; without an expert of a lower level, the levels above it run again.

    Args:
        network: In evaluation mode; it is not changed.
        left_out: Experts; each variant does without one of them, in their order.
        refill: Gates that pick decide again (`mixes_without`).

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.explain.places import places_of
        >>> from mmoe.models import build_network
        >>> network = build_network(ModelConfig(num_experts=3), 20, ["click", "buy"]).eval()
        >>> without = NetworkWithout(network, places_of(network))
        >>> without(torch.zeros(4, 20)).variants_VBT.shape
        torch.Size([3, 4, 2])
    """

    def __init__(
        self, network: MixtureNetwork, left_out: Sequence[ExpertPlace], *, refill: bool = False
    ) -> None:
        super().__init__()
        self.network, self.left_out, self.refill = network, tuple(left_out), refill
        self.eval()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the network's: a ranker asks it for inputs, towers and so on."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("network"), name)

    def forward(
        self, x_BD: Tensor, return_gates: bool = False, *, domains_B: Tensor | None = None
    ) -> NetworkOutput:
        """Computes logits with all experts, and variants without each."""
        network, gates = self.network, list[GateRecord]()
        domains = network.row_domains(domains_B)
        sources = [x_BD if network.crossing is None else network.crossing(x_BD)]
        found: dict[int, Tensor] = {}
        for number, level in enumerate(levels_of(network)):
            mine = [v for v, place in enumerate(self.left_out) if place.level == number]
            experts = [self.left_out[v].expert for v in mine]
            asks = network.asks(level, domains)
            mixed = mixes_without(level.mixture, sources, experts, refill=self.refill, asks=asks)
            if return_gates and network.learned_gates:
                record = gate_record(number + 1, level, mixed.weights_BGE)
                gates.append(network.with_domains(record, asks, domains))
            parts: dict[int, list[Tensor]] = {v: [] for v in mine}
            for block in mixed.without:
                for v, logits_BT in zip(
                    mine[block.experts], self._above(number, block, domains_B), strict=True
                ):
                    parts[v].append(logits_BT)
            found |= {v: torch.cat(blocks) for v, blocks in parts.items()}
            sources = list(mixed.out_BGO.unbind(1))
        logits_BT = network.logits_of(sources, domains)
        variants = [found[v] for v in range(len(self.left_out))]
        variants_VBT = torch.stack(variants) if variants else None
        return NetworkOutput(logits_BT, {}, gates, variants_VBT=variants_VBT)

    def _above(
        self, number: int, block: LeftOutBlock, domains_B: Tensor | None
    ) -> Iterable[Tensor]:
        """Logits of what a level mixed without each of L experts: L times `logits_BT`."""
        network, levels = self.network, levels_of(self.network)
        if number + 1 == len(levels) and network.towers_mix(levels[number]):
            # Gates without an expert are more gates, with the same towers
            count = block.weights_BLGE.shape[1]
            unmixed = Unmixed(block.y, block.weights_BLGE.flatten(1, 2))
            logits_BX = logits_of_unmixed([*network.towers] * count, unmixed)
            if logits_BX is not None:
                return logits_BX.unflatten(1, (count, -1)).unbind(1)
        found = [self._above_mixes(number, part, domains_B) for part in block.parts()]
        return torch.cat(found).unbind(1)

    def _above_mixes(self, number: int, block: LeftOutBlock, domains_B: Tensor | None) -> Tensor:
        """The same by mixes that are made: `logits_BLT`."""
        network, count, domains = self.network, block.weights_BLGE.shape[1], None
        # Row after row, all variants of each: what comes back is cut the same way
        sources = [mixes_BLO.flatten(0, 1) for mixes_BLO in block.mixes()]
        if domains_B is not None:
            domains = network.row_domains(domains_B[block.rows].repeat_interleave(count))
        for level in levels_of(network)[number + 1 :]:
            asks = network.asks(level, domains)
            sources = list(level.mixture(sources, asks=asks).out_BGO.unbind(1))
        return network.logits_of(sources, domains).unflatten(0, (-1, count))

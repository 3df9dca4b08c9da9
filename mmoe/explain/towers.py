"""Towers over many mixes of the same experts' outputs: their first layers run once an expert."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import stable_linear
from mmoe.mixture.leave_out import LeftOutBlock, mixed
from mmoe.models.network import MixtureNetwork
from mmoe.tasks import Tower


class MixedTowers:
    """Computes a block's logits by mixing what the towers' first layers make of each expert.

    `W (Σ_e w_e y_e) + b = Σ_e w_e (W y_e) + b`: the matrices of all towers are one product over the
    experts' outputs, and what is mixed is as narrow as a tower's layer.

    Args:
        network: Whose gates they read.
        towers: In the order of the tasks, each with a first layer.
    """

    def __init__(self, network: MixtureNetwork, towers: Sequence[Tower]) -> None:
        self.towers, self.network = towers, network
        first = [cast(nn.Linear, tower.mlp.layers[0]) for tower in towers]
        self.weight_HO = torch.cat([layer.weight for layer in first]).detach()
        self.biases = [layer.bias.detach() for layer in first]
        self.widths = [len(bias) for bias in self.biases]

    @classmethod
    def of(cls, network: MixtureNetwork) -> "MixedTowers | None":
        """Returns them where every tower can be taken apart so; else None."""
        towers = [tower for tower in network.towers if type(tower) is Tower]
        whole = len(towers) == len(network.towers) and network.transfer is None
        if not whole or not all(len(tower.mlp.layers) for tower in towers):
            return None
        return cls(network, towers)

    def logits(self, block: LeftOutBlock) -> Tensor:
        """Computes `logits_BLT` of the last level's block, whose outputs are in fp32."""
        y_BEH = stable_linear(block.y_BEO, self.weight_HO)
        shape = block.weights_BLGE.shape[:2]
        found = []
        for tower, gate, z_BEH, bias_H in zip(
            self.towers,
            self.network.task_gates,
            y_BEH.split(self.widths, dim=-1),
            self.biases,
            strict=True,
        ):
            mix_BLH = mixed(block.weights_BLGE[:, :, gate], z_BEH).add_(bias_H)
            found.append(tower.head(tower.mlp.after_first(mix_BLH.flatten(0, 1))))
        return self.network.towers.joined(found).unflatten(0, shape)

"""Towers over many mixes of the same experts' outputs: their first layers run once an expert."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mmoe.explain.places import levels_of
from mmoe.mixture.leave_out import LeftOutBlock
from mmoe.models.network import MixtureNetwork
from mmoe.ops import dense_combine, dense_mm
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
        experts = levels_of(network)[-1].mixture.num_experts
        weight_OH = torch.cat([layer.weight for layer in first]).detach().t()
        self.weight_EOH = weight_OH.expand(experts, -1, -1).contiguous()
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
        """Computes `logits_LBT` of the last level's block, whose outputs are in fp32."""
        z = [z_BH.split(self.widths, dim=1) for z_BH in dense_mm(block.y, self.weight_EOH)]
        found = []
        experts = block.scale_BLG.shape[1]
        for t, (tower, gate, bias_H) in enumerate(
            zip(self.towers, self.network.task_gates, self.biases, strict=True)
        ):
            mix_BLH = dense_combine(
                [of_expert[t] for of_expert in z], block.weights_BLGE[:, :, gate]
            )
            # As it lies in memory: the rows without one expert side by side
            scale_LB1 = block.scale_BLG[:, :, gate].t().unsqueeze(2)
            mix_LBH = torch.addcmul(bias_H, mix_BLH.transpose(0, 1), scale_LB1)
            found.append(_head(tower, tower.mlp.after_first(mix_LBH.flatten(0, 1))))
        return self.network.towers.joined(found).unflatten(0, (experts, -1))


def _head(tower: Tower, h_BH: Tensor) -> Tensor:
    """What the tower's last layer gives; of one number by an inner product, a quarter of the time.

    Its bits may depend on the other rows, which nobody asks of a difference.
    """
    if tower.num_logits != 1 or tower.constants_J is not None or h_BH.dtype != torch.float32:
        return tower.head(h_BH)
    return torch.mv(h_BH, tower.logit.weight[0].float()) + tower.logit.bias.float()

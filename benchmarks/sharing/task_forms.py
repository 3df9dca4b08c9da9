"""MMoE of many tasks as two other libraries write it, in plain PyTorch, beside our embeddings.

Both loop over experts and tasks in Python. What differs is how a gate weighs the stacked outputs of
the experts: torch-rechub multiplies and adds them up, TorchEasyRec has a batched product for each
gate. Neither has batch norms here: all compute the same function.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.train.workloads import EXPERTS, HIDDEN, TOWER
from mmoe.models.network import NetworkOutput


class Form(nn.Module, ABC):
    """A network in the place of ours.

    Args:
        input_dim: Of x.
        tasks: T.
    """

    # What the ranker asks a network of ours for beside its levels and towers
    inputs = sequences = interaction = bias_tower = None

    def __init__(self, input_dim: int, tasks: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(_mlp(input_dim, HIDDEN) for _ in range(EXPERTS))
        self.gates = nn.ModuleList(nn.Linear(input_dim, EXPERTS) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(*_mlp(HIDDEN[-1], (TOWER,)), nn.Linear(TOWER, 1)) for _ in range(tasks)
        )

    def forward(self, x_BD: Tensor, *_: object, **__: object) -> NetworkOutput:
        """Computes `logits_BT`."""
        return NetworkOutput(self.logits(x_BD), {}, [])

    @abstractmethod
    def logits(self, x_BD: Tensor) -> Tensor:
        """Computes them the other library's way."""


class RechubForm(Form):
    """torch-rechub's `MMOE.forward`, less the batch norms of its layers and its last sigmoid."""

    def logits(self, x_BD: Tensor) -> Tensor:
        """Every gate multiplies all outputs by its weights, and adds them up."""
        y_BEO = torch.cat([expert(x_BD).unsqueeze(1) for expert in self.experts], dim=1)
        gates = [gate(x_BD).softmax(dim=1).unsqueeze(-1) for gate in self.gates]
        logits = []
        for weights_BE1, tower in zip(gates, self.towers, strict=True):
            mix_BO = torch.sum(torch.mul(weights_BE1, y_BEO), dim=1)
            logits.append(tower(mix_BO))
        return torch.cat(logits, dim=1)


class TzrecForm(Form):
    """TorchEasyRec's `MMoE.forward` and its task towers."""

    def logits(self, x_BD: Tensor) -> Tensor:
        """Every gate's weights are a matrix of one row for each sample."""
        y_BEO = torch.stack([expert(x_BD) for expert in self.experts], dim=1)
        mixes = []
        for gate in self.gates:
            weights_B1E = torch.softmax(gate(x_BD), dim=1).unsqueeze(1)
            mixes.append(torch.matmul(weights_B1E, y_BEO).squeeze(1))
        logits = [tower(mix_BO) for tower, mix_BO in zip(self.towers, mixes, strict=True)]
        return torch.cat(logits, dim=1)


def _mlp(width: int, hidden: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise((width, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)
